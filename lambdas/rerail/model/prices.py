"""On-demand prices of training machines in us-east-1: dollars per hour by instance type.

The prices are from public copies of aws.amazon.com/sagemaker/pricing, "Training", of 2023 to 2025, among them the price
lists of aws-samples' model benchmarks. P4, P5 and Trainium are 1.15 times EC2's price since its reduction of June 2025.
They were recorded in November 2026 and not compared with the list of that day. Prices change; other regions are more
expensive, savings plans and training plans are cheaper. A policy's [prices] take precedence.
"""

from collections.abc import Mapping

DOLLARS_AN_HOUR: Mapping[str, float] = {
    "ml.c5.xlarge": 0.204,
    "ml.c5.2xlarge": 0.408,
    "ml.c5.4xlarge": 0.816,
    "ml.c5.9xlarge": 1.836,
    "ml.c5.18xlarge": 3.672,
    "ml.g4dn.xlarge": 0.7364,
    "ml.g4dn.2xlarge": 0.94,
    "ml.g4dn.4xlarge": 1.505,
    "ml.g4dn.8xlarge": 2.72,
    "ml.g4dn.12xlarge": 4.89,
    "ml.g4dn.16xlarge": 5.44,
    "ml.g5.xlarge": 1.408,
    "ml.g5.2xlarge": 1.515,
    "ml.g5.4xlarge": 2.03,
    "ml.g5.8xlarge": 3.06,
    "ml.g5.12xlarge": 7.09,
    "ml.g5.16xlarge": 5.12,
    "ml.g5.24xlarge": 10.18,
    "ml.g5.48xlarge": 20.36,
    "ml.g6.2xlarge": 1.222,
    "ml.g6.12xlarge": 5.752,
    "ml.g6.16xlarge": 4.246,
    "ml.g6.24xlarge": 8.344,
    "ml.m5.large": 0.115,
    "ml.m5.xlarge": 0.23,
    "ml.m5.2xlarge": 0.461,
    "ml.m5.4xlarge": 0.922,
    "ml.m5.12xlarge": 2.765,
    "ml.m5.24xlarge": 5.53,
    "ml.p3.2xlarge": 3.825,
    "ml.p3.8xlarge": 14.688,
    "ml.p3.16xlarge": 28.152,
    "ml.p3dn.24xlarge": 35.894,
    "ml.p4d.24xlarge": 25.254,
    "ml.p4de.24xlarge": 31.564,
    "ml.p5.48xlarge": 63.296,
    "ml.p5en.48xlarge": 72.79,
    "ml.r5.8xlarge": 2.419,
    "ml.r5.16xlarge": 4.838,
    "ml.trn1.2xlarge": 1.545,
    "ml.trn1.32xlarge": 24.725,
    "ml.trn1n.32xlarge": 28.497,
}


def find_price(instance_type: str, overrides: Mapping[str, float]) -> float | None:
    """Return the dollars per hour of one machine of this type, or None if the price is unknown."""
    return overrides.get(instance_type, DOLLARS_AN_HOUR.get(instance_type))
