"""Logger, metrics and tracer of every function: one of each, named by the environment."""

from aws_lambda_powertools import Logger, Metrics, Tracer

logger = Logger()
metrics = Metrics()
tracer = Tracer()
