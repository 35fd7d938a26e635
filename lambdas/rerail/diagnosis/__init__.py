"""Diagnosis of failed training jobs from their messages and logs."""
