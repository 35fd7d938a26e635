"""What a run's time and money were spent on."""
