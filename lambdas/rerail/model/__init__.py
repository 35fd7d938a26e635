"""The data that every other package speaks of: runs, signals, actions, policies, and the agent's protocol."""
