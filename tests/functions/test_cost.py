"""What the bill is made of: the functions are run against a pretend AWS, and what they call is counted."""

import random
from collections import Counter
from datetime import UTC, datetime, timedelta
from math import ceil, exp
from pathlib import Path
from zlib import compress

import pytest
from moto.sagemaker.models import sagemaker_backends

import supervise
import sweep
from bench import cost
from cli.simulate import pages
from rerail.aws import clients
from rerail.detection.detectors import DetectorState, evaluate_sample
from rerail.model.codec import dumps
from rerail.model.liveness import Phase
from rerail.model.mailbox import Heartbeat, Report, ReportKind, make_heartbeat_key, make_report_key, serialize
from rerail.model.metrics import make_definitions
from rerail.model.sample import Sample
from rerail.model.signatures import sign
from rerail.model.thresholds import Thresholds
from tests.functions.account import Context, sample
from tests.functions.test_supervise import batch

ROOT = Path(__file__).parents[2]
SERVICES = ("dynamodb", "s3", "sqs", "sagemaker", "cloudwatch", "ssm", "events")
RUNS = 10


def train(account, name, *, agent):
    """A run in training, heard of by the supervisor; with an agent in it that has said hello and beats."""
    account.submit(name)
    job = sagemaker_backends["123456789012"]["eu-west-1"].training_jobs[name]
    job.algorithm_specification["MetricDefinitions"] = [] if agent else make_definitions()
    supervise.handler(batch({"source": "rerail.sweep", "detail": {"job": name}}), Context())
    if agent:
        at = datetime.now(UTC)
        key, report, heartbeat = (
            account.runs.load(name).signing_key,
            make_report_key(name, "r1"),
            make_heartbeat_key(name),
        )
        hello = serialize(Report("r1", name, 1, name, ReportKind.HELLO, at))
        account.leave(report, sign(hello, name=report, key=key))
        filed = sample("report_filed")
        filed["detail"]["object"]["key"] = report
        supervise.handler(batch(filed), Context())
        progress = serialize(Heartbeat(name, 1, name, at, Phase.STEP, 60))
        account.leave(heartbeat, sign(progress, name=heartbeat, key=key))


def calls_of_a_sweep():
    """Each operation that the second sweep asks for, and how many metrics; the first one learns."""
    sweep.handler(sample("schedule"), Context("sweep"))
    seen: Counter[str] = Counter()

    def note(params, model, **_):
        seen[model.name] += 1
        seen["metrics"] += len(params.get("MetricDataQueries", ()))
        seen["memories written"] += sum(len(items) for items in params.get("RequestItems", {}).values()) * (
            model.name == "BatchWriteItem"
        )

    for service in SERVICES:
        clients.client(service).meta.events.register("provide-client-params.*.*", note)
    sweep.handler(sample("schedule"), Context("sweep"))
    return seen


def test_a_sweep_over_nothing_calls_what_the_fixed_part_counts(account):
    """Eight queries of the index and one list of jobs, which is free."""
    assert calls_of_a_sweep() == {
        "Query": cost.QUERIES_A_SWEEP,
        "ListTrainingJobs": 1,
        "metrics": 0,
        "memories written": 0,
    }


@pytest.mark.parametrize("agent", [True, False])
def test_a_run_that_trains_adds_what_its_lines_count(account, agent):
    """With the agent one GET a minute, without it a handful of metrics; and what the detectors remember."""
    for number in range(RUNS):
        train(account, f"gpt-{number}", agent=agent)
    seen = calls_of_a_sweep()
    assert seen["DescribeTrainingJob"] == RUNS  # free
    assert seen["Query"] == cost.QUERIES_A_SWEEP
    assert seen["ListObjectsV2"] <= ceil(RUNS * cost.LISTS_A_RUN) + 1  # which runs of ten is told by their names
    if agent:
        assert seen["memories written"] == RUNS
    assert seen["metrics"] == (0 if agent else RUNS * cost.METRICS_A_RUN)
    assert seen["GetObject"] == (RUNS * cost.HEARTBEATS_A_RUN if agent else 0)
    billed = {"Query", "BatchGetItem", "BatchWriteItem", "ListObjectsV2", "GetObject", "GetMetricData"}
    free = {"DescribeTrainingJob", "ListTrainingJobs", "metrics", "memories written"}
    assert set(seen) <= billed | free


@pytest.mark.parametrize("kind", ["memories", "runs"])
def test_what_is_stored_is_no_longer_than_it_is_counted(kind):
    """The records that the tests keep of all versions."""
    lines = [line for file in ROOT.glob(f"tests/core/data/records/*/{kind}.jsonl") for line in file.open("rb")]
    if kind == "memories":
        assert max(len(compress(line)) for line in lines) <= cost.MEMORY_BYTES
    else:
        assert sorted(map(len, lines))[len(lines) // 2] <= cost.RUN_BYTES


def test_a_detector_state_is_no_longer_than_it_is_counted():
    """After a day of minutes its windows are full."""
    state, dice, at = DetectorState(), random.Random(3), datetime(2026, 1, 31, tzinfo=UTC)
    for minute in range(1440):
        loss, seconds = 2 * exp(dice.gauss(0, 0.02)), dice.gauss(1, 0.02)
        highest, at = loss * dice.uniform(1, 1.1), at + timedelta(minutes=1)
        minutely = Sample(60 * minute, at, loss, step_time_s=seconds, count=30, loss_max=highest)
        state, _ = evaluate_sample(state, minutely, Thresholds())
    assert 0.9 * cost.FULL_MEMORY_BYTES <= len(compress(dumps(state).encode())) <= cost.FULL_MEMORY_BYTES


def test_the_bill_is_its_lines():
    """Ten runs cost the fixed part, and ten times what one adds."""
    alone = cost.month(0, agent=True)
    assert alone == pytest.approx(sum(line.dollars for line in cost.fixed()))
    assert cost.month(10, agent=True) - alone == pytest.approx(10 * (cost.month(1, agent=True) - alone))


def test_the_agent_is_cheaper_than_metrics():
    """A tenth of what GetMetricData costs is the goal; the heartbeat replaces it."""
    replaced = {line.what: line.dollars for line in cost.per_run(agent=False)}["metrics, read by the sweep"]
    beats = sum(line.dollars for line in cost.per_run(agent=True) if "heartbeat" in line.what)
    assert beats <= replaced / 9


def test_the_page_has_the_figures_of_the_code(tmp_path):
    """If this fails: python -m bench.cost --page docs/cost.md"""
    page = ROOT / "docs" / "cost.md"
    copy = tmp_path / "cost.md"
    copy.write_text(page.read_text())
    pages.write(copy, cost.tables())
    assert copy.read_text() == page.read_text()
