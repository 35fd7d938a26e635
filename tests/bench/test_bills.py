"""The bill by counted calls: what each call is billed by, what a month comes to, and the designs beside it."""

from collections import Counter

import pytest

from bench import bills
from bench.bills import Bill, Counted, Measured, billed, counted, designs, evidence
from bench.cost import MINUTES, PRICES
from bench.needs import Call


@pytest.mark.parametrize(
    ("service", "operation", "asked", "units"),
    [
        ("cloudwatch", "GetMetricData", {"MetricDataQueries": [1, 2, 3]}, {"metric_read": 3}),
        ("s3", "GetObject", {}, {"get": 1}),
        ("s3", "ListObjectsV2", {}, {"put": 1}),
        ("dynamodb", "BatchWriteItem", {"RequestItems": {"t": [1, 2]}}, {"write": 6}),
        ("dynamodb", "TransactWriteItems", {"TransactItems": [1, 2, 3]}, {"write": 12}),
        ("sagemaker", "DescribeTrainingJob", {}, {}),
    ],
)
def test_a_call_is_billed_as_the_price_list_says(service, operation, asked, units):
    """By the metric, the request, or the kilobyte."""
    assert dict(billed(service, operation, asked)) == units


def test_a_call_without_a_price_is_an_error():
    """A service that the functions begin to call must not be free by oversight."""
    with pytest.raises(ValueError, match="kinesis PutRecord has no price"):
        list(billed("kinesis", "PutRecord", {}))


def seen() -> Measured:
    """Ten minutes of each part, with one query a minute for nothing, and two gets a minute for two runs."""
    query = Call("sweep", "dynamodb", "Query", "x", {})
    get = Call("sweep", "s3", "GetObject", "x", {})
    idle = counted([query] * 10, 10)
    busy = counted([query] * 10 + [get] * 20, 10)
    recovery = counted([Call("supervise", "sagemaker", "DescribeTrainingJob", "x", {})] * 4, 3)
    return Measured(idle, busy, busy, recovery)


def test_a_run_is_billed_for_what_is_there_because_of_it():
    """What is asked while nothing trains is the fixed part."""
    part = seen()
    assert part.plain.a_minute(part.idle, 2) == {"read": 0.0, "get": 1.0}
    bill = bills.bills(part)
    assert bill["with the agent"].fixed == bill["without"].fixed
    agents_own = MINUTES * (PRICES["put"].each + 12 * PRICES["get"].each)
    assert bill["with the agent"].of_the_agent == pytest.approx(agents_own)
    assert Bill(3, 2, 1).month(10) == 33


def test_the_designs_cost_what_their_arithmetic_says():
    """Naive polling is its metrics above all; what is polled a fifth as often costs a fifth."""
    naive = designs()["polling two metrics each minute"][1]
    metrics = 1000 * 2 * MINUTES * PRICES["metric_read"].each
    assert metrics < naive(1000) < 1.1 * metrics
    rarely = designs()["polling two metrics each 5 minutes, packed state"][1]
    assert 0.15 < rarely(1000) / naive(1000) < 0.22


def test_the_evidence_says_whether_the_goal_was_met():
    """By the figures that stand in it: a cheaper product meets it."""
    told = evidence(seen())
    assert told.holds and [goal.met for goal in told.goals] == [False, False]
    assert {"Rerail with the agent", "Rerail without", *designs()} == {row[0] for row in told.sheets[2].rows}
    assert Counted(Counter(), {}, 1).a_minute() == {}
