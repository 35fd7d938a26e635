"""Chains: several supervised runs, each fed by what others have left."""
