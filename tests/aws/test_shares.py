"""Shares of a round in Lambda and DynamoDB: asked for without waiting, and told of by part."""

import json
from dataclasses import replace
from datetime import timedelta

import pytest
from botocore.stub import Stubber

from rerail.accounting.goodput import Account, Badput
from rerail.aws.clients import client
from rerail.aws.shards import InvokedShards
from rerail.model.causes import Cause
from rerail.model.errors import CallFailed
from rerail.model.run import RunState
from rerail.sweep.fleet_metrics import Fleet
from rerail.sweep.shards import Shard, format_event, read_shard
from rerail.sweep.sweep import SweepReport
from tests.aws.places import TABLE
from tests.fakes import MIDNIGHT

REPORT = SweepReport(
    open=2,
    due=1,
    discovered=0,
    unknown=("gpt",),
    monitored=1,
    found=3,
    unread="GetMetricData: rate exceeded",
    with_heartbeat=1,
    bad_heartbeats={"bert": "not JSON"},
    fleet=Fleet(
        {RunState.WATCHING: 2},
        {Cause.HANG: 1},
        4,
        Account(goodput_s=60.0, badput_s={Badput.MACHINES: 2.0}, dollars=None),
    ),
)


def test_a_share_is_asked_for_and_not_waited_for():
    """The event holds all that the other needs; ten thousand jobs that changed are not too many for Lambda."""
    share = Shard((1, 2), MIDNIGHT, 9000, {number: number for number in range(4_000_000_000, 4_000_010_000)})
    event = json.dumps(format_event(share), separators=(",", ":"))
    assert read_shard(json.loads(event)) == share
    assert len(event) < 262_144
    with Stubber(client("lambda")) as api:
        asked = {"FunctionName": "sweep", "InvocationType": "Event", "Payload": event.encode()}
        api.add_response("invoke", {"StatusCode": 202}, asked)
        InvokedShards(TABLE).hand_on(share, to="sweep")
        api.assert_no_pending_responses()


def test_one_that_cannot_be_asked_is_named():
    """Lambda refuses: the round says which parts nobody sweeps."""
    with Stubber(client("lambda")) as api:
        api.add_client_error("invoke", "TooManyRequestsException", "Rate Exceeded.", 429)
        with pytest.raises(CallFailed, match=r"Invoke of sweep for the parts \(3,\)"):
            InvokedShards(TABLE).hand_on(Shard((3,), MIDNIGHT, 9000), to="sweep")


def test_a_shards_report_is_stored_and_read_completely(table):
    shares = InvokedShards(table)
    shares.keep((1, 2), replace(REPORT, open=1), at=MIDNIGHT - timedelta(minutes=1))
    shares.keep((1, 2), REPORT, at=MIDNIGHT)
    shares.keep((7,), SweepReport(5, 0, 0, ()), at=MIDNIGHT)
    reports = shares.reports()
    assert reports[1, 2] == (MIDNIGHT, REPORT) and reports[1, 2][1].fleet == REPORT.fleet
    assert reports[7,][1].open == 5
