"""Answers to the systems that wait for runs."""
