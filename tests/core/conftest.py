"""How Hypothesis plays in this suite: the same examples each time, and no stopwatch on a loaded machine."""

from hypothesis import HealthCheck, settings

settings.register_profile(
    "rerail", deadline=None, max_examples=50, derandomize=True, suppress_health_check=[HealthCheck.too_slow]
)
settings.load_profile("rerail")
