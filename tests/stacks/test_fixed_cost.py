"""What is paid for by its being there is counted as the template has it."""

import pytest

from bench import cost


@pytest.mark.parametrize(
    ("kind", "counted"),
    [
        ("CloudWatch::Alarm", cost.ALARMS),
        ("CloudWatch::CompositeAlarm", cost.COMPOSITES),
        ("CloudWatch::Dashboard", cost.DASHBOARDS),
        ("KMS::Key", cost.KEYS),
    ],
)
def test_what_has_a_monthly_price_is_counted(template, kind, counted):
    """If this fails, correct the number in bench/cost.py, then: python -m bench.cost --page docs/cost.md"""
    assert len(template.of(kind)) == counted


def test_nothing_else_has_a_monthly_price(template):
    """What is paid by its use, or not at all; a new type must be looked up in the price list."""
    by_use = {
        *("DynamoDB::Table", "Events::EventBus", "Events::Rule", "IAM::Policy", "IAM::Role", "KMS::Key"),
        *("Lambda::EventInvokeConfig", "Lambda::EventSourceMapping", "Lambda::Function", "Lambda::LayerVersion"),
        *("Lambda::Permission", "Logs::LogGroup", "S3::Bucket", "S3::BucketPolicy", "SNS::Topic", "SNS::TopicPolicy"),
        *("SQS::Queue", "SQS::QueuePolicy", "SSM::Parameter", "Scheduler::Schedule"),
    }
    counted = {"CloudWatch::Alarm", "CloudWatch::CompositeAlarm", "CloudWatch::Dashboard"}
    kinds = {resource["Type"].removeprefix("AWS::") for resource in template.resources.values()}
    assert kinds <= by_use | counted


def test_functions_have_the_memory_that_is_billed(template):
    """The two that the bill names."""
    for name in ("supervise", "sweep"):
        assert template.function(name)["MemorySize"] == cost.MEMORY_GB * 1024
