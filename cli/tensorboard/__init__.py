"""`rerail tensorboard`: TensorBoard on all attempts of a run, from their event files or from their metrics."""
