"""How Hypothesis behaves in every suite: the same examples each time, and no deadline that a busy machine misses."""

from hypothesis import HealthCheck, settings

settings.register_profile(
    "rerail", deadline=None, max_examples=50, derandomize=True, suppress_health_check=[HealthCheck.too_slow]
)
settings.load_profile("rerail")
