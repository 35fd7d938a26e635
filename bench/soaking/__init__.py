"""The soak's parts: what breaks, when, what was trained, and what must hold afterwards."""
