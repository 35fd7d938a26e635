"""Train a small GPT-2 with the Hugging Face Trainer, on generated text; it contains nothing of Rerail.

    python train.py --max_steps 200 --output_dir /tmp/gpt2

It saves to the folder that SageMaker copies to S3, and resumes from the newest checkpoint in it.
"""

import argparse
import os
from pathlib import Path

os.environ.setdefault("HF_HUB_OFFLINE", "1")

import torch
from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainingArguments, set_seed
from transformers.trainer_utils import get_last_checkpoint

VOCABULARY, LENGTH, TEXTS = 64, 32, 512


def texts() -> list[dict[str, torch.Tensor]]:
    """Return sequences with a pattern to learn: nine of ten tokens determine the next one."""
    chance = torch.Generator().manual_seed(1)
    follower = torch.randperm(VOCABULARY, generator=chance)
    rows = torch.randint(0, VOCABULARY, (TEXTS, LENGTH), generator=chance)
    strays = torch.rand((TEXTS, LENGTH), generator=chance) < 0.1
    for place in range(1, LENGTH):
        rows[:, place] = torch.where(strays[:, place], rows[:, place], follower[rows[:, place - 1]])
    return [{"input_ids": row, "labels": row} for row in rows]


def main() -> None:
    base = Path(os.environ.get("SAGEMAKER_BASE_DIR", "/opt/ml"))
    parser = argparse.ArgumentParser()
    parser.add_argument("--max_steps", type=int, default=200)
    parser.add_argument("--save_steps", type=int, default=25)
    parser.add_argument("--output_dir", default=str(base / "checkpoints"))
    options = parser.parse_args()

    set_seed(7)
    shape = GPT2Config(
        vocab_size=VOCABULARY,
        n_positions=LENGTH,
        n_embd=32,
        n_layer=2,
        n_head=2,
        bos_token_id=None,
        eos_token_id=None,
    )
    model = GPT2LMHeadModel(shape)
    arguments = TrainingArguments(
        output_dir=options.output_dir,
        max_steps=options.max_steps,
        save_steps=options.save_steps,
        logging_steps=1,
        logging_nan_inf_filter=False,
        per_device_train_batch_size=8,
        learning_rate=3e-3,
        lr_scheduler_type="constant_with_warmup",
        warmup_steps=10,
        use_cpu=not torch.cuda.is_available(),
        report_to=[],
        seed=7,
    )
    trainer = Trainer(model=model, args=arguments, train_dataset=texts())
    newest = get_last_checkpoint(options.output_dir) if Path(options.output_dir).is_dir() else None
    trainer.train(resume_from_checkpoint=newest)


if __name__ == "__main__":
    main()
