"""The content of a run's incident report as data; report_page renders it."""
