"""Settings of every suite: Hypothesis draws the same examples each time, and sets no deadline."""

import gc
from functools import cache

import botocore.loaders
from hypothesis import HealthCheck, settings

settings.register_profile(
    "rerail", deadline=None, max_examples=50, derandomize=True, suppress_health_check=[HealthCheck.too_slow]
)
settings.load_profile("rerail")
# Thousands of sessions read the same service models: parse each once per process.
botocore.loaders.create_loader = cache(botocore.loaders.create_loader)


def pytest_collection_finish() -> None:
    """Leave what was collected out of garbage collection: ten thousand tests live as long as the process."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(50_000, 20, 50)
