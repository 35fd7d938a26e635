"""Draws incident reports: the only place in the functions that knows HTML, and the libraries that make it."""
