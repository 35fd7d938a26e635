"""The cause of a failed training job, from the text that it left."""
