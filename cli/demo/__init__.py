"""`rerail demo`: a real training run, a real fault, and the run mended, live on screen."""
