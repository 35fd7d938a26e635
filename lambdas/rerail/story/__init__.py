"""The story of a run, for a person at 03:00: what happened, what was done, what it cost; as data, drawn elsewhere."""
