"""How Hypothesis plays here: the same examples each time, without a stopwatch."""

from tests.core.conftest import settings

settings.load_profile("rerail")
