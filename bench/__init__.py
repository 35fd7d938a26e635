"""Benchmarks: how well Rerail judges real training logs, beside the rules that others published."""
