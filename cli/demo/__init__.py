"""`rerail demo`: a real training run, a real fault, and its recovery, live on screen."""
