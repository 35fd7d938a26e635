"""The sweep: checks all open runs once a minute."""
