"""Resumes where there is a checkpoint."""

import os

init_from = "resume" if os.path.exists(os.path.join(out_dir, "ckpt.pt")) else "scratch"  # noqa: F821
