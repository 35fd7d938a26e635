"""CreateTrainingJob requests for supervised jobs and their relaunches."""
