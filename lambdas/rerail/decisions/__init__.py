"""The pure decision: one module per signal or rule."""
