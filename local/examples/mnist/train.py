"""Train a classifier of generated digits: plain PyTorch with argparse, saves checkpoints, resumes by itself.

    python train.py --epochs 2 --model-dir /tmp/model --checkpoint-dir /tmp/checkpoints

On SageMaker the toolkit names the folders in SM_MODEL_DIR, SM_OUTPUT_DATA_DIR and SM_CHANNEL_TRAINING.
"""

import argparse
import json
import os
import time
from pathlib import Path

import torch
from torch import Tensor, nn

# Ten digits of 5 x 7 dots, a row a number, as on an old display.
DIGITS = (
    (14, 17, 19, 21, 25, 17, 14),
    (4, 12, 4, 4, 4, 4, 14),
    (14, 17, 1, 2, 4, 8, 31),
    (31, 2, 4, 2, 1, 17, 14),
    (2, 6, 10, 18, 31, 2, 2),
    (31, 16, 30, 1, 1, 17, 14),
    (6, 8, 16, 30, 17, 17, 14),
    (31, 1, 2, 4, 8, 8, 8),
    (14, 17, 17, 14, 17, 17, 14),
    (14, 17, 17, 15, 1, 2, 12),
)
SIZE = 14


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--batch-size", type=int, default=64)
    parser.add_argument("--lr", type=float, default=0.1)
    parser.add_argument("--samples", type=int, default=2000)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--log-interval", type=int, default=10)
    parser.add_argument("--save-interval", type=int, default=20)
    parser.add_argument("--step-seconds", type=float, default=0.0, help="slows training down, to look at it")
    parser.add_argument("--nesterov", action="store_true")
    parser.add_argument("--model-dir", default=os.environ.get("SM_MODEL_DIR", "model"))
    parser.add_argument("--output-dir", default=os.environ.get("SM_OUTPUT_DATA_DIR", "output"))
    parser.add_argument("--checkpoint-dir", default="/opt/ml/checkpoints")
    return parser.parse_args()


def digits(count: int, seed: int) -> tuple[Tensor, Tensor]:
    """Return images (count, SIZE * SIZE) of shifted, faint and noisy digits, and their labels."""
    chance = torch.Generator().manual_seed(seed)
    labels = torch.randint(10, (count,), generator=chance)
    images = 0.2 * torch.randn(count, SIZE, SIZE, generator=chance)
    shifts = torch.randint(2, 5, (count, 2), generator=chance)
    inks = 0.7 + 0.6 * torch.rand(count, generator=chance)
    shapes = torch.tensor([[[row >> (4 - bit) & 1 for bit in range(5)] for row in digit] for digit in DIGITS])
    for image, label, (down, right), ink in zip(images, labels, shifts.tolist(), inks, strict=True):
        image[down : down + 7, right : right + 5] += ink * shapes[label]
    return images.flatten(1), labels


def main() -> None:
    args = parse()
    torch.manual_seed(args.seed)
    images, labels = digits(args.samples, args.seed)
    model = nn.Sequential(nn.Linear(SIZE * SIZE, 128), nn.ReLU(), nn.Linear(128, 10))
    optimizer = torch.optim.SGD(model.parameters(), lr=args.lr, momentum=0.9, nesterov=args.nesterov)
    checkpoint = Path(args.checkpoint_dir) / "last.pt"
    step = 0
    if checkpoint.exists():
        state = torch.load(checkpoint, weights_only=True)  # nosec B614: tensors alone
        model.load_state_dict(state["model"])
        optimizer.load_state_dict(state["optimizer"])
        step = state["step"]
        print(f"resumed from step {step}", flush=True)
    steps_an_epoch = args.samples // args.batch_size
    losses = []
    while step < args.epochs * steps_an_epoch:
        epoch, within = divmod(step, steps_an_epoch)
        order = torch.randperm(args.samples, generator=torch.Generator().manual_seed(args.seed + epoch))
        chosen = order[within * args.batch_size : (within + 1) * args.batch_size]
        loss = nn.functional.cross_entropy(model(images[chosen]), labels[chosen])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        step += 1
        losses.append(loss.item())
        time.sleep(args.step_seconds)
        if step % args.log_interval == 0:
            print(f"Train Epoch: {epoch} Step: {step}\tLoss: {loss.item():.6f}", flush=True)
        if step % args.save_interval == 0:
            checkpoint.parent.mkdir(parents=True, exist_ok=True)
            state = {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "step": step}
            torch.save(state, checkpoint.with_suffix(".tmp"))
            checkpoint.with_suffix(".tmp").rename(checkpoint)
    test_images, test_labels = digits(500, args.seed + 1000)
    right = (model(test_images).argmax(1) == test_labels).float().mean().item()
    print(f"Test set: Accuracy: {right:.1%}", flush=True)
    for folder in (args.model_dir, args.output_dir):
        Path(folder).mkdir(parents=True, exist_ok=True)
    torch.save(model.state_dict(), Path(args.model_dir) / "model.pt")
    (Path(args.output_dir) / "result.json").write_text(json.dumps({"steps": step, "accuracy": right, "losses": losses}))


if __name__ == "__main__":
    main()
