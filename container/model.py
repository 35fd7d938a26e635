"""Define a small GPT over bytes: enough of a language model for its loss to be meaningful."""

# mypy: allow-subclassing-any
# mypy does not read torch (see pyproject.toml), so nn.Module is Any to it.

from collections.abc import Collection
from dataclasses import dataclass

import torch
from torch import nn
from torch.nn import functional as F

VOCABULARY = 256  # one token per byte value


@dataclass(frozen=True)
class ModelSize:
    """The size of a model."""

    layers: int
    heads: int
    width: int
    # In bytes.
    context: int
    dropout: float = 0.1


SIZES = {
    "tiny": ModelSize(layers=1, heads=2, width=16, context=16),
    "demo": ModelSize(layers=2, heads=4, width=64, context=32),
    "small": ModelSize(layers=6, heads=6, width=384, context=256),
    "gpt2": ModelSize(layers=12, heads=12, width=768, context=1024),
}


class Block(nn.Module):
    """Attention, then a feed-forward layer, each added to its input.

    `queries_keys_values` is ordered by heads, each head's queries, keys and values side by side. A rank that holds the
    first half of its rows has half of the heads completely, which tensor parallelism needs (see parallel.py).
    """

    def __init__(self, size: ModelSize) -> None:
        super().__init__()
        self.head_width = size.width // size.heads
        self.dropout = size.dropout
        self.norm_1 = nn.LayerNorm(size.width)
        self.queries_keys_values = nn.Linear(size.width, 3 * size.width, bias=False)
        self.projection = nn.Linear(size.width, size.width, bias=False)
        self.norm_2 = nn.LayerNorm(size.width)
        self.up = nn.Linear(size.width, 4 * size.width, bias=False)
        self.down = nn.Linear(4 * size.width, size.width, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = x + F.dropout(self.attention(self.norm_1(x)), self.dropout, self.training)
        return x + F.dropout(self.down(F.gelu(self.up(self.norm_2(x)))), self.dropout, self.training)

    def attention(self, x: torch.Tensor) -> torch.Tensor:
        heads = self.queries_keys_values(x).unflatten(-1, (-1, 3, self.head_width))  # as many heads as this rank has
        queries, keys, values = heads.permute(3, 0, 2, 1, 4)
        mixed = F.scaled_dot_product_attention(queries, keys, values, is_causal=True)
        return self.projection(mixed.transpose(1, 2).flatten(2))


class Layers(nn.ModuleList):
    """Blocks that follow each other; parallel.py replaces `forward` to checkpoint them in groups."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for block in self:
            x = block(x)
        return x


class GPT(nn.Module):
    """A GPT whose `model(inputs, targets)` returns the mean cross-entropy in nats per byte.

    Both arguments are int64 of shape (batch, length).
    """

    def __init__(self, size: ModelSize) -> None:
        super().__init__()
        self.tokens = nn.Embedding(VOCABULARY, size.width)
        self.places = nn.Embedding(size.context, size.width)
        self.blocks = Layers(Block(size) for _ in range(size.layers))
        self.norm = nn.LayerNorm(size.width)
        self.head = nn.Linear(size.width, VOCABULARY, bias=False)
        self.apply(_initialise)

    def forward(self, inputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        x = embed(self.tokens, self.places, inputs)
        return compute_loss(self.head(self.norm(self.blocks(x))).float(), targets)

    def keep(self, layers: Collection[int], *, first: bool, last: bool) -> None:
        """Remove all other layers, and the ends of the model that are not kept; the names of the rest stay."""
        for layer in range(len(self.blocks)):
            if layer not in layers:
                self.blocks[layer] = nn.Identity()
        if not first:
            self.tokens = self.places = None
        if not last:
            self.norm = self.head = None


class ModelStage(nn.Module):
    """Consecutive layers of a GPT: from token ids or the stage before, to the stage after or to logits."""

    def __init__(self, model: GPT, layers: Collection[int], *, is_first: bool, is_last: bool) -> None:
        super().__init__()
        self.is_first, self.is_last = is_first, is_last
        self.blocks = Layers(model.blocks[layer] for layer in layers)
        self.width = self.blocks[0].norm_1.normalized_shape[0]
        self.vocabulary = VOCABULARY
        if is_first:
            self.tokens, self.places = model.tokens, model.places
        if is_last:
            self.norm, self.head = model.norm, model.head

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if self.is_first:
            x = embed(self.tokens, self.places, x)
        x = self.blocks(x)
        return self.head(self.norm(x)).float() if self.is_last else x


def embed(tokens: nn.Embedding, places: nn.Embedding, inputs: torch.Tensor) -> torch.Tensor:
    return tokens(inputs) + places(torch.arange(inputs.shape[1], device=inputs.device))


def compute_loss(logits: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    """Compute the mean cross-entropy of logits in float32: of bfloat16 numbers it would keep three digits."""
    return F.cross_entropy(logits.flatten(0, 1), targets.flatten())


def _initialise(module: nn.Module) -> None:
    if isinstance(module, nn.Linear | nn.Embedding):
        nn.init.normal_(module.weight, std=0.02)
