"""Use torch where the script has imported it: a script in JAX, TensorFlow or plain Python is supervised without it.

Importing torch takes more than a second of CPU time. A script that has not imported it has no process group, no tensors
and no GPU of torch's, so nothing is lost by leaving it out.
"""

import sys
from typing import Any


def find_process_group() -> Any:
    """Return torch.distributed if its default process group is initialized, else None."""
    dist = sys.modules.get("torch.distributed")
    # While another thread imports torch, the module is there without its functions.
    is_initialized = getattr(dist, "is_initialized", None)
    return dist if is_initialized is not None and dist.is_available() and is_initialized() else None  # type: ignore[union-attr]


def is_tensor(value: Any) -> bool:
    """Return whether the value is a tensor of torch."""
    kind = getattr(sys.modules.get("torch"), "Tensor", None)
    return kind is not None and isinstance(value, kind)


def to_number(value: Any) -> float:
    """Return the number in a tensor or a number; torch warns where the tensor still belongs to a graph."""
    return float(value.detach() if is_tensor(value) else value)


def find_cuda() -> Any:
    """Return torch.cuda if the script has initialized it, else None."""
    cuda = sys.modules.get("torch.cuda")
    is_initialized = getattr(cuda, "is_initialized", None)
    return cuda if is_initialized is not None and is_initialized() else None
