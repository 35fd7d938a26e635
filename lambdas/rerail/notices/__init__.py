"""Notices to operators, and their format for each kind of receiver."""
