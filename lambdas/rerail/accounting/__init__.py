"""Accounting of a run's time and money."""
