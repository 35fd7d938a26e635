"""`rerail drill`: what it asks for, what it compares, and when it says that nothing is proven."""

import json
import math
import re
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from functools import partial

import pytest
from moto import mock_aws
from typer.testing import CliRunner

from cli import drill, place
from cli.logbook import LOG_GROUP, JobLogLine
from cli.losses import Losses, find_largest_difference
from cli.main import app
from cli.place import Place
from rerail.aws.clients import client
from rerail.model.run import Attempt, JobStatus, Proposal, ProposedAction, Run, RunState, TimelineEntry
from rerail.model.signals import OperatorVerb
from tests.aws.places import TABLE, make_bucket, make_table

NOW = datetime.now(UTC).replace(microsecond=0)
SECOND = timedelta(seconds=1)
OUTPUTS = {"TableName": TABLE, "PolicyPrefix": "/rerail/policies", "PauseParameter": "/rerail/switch"}
FIRST = Attempt(1, "gpt", JobStatus.IN_PROGRESS, "Training", NOW, NOW, agent=True)
RUN = Run("gpt", "default", RunState.WATCHING, NOW, (FIRST,), checkpoint_uri="s3://bucket/gpt/", version=1)


class Supervised:
    """A deployment whose supervisor does what it is asked to at once; the second job prints what it is told to."""

    def __init__(self) -> None:
        self.where = Place("stack Rerail", OUTPUTS, is_local=True)
        self.asked: list[tuple[str, int | None]] = []
        self.again = [(step, 1 / step) for step in range(61, 70)]
        self.refusal, self.reason = "", "emergency"
        self.found_step: int | None = 50  # the step in the newest folder of a script without an agent

    def ask(self, where: Place, run: str, verb: OperatorVerb, why: str, *, quietly: bool = False, **more: int) -> str:
        self.asked.append((verb.value, more.get("step")))
        if verb is OperatorVerb.SAVE:
            self.save(60, self.reason)
            self.print("gpt", [(step, 1 / step) for step in range(61, 70)])
        elif self.refusal:
            self.keep(self.run(), f"ada said drill, but {self.refusal}")
        else:
            before = self.run()
            first = replace(before.current, status=JobStatus.STOPPED)
            start = more["step"] if before.current.agent else self.found_step
            second = replace(FIRST, number=2, job_name="gpt-a002", resumed_from_step=start, drill=True)
            self.keep(replace(before, attempts=(first, second)), "restart drill", {"type": "StopJob"})
            self.print("gpt-a002", self.again)
        return "e1"

    def run(self) -> Run:
        found = self.where.runs.load("gpt")
        assert found
        return found

    def keep(self, run: Run, reason: str, *actions: dict[str, str]) -> None:
        at = place.now() - 2 * SECOND
        after = replace(run, version=run.version + 1)
        entry = TimelineEntry(
            "gpt", after.version, at, run.state, run.state, reason, signal={"id": "e1"}, actions=actions
        )
        self.where.runs.save(after, entry)

    def save(self, step: int, reason: str = "periodic") -> None:
        facts = {"schema": 1, "step": step, "attempt": 1, "saved_at": f"{NOW:%Y-%m-%dT%H:%M:%SZ}", "reason": reason}
        text = json.dumps({**facts, "files": [{"name": "a", "bytes": 1}]}).encode()
        for name, body in (("a", b"1"), ("manifest.json", text)):
            client("s3").put_object(Bucket="bucket", Key=f"gpt/step-{step:09d}/{name}", Body=body)

    def print(self, job: str, losses: list[tuple[int, float]], *, later_s: float = 0.0) -> None:
        stream = f"{job}/algo-1-17"
        if not client("logs").describe_log_streams(logGroupName=LOG_GROUP, logStreamNamePrefix=stream)["logStreams"]:
            client("logs").create_log_stream(logGroupName=LOG_GROUP, logStreamName=stream)
        at = int((place.now().timestamp() + later_s) * 1000)
        lines = [{"timestamp": at, "message": f"rerail step={step} loss={loss!r}"} for step, loss in losses]
        client("logs").put_log_events(logGroupName=LOG_GROUP, logStreamName=stream, logEvents=lines)


@pytest.fixture
def supervised(monkeypatch):
    with mock_aws():
        make_table(client("dynamodb"))
        client("ssm").put_parameter(Name="/rerail/switch", Value="on", Type="String")
        client("ssm").put_parameter(Name="/rerail/policies/default", Value="mode = 'act'", Type="String")
        make_bucket("bucket")
        client("logs").create_log_group(logGroupName=LOG_GROUP)
        found = Supervised()
        found.where.runs.save(RUN, None, {})
        found.save(50)
        found.print("gpt", [(step, 1 / step) for step in range(41, 56)])
        monkeypatch.setattr(place, "find", lambda *, local: found.where)
        monkeypatch.setattr(drill, "ask", found.ask)
        monkeypatch.setattr(drill.RestartDrill, "_losses_of", lambda self, job: self._losses.setdefault(job, Losses()))
        seconds = [0.0]
        pass_by = lambda pause: seconds.append(seconds[-1] + pause)  # noqa: E731
        monkeypatch.setattr(
            drill, "RestartDrill", partial(drill.RestartDrill, clock=lambda: seconds[-1], sleep=pass_by)
        )
        yield found


def drilled(*words: str):
    """The exit status and the proof."""
    answer = CliRunner().invoke(app, ["drill", "gpt", "--steps", "5", "--yes", "--json", "--patience", "3s", *words])
    return answer.exit_code, json.loads(answer.stdout) if answer.stdout.startswith("{") else answer.stderr


def test_what_is_trained_twice_with_the_same_losses_is_proven(supervised):
    """Saved, trained on, stopped and compared; lost are all steps since the save."""
    status, proof = drilled()
    assert (status, proof["proven"], supervised.asked) == (0, True, [("save", None), ("drill", 60)])
    assert (proof["from_step"], proof["forced"], proof["steps_compared"], proof["lost_steps"]) == (60, True, 5, 9)
    assert (proof["largest_difference"], proof["jobs"]) == (0.0, ["gpt", "gpt-a002"])
    assert 0 < proof["mttr_s"] < 30


def test_people_get_a_page_and_are_asked_first(supervised):
    answer = CliRunner().invoke(app, ["drill", "gpt", "--steps", "5"], input="y\n")
    assert answer.exit_code == 0, answer.output
    assert "gpt is stopped and relaunched: 5 steps or more are trained twice" in answer.stderr
    assert "proven restartable" in answer.stdout and "saved for the drill" in answer.stdout


def test_a_no_at_the_prompt_drills_nothing(supervised):
    answer = CliRunner().invoke(app, ["drill", "gpt"], input="n\n")
    assert (answer.exit_code, supervised.asked) == (2, [])


@pytest.mark.parametrize(
    ("again", "words", "why"),
    [
        ([(step, 1.03 / step) for step in range(61, 70)], (), "differ by 3.00%, of at most 1.00%"),
        ([(step, 1.03 / step) for step in range(61, 70)], ("--tolerance", "0.05"), ""),
        ([(step, math.nan) for step in range(61, 70)], (), "differ by inf%"),
        ([(step, 1 / step) for step in range(1, 70)], (), "it began again at step 1, and not after step 60"),
        ([(61, 1 / 61)], (), "gpt-a002 has not reached step 65 in time"),
    ],
    ids=["differ", "tolerated", "no number", "from nothing", "too few"],
)
def test_other_losses_and_other_steps_prove_nothing(supervised, again, words, why):
    """JSON has no infinity."""
    supervised.again = again
    status, proof = drilled(*words)
    assert (status, proof["proven"]) == (int(bool(why)), not why) and why in proof["why"]
    assert "inf" not in why or proof["largest_difference"] is None


def test_metrics_that_the_jobs_do_not_define_are_not_waited_for(supervised):
    attempts = (replace(FIRST, job_name="other", agent=False),)
    supervised.keep(replace(RUN, attempts=attempts, defined_metrics=("loss",)), "")
    status, proof = drilled("--patience", "60m")
    assert status == 1 and "its jobs define no metric named step: print" in proof["why"]


@pytest.mark.threat("T14")
def test_an_expression_that_takes_too_long_ends_the_drill(supervised, monkeypatch):
    monkeypatch.setattr("cli.training_logs.expressions.WITHIN_S", 0.1)
    monkeypatch.setattr(drill.RestartDrill.func, "_losses_of", lambda self, job: Losses(step=re.compile("(x+x+)+y")))
    lines = [{"timestamp": int(place.now().timestamp() * 1000), "message": "x" * 60}]
    client("logs").put_log_events(logGroupName=LOG_GROUP, logStreamName="gpt/algo-1-17", logEvents=lines)
    status, proof = drilled()
    assert status == 1 and "takes too long" in proof["why"]
    assert supervised.asked == []


def test_a_refusal_by_the_supervisor_is_reported(supervised):
    supervised.refusal = "Rerail is paused for this account: repeat the command after `rerail resume`"
    status, proof = drilled()
    assert status == 1 and supervised.refusal in proof["why"]


def test_a_save_of_the_scripts_own_at_that_very_step_does_as_well(supervised):
    """Its manifest says nothing of the wish."""
    supervised.reason = "periodic"
    status, proof = drilled("--patience", "20s")
    assert (status, proof["from_step"], proof["forced"]) == (0, 60, False)


def test_a_script_without_an_agent_starts_from_its_own_newest_save(supervised):
    """Nobody is asked to save."""
    supervised.where.runs.save(replace(RUN, attempts=(replace(FIRST, agent=False),), version=2), None)
    supervised.print("gpt", [(56, 1 / 56)])
    supervised.again = [(step, 1 / step) for step in range(51, 57)]
    status, proof = drilled()
    assert (status, proof["from_step"], proof["forced"], supervised.asked) == (0, 50, False, [("drill", 50)])


@pytest.mark.parametrize(("first", "status"), [(48, 0), (41, 1)], ids=["resumed", "began again"])
def test_a_script_with_one_file_is_restarted_from_it(supervised, first, status):
    """The file has no step: the step that was logged before it was saved, then the new job's own first one."""
    for name in ("a", "manifest.json"):
        client("s3").delete_object(Bucket="bucket", Key=f"gpt/step-000000050/{name}")
    client("s3").put_object(Bucket="bucket", Key="gpt/checkpoint.pth.tar", Body=b"x" * 100)
    supervised.where.runs.save(replace(RUN, attempts=(replace(FIRST, agent=False),), version=2), None)
    supervised.found_step = None
    supervised.print("gpt", [(step, 1 / step) for step in range(56, 70)], later_s=3.0)
    supervised.again = [(step, 1 / step) for step in range(first, 70)]
    code, proof = drilled()
    assert (code, proof["proven"]) == (status, status == 0), proof
    assert proof["from_step"] == (47 if status == 0 else 0)
    assert ("began again at step 41" in proof["why"]) == bool(status)


ASKED = Proposal("p7", ProposedAction.STOP, 1, "stop the job", "slow", NOW, NOW)
REFUSED = [
    ({"state": RunState.HELD, "hold_reason": "ada said hold"}, "gpt is held: ada said hold"),
    ({"state": RunState.SAVING}, "gpt does not train (saving, Training)"),
    ({"attempts": (replace(FIRST, secondary="Restarting"),)}, "gpt does not train (watching, Restarting)"),
    ({"proposal": ASKED}, "p7 waits for an answer"),
    ({"checkpoint_uri": ""}, "save nowhere that Rerail knows of"),
]


@pytest.mark.parametrize(("facts", "error"), REFUSED)
def test_a_run_that_must_not_be_drilled_is_let_be(supervised, facts, error):
    supervised.keep(replace(RUN, **facts), "")
    status, said = drilled()
    assert (status, supervised.asked) == (2, []) and error in said


def test_while_paused_no_drill_is_asked_for(supervised):
    client("ssm").put_parameter(Name="/rerail/switch", Value="off", Overwrite=True, Type="String")
    status, said = drilled()
    assert (status, supervised.asked) == (2, []) and "Rerail is paused for this account" in said
    assert drilled("--patience", "soon")[0] == 2


def lines(*texts: str, **definitions: str) -> Losses:
    losses = Losses.of([{"Name": name, "Regex": regex} for name, regex in definitions.items()])
    for text in texts:
        losses.read(JobLogLine("gpt", "algo-1", text, NOW))
    return losses


def test_losses_are_read_off_our_line_or_by_the_jobs_own_definitions():
    ours = lines("[0] rerail step=7 loss=2.5 grad_norm=1", "rerail step=8 tokens_per_s=3 loss=nan", "step=9 loss=1")
    assert ours.by_step[7] == 2.5 and math.isnan(ours.by_step[8]) and ours.last_step == 8
    theirs = lines("it 3", "lm_loss: 1.5", "it 4 lm_loss: 1.25", step=r"it (\d+)", loss=r"lm_loss: ([0-9.]+)")
    assert (theirs.by_step, theirs.first_step, theirs.last_step) == ({3: 1.5, 4: 1.25}, 3, 4)
    for unreadable in (r"it (\d+", "it (x{99999999999})"):
        assert lines("it 3 x", step=unreadable, loss="(x)").by_step == {}, "what Python cannot read finds nothing"


def test_the_largest_difference_is_one_of_shares():
    """A small loss that doubles counts more than a great one that moves a little."""
    before, after = Losses(by_step={1: 100.0, 2: 0.1}), Losses(by_step={1: 101.0, 2: 0.2})
    assert find_largest_difference(before, after, [1, 2]) == (2, 0.1, 1.0)
