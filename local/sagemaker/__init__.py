"""A fake of the SageMaker training API that runs training jobs as real processes on this machine."""

from .service import TrainingService
from .timing import Timing

__all__ = ["Timing", "TrainingService"]
