"""Render incident reports as HTML; only this package loads the HTML and chart libraries."""
