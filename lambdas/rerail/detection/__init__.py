"""The detectors: pure functions over a run's samples, one question per module, shared by the sweep and the agent."""
