"""Months of a fleet in seconds: what share of its time trains, by who looks after it."""
