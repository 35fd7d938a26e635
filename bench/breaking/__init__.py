"""Runs that live through recoveries in the local AWS while their functions' AWS calls are broken: see bench.crashes."""
