"""`rerail acceptance`: what only a real account can show, tried for cents."""
