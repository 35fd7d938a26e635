"""The check of all open runs, once a minute."""
