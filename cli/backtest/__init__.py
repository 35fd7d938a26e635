"""What Rerail would have done: its detectors over logs of the past."""
