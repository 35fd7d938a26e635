"""CreateTrainingJob requests: of a supervised job, and of its relaunch."""
