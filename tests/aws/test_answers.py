"""What AWS answers may be anything: it costs us at most the one thing that was asked about, and is said clearly."""

import json
from collections.abc import Iterator
from random import Random
from types import SimpleNamespace

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from rerail.aws import clients
from rerail.aws.cloudwatch import CloudWatchSeries
from rerail.aws.detector_states import DynamoDetections
from rerail.aws.dynamodb import DynamoRuns
from rerail.aws.eventbridge import EventBus
from rerail.aws.hyperpod import DynamoClusters
from rerail.aws.logs import CloudWatchLogs
from rerail.aws.records import read, write
from rerail.aws.sagemaker import SageMakerJobs
from rerail.aws.shards import InvokedShards
from rerail.aws.sqs import SqsQueue
from rerail.aws.ssm import SsmPause, SsmPolicies
from rerail.aws.validation import InvalidResponse
from rerail.hyperpod.clusters import ClusterRecord
from rerail.model.codec import BadRecord
from rerail.model.errors import RerailError, StateUnknown, Throttled
from rerail.model.metrics import MetricNames, make_queries
from rerail.model.notice import Notice
from rerail.model.run import JobStatus
from tests.aws.places import forget_clients
from tests.bad_input.targets import answers
from tests.bad_input.targets.catalogue import ANSWERS, TARGETS, Target
from tests.examples import count_examples

NOON = answers.NOON


@pytest.fixture(autouse=True)
def aws() -> Iterator[None]:
    """No pretend AWS stands between the SDK and these bytes."""
    yield


@pytest.fixture(scope="module", autouse=True)
def wired(clients_of_our_own) -> Iterator[None]:
    """The real SDK on a wire of our own."""
    patient = clients.CONFIG
    forget_clients()
    answers.ready.cache_clear()
    answers.ready()
    yield
    clients.CONFIG = patient
    answers.ready.cache_clear()


def respond(operation: str, body: object, *, status: int = 200) -> None:
    """From now on the operation answers so."""
    answers.WIRE.status = status
    answers.WIRE.responses = {operation: body if isinstance(body, bytes) else json.dumps(body).encode()}


@pytest.mark.parametrize("target", ANSWERS, ids=lambda target: target.name)
def test_no_answer_is_too_bad(target: Target):
    """One of our errors or of the SDK's, in words that can be shown; a run of which nothing was said is swept."""
    samples, read = list(target.samples()), target.load()

    @given(st.integers(0, 2**32))
    @settings(max_examples=count_examples(40), deadline=None, derandomize=True, database=None)
    def changed(seed: int) -> None:
        random = Random(seed)
        read(target.change(random.choice(samples), random))

    changed()


@given(st.binary(max_size=60))
@example(b"")
@example(b"<html>503 from a proxy</html>")
@example(b"\xff\xfe")
@example(b"[" * 20_000)
@example(b'{"TrainingJobName": "gpt"}')
@settings(max_examples=count_examples(60), deadline=None, derandomize=True, database=None)
def test_a_description_that_is_none_blinds_one_run_alone(body):
    """Rubbish on the wire is no answer: the sweep finishes its round, and whoever needs the supervisor gets it."""
    target = TARGETS["DescribeTrainingJob"]
    target.load()(body)
    respond("DescribeTrainingJob", body)
    with pytest.raises(StateUnknown, match="DescribeTrainingJob gpt: "):
        SageMakerJobs().describe("gpt")


DESCRIPTION = json.loads(next(iter(TARGETS["DescribeTrainingJob"].samples())))


@pytest.mark.parametrize("status", ["Rebooting", "", "inprogress", "🚀"])
def test_a_new_status_reads_as_unknown(status):
    """Neither live nor over: nothing is done about it, and no error is made of it."""
    respond("DescribeTrainingJob", {**DESCRIPTION, "TrainingJobStatus": status, "SecondaryStatus": "Defragmenting"})
    job, _ = SageMakerJobs().describe("gpt")
    assert job.status is JobStatus.UNKNOWN and not job.status.is_terminal and not job.is_training


@pytest.mark.parametrize(
    ("member", "value", "named"),
    [
        ("TrainingJobName", 7, "TrainingJobName is 7, not a valid string"),
        ("CreationTime", None, "KeyError: 'CreationTime'"),
        ("ResourceConfig", {"InstanceCount": "many"}, "ResourceConfig.InstanceCount is 'many', not a valid integer"),
        ("Environment", {"A": [1]}, r"Environment.A is \[1\], not a valid string"),
        ("EnableManagedSpotTraining", "yes", "EnableManagedSpotTraining is 'yes', not a valid boolean"),
        ("BillableTimeInSeconds", True, "BillableTimeInSeconds is True, not a valid integer"),
        ("BillableTimeInSeconds", 10**400, "BillableTimeInSeconds is a number of more than 64 bits"),
        ("CreationTime", "2026-11-02T03:00:00", "CreationTime is 2026-11-02 03:00:00, without a time zone"),
        ("CreationTime", "9" * 5_000, "Unable to calculate correct timezone offset"),
    ],
)
def test_a_member_of_another_type_is_named(member, value, named):
    """A newer service is told from a broken one by its words."""
    respond("DescribeTrainingJob", {**DESCRIPTION, member: value})
    with pytest.raises(StateUnknown, match=named) as raised:
        SageMakerJobs().describe("gpt")
    assert len(str(raised.value)) < 500


def test_of_a_list_one_odd_status_hides_no_other_job():
    """A summary without its status, or with a new one, is of a job all the same."""
    summary = {"TrainingJobArn": "arn", "CreationTime": 1769860620}
    summaries = [{**summary, "TrainingJobName": "a"}, {**summary, "TrainingJobName": "b", "TrainingJobStatus": "New"}]
    respond("ListTrainingJobs", {"TrainingJobSummaries": [*summaries, {**summaries[0], "TrainingJobName": "c"}]})
    assert list(SageMakerJobs().changed_since(NOON)) == ["a", "b", "c"]


@pytest.mark.parametrize("body", [{}, {"Tags": [{"Key": 3, "Value": "x"}]}, {"Tags": [{"Key": "a"}]}, {"Tags": 3}])
def test_tags_that_are_none_blind(body):
    """An unread tag must not pass for an absent one."""
    respond("ListTags", body)
    with pytest.raises(StateUnknown, match="ListTags"):
        SageMakerJobs().tags("arn")


def test_a_refusal_with_an_html_page_is_reported_in_one_line():
    """A proxy in between answers with a whole page: its beginning says enough."""
    respond("DescribeTrainingJob", b"<html>\n" + b"x" * 90_000, status=503)
    with pytest.raises(StateUnknown) as raised:
        SageMakerJobs().describe("gpt")
    assert len(str(raised.value)) < 2_000 and "\n" not in str(raised.value)
    respond("CreateTrainingJob", {"__type": "ValidationException", "message": {"why": ["not"]}}, status=400)
    with pytest.raises(RerailError, match="why"):
        SageMakerJobs().create({"TrainingJobName": "gpt"})


@pytest.mark.parametrize("body", [{}, {"Parameter": {}}, {"Parameter": "on"}, b"\xff", {"Parameter": {"Value": None}}])
def test_a_parameter_without_a_value_is_not_known(body):
    """No policy is made of it, and the pause stays as it was known last."""
    respond("GetParameter", {"Parameter": {"Value": "on"}})
    minutes = iter((NOON, NOON.replace(hour=13)))
    pause = SsmPause("/rerail/switch", lambda: next(minutes))
    assert not pause.is_paused()
    respond("GetParameter", body)
    assert not pause.is_paused()
    with pytest.raises(StateUnknown, match="GetParameter of policy 'default'"):
        SsmPolicies("/rerail/policies", lambda: NOON).get("default")


@pytest.mark.parametrize(
    "body",
    [
        {},
        {"MetricDataResults": [{"Id": "q0"}]},
        {"MetricDataResults": [{"Id": "q0", "Timestamps": [1769860620], "Values": []}]},
        {"MetricDataResults": [{"Id": "q0", "Timestamps": [1769860620], "Values": ["x"]}]},
    ],
)
def test_metrics_that_cannot_be_read_blind(body):
    """Half a series is no series."""
    respond("GetMetricData", body)
    with pytest.raises(StateUnknown, match="GetMetricData"):
        CloudWatchSeries().read(
            make_queries("gpt", MetricNames()), NOON, NOON.replace(minute=5), NOON - NOON.replace(hour=11)
        )


def test_a_row_of_the_table_that_makes_no_sense_is_one_run_that_cannot_be_read():
    """Without its text, with a text that is none, with a number for a name: the rows beside it are read."""
    good = answers._world().runs.records["gpt"]
    texts = [{}, {"S": "{"}, {"S": "[" * 20_000}, {"B": "eA=="}, {"S": good.replace('"number":1', '"number":"1"')}]
    texts += [{"S": good.replace('"attempts":[', '"attempts":[],"x":[')}, {"S": good.replace("+00:00", "")}]
    texts += [{"S": '{"schema": 99}'}]
    rows = [{"pk": {"S": f"run#{number}"}, "doc": text} for number, text in enumerate(texts)]
    respond("Query", {"Items": [*rows, {"pk": {"S": "run#gpt"}, "doc": {"S": good}}, {"pk": {"S": "run#bare"}}]})
    found = dict(DynamoRuns("Runs").open_runs((0,)))
    assert {name for name, run in found.items() if run} == {"gpt"}
    assert len(found) == len(texts) + 2


def test_a_page_without_rows_is_not_an_empty_table():
    """Else an answer that cannot be read would pass for a night in which nothing has to be watched."""
    respond("Query", {"Count": 0})
    with pytest.raises(InvalidResponse, match="Query"):
        list(DynamoRuns("Runs").open_runs((0,)))


def test_what_is_never_read_is_not_asked_for_ever():
    """A table that answers nothing of what it is asked ends in one error, not with the function's time."""
    asked = {"Runs": {"Keys": [{"pk": {"S": "watch#gpt"}, "sk": {"S": "watch"}}]}}
    respond("BatchGetItem", {"Responses": {}, "UnprocessedKeys": asked})
    with pytest.raises(Throttled):
        DynamoDetections("Runs").recall(["gpt"])
    job = {"Keys": [{"pk": {"S": "job#gpt"}, "sk": {"S": "job"}}], "ProjectionExpression": "pk"}
    respond("BatchGetItem", {"Responses": {}, "UnprocessedKeys": {"Runs": job}})
    with pytest.raises(Throttled):
        DynamoRuns("Runs").find_unknown_jobs(["gpt"])


def test_nothing_processed_is_known_in_any_order(monkeypatch):
    """DynamoDB does not say in which order it returns what is left."""
    keys, asked = [{"pk": {"S": name}, "sk": {"S": "watch"}} for name in ("watch#gpt", "watch#llm")], []

    def leave_all(RequestItems):
        asked.append(RequestItems)
        assert len(asked) < 4, "asked again and again"
        left = RequestItems["Runs"]
        turned = left[::-1] if isinstance(left, list) else {"Keys": left["Keys"][::-1]}
        return {"UnprocessedItems": {"Runs": turned}, "UnprocessedKeys": {"Runs": turned}}

    monkeypatch.setattr(clients.client("dynamodb"), "batch_get_item", leave_all)
    monkeypatch.setattr(clients.client("dynamodb"), "batch_write_item", leave_all)
    for ask in (lambda: list(read("Runs", keys)), lambda: write("Runs", keys)):
        asked.clear()
        with pytest.raises(Throttled):
            ask()


def test_what_is_never_written_is_not_sent_for_ever():
    """Nor a table that takes nothing."""
    item = {"pk": {"S": "watch#gpt"}, "sk": {"S": "watch"}}
    respond("BatchWriteItem", {"UnprocessedItems": {"Runs": [{"PutRequest": {"Item": item}}]}})
    with pytest.raises(Throttled):
        write("Runs", [item])


BUSY = {"ErrorCode": "InternalFailure", "ErrorMessage": "busy " * 1000}


@pytest.mark.parametrize(
    "body",
    [{}, {"FailedEntryCount": 0}, {"FailedEntryCount": 1, "Entries": []}, {"Entries": [None]}, {"Entries": [BUSY]}],
)
def test_a_notice_is_delivered_only_when_the_bus_confirms_it(body):
    """Whatever else it answers: the notice stays owed, and is told again."""
    respond("PutEvents", body)
    with pytest.raises(RuntimeError, match="the notice key was not accepted: (None|busy)") as error:
        EventBus("rerail").publish(Notice("gpt", answers.Severity.PAGE, "title", "body", "key", at=NOON))
    assert len(str(error.value)) < 1000


def test_a_log_line_without_a_time_blinds_the_log_alone():
    """What is drawn from it says that it could not be read."""
    respond(
        "DescribeLogStreams", {"logStreams": [{"logStreamName": "gpt/algo-1-1"}, {"logStreamName": "gpt/algo-²-1"}]}
    )
    answers.WIRE.responses["GetLogEvents"] = b'{"events": [{"message": "x", "timestamp": 1e300}]}'
    with pytest.raises(StateUnknown, match="the log gpt/algo"):
        CloudWatchLogs().tail("gpt", until=NOON, lines=5)


def test_a_log_without_a_name_blinds_the_logs_alone():
    """Of that job."""
    respond("DescribeLogStreams", {"logStreams": [{"logStreamName": 1700000000000}]})
    with pytest.raises(StateUnknown, match="the logs of gpt"):
        CloudWatchLogs().tail("gpt", until=NOON, lines=5)


@pytest.mark.parametrize("item", [{}, {"pk": None}, {"pk": {"S": None}}])
def test_a_run_without_a_name_hides_no_other(item):
    """It is blind, and the next is looked at."""
    respond("Query", {"Items": [item, {"pk": {"S": "run#gpt"}, "sk": {"S": "run"}, "doc": {"S": "{}"}}]})
    assert [run for _, run in DynamoRuns("Runs").open_runs((0,))] == [None, None]


def test_a_row_that_is_nothing_is_passed_over():
    """Null in a list is no row of the table, no stream of the log, and no wake-up that was taken."""
    respond("Query", {"Items": [None]})
    assert list(DynamoRuns("Runs").open_runs((0,))) == []
    respond("BatchGetItem", {"Responses": {"Runs": [None]}})
    assert DynamoDetections("Runs").recall(["gpt"]) == {}
    respond("DescribeLogStreams", {"logStreams": [None, {}]})
    assert CloudWatchLogs().tail("gpt", until=NOON, lines=5) == []
    respond("SendMessageBatch", {"Failed": [None]})
    with pytest.raises(RuntimeError, match="1 wake-ups were not accepted"):
        SqsQueue("https://sqs/1/signals").wake([{"run": "gpt"}], at=NOON)


@pytest.mark.parametrize("item", [{"doc": None}, {"doc": {}}, {"doc": {"B": None}}, {"doc": {"S": None}}])
def test_an_item_without_its_text_is_no_record(monkeypatch, item):
    """Of a run it is said by name; what is only remembered is begun afresh, and the next share is a minute away."""
    item = {**item, "version": {"N": "3"}}
    answers = {"get_item": {"Item": item}, "batch_get_item": {"Responses": {"runs": [item]}}}
    table = SimpleNamespace(**{name: lambda answer=answer, **_: answer for name, answer in answers.items()})
    for module in ("dynamodb", "hyperpod", "records"):
        monkeypatch.setattr(f"rerail.aws.{module}.client", lambda _: table)
    with pytest.raises(BadRecord):
        DynamoRuns("runs").load("gpt")
    assert DynamoClusters("runs").recall("pod") == ClusterRecord("pod", version=3)
    assert InvokedShards("runs").reports() == {}
