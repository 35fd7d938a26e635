"""The detectors: pure functions over a run's samples, one module per problem, shared by the sweep and the agent."""
