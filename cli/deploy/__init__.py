"""`rerail deploy` and `rerail destroy`: an account gets Rerail, a newer one, or loses it without losing its runs."""
