"""The detectors: pure judges of a training run's metrics, one question a file, read by the sweep and by the agent."""
