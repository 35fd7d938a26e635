"""Messages on the supervisor's queue, and the metrics that Rerail publishes about itself."""
