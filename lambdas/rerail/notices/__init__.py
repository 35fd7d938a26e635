"""Notices to people, and how each kind of receiver gets them."""
