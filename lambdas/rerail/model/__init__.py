"""The data types that all other packages use: runs, signals, actions, policies, and the agent's protocol."""
