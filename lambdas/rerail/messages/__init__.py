"""Messages on the supervisor's queue, and the metrics that Rerail publishes of itself."""
