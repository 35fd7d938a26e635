"""Following: every line of every attempt once, in order, and the run's own end."""

from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime
from types import SimpleNamespace

from botocore.exceptions import ClientError

from cli.logbook import LOG_GROUP
from cli.submit.following import Follower
from rerail.model.run import Attempt, JobStatus, Run, RunState, TimelineEntry

NOON = datetime(2026, 1, 31, 12, tzinfo=UTC)
RUN = Run(id="gpt", policy="default", state=RunState.WATCHING, created_at=NOON, attempts=(Attempt(1, "gpt"),))


class World:
    """SageMaker, its logs and the supervisor's table, in a night that goes on whenever the follower sleeps."""

    class exceptions:
        class ResourceNotFoundException(Exception):
            """Of the log group."""

    def __init__(self, *night: Callable[["World"], None]) -> None:
        self.night = list(night)
        self.jobs: dict[str, tuple[str, str, str]] = {}
        self.streams: dict[str, list[str]] = {}
        self.run: Run | None = None
        self.entries: list[TimelineEntry] = []
        self.seconds, self.has_group = 0.0, True

    def sleep(self, seconds: float) -> None:
        self.seconds += seconds
        if self.night:
            self.night.pop(0)(self)

    def describe_training_job(self, *, TrainingJobName: str) -> dict[str, str]:
        status, secondary, reason = self.jobs[TrainingJobName]
        return {"TrainingJobStatus": status, "SecondaryStatus": secondary, "FailureReason": reason}

    def get_paginator(self, name: str) -> SimpleNamespace:
        return SimpleNamespace(paginate=lambda **asked: (call(**asked) for call in [getattr(self, name)]))

    def describe_log_streams(self, *, logGroupName: str, logStreamNamePrefix: str) -> dict:
        assert logGroupName == LOG_GROUP
        if not self.has_group:
            raise self.exceptions.ResourceNotFoundException
        names = [name for name in self.streams if name.startswith(logStreamNamePrefix)]
        return {"logStreams": [{"logStreamName": name} for name in names]}

    def get_log_events(self, *, logStreamName: str, nextToken: str = "0", **_: object) -> dict:
        """Pages of two, as CloudWatch gives pages; at the end the token stays."""
        seen = int(nextToken)
        events = self.streams[logStreamName][seen : seen + 2]
        return {"events": [{"message": text} for text in events], "nextForwardToken": str(seen + len(events))}

    def load(self, run: str) -> Run | None:
        return self.run

    def timeline(self, run: str) -> list[TimelineEntry]:
        return self.entries

    def decide(self, state: RunState, reason: str, *attempts: Attempt) -> None:
        before = self.run.state if self.run else state
        self.run = replace(self.run or RUN, state=state, attempts=attempts or (self.run or RUN).attempts)
        self.entries.append(TimelineEntry("gpt", len(self.entries) + 1, NOON, before, state, reason))


def job(status: str, secondary: str = "", reason: str = "", *, name: str = "gpt"):
    return lambda world: world.jobs.update({name: (status, secondary or status, reason)})


def printed(*lines: str, name: str = "gpt", host: str = "algo-1"):
    return lambda world: world.streams.setdefault(f"{name}/{host}-17", []).extend(lines)


def decided(state: RunState, reason: str, *attempts: Attempt):
    return lambda world: world.decide(state, reason, *attempts)


def followed(world: World, *, supervised: bool = True) -> tuple[Follower, list[str]]:
    follower = Follower(
        "gpt", "gpt", world, world, world if supervised else None, clock=lambda: world.seconds, sleep=world.sleep
    )
    return follower, [f"{news.source}> {news.text}" if news.source else news.text for news in follower.read_news()]


FIRST = Attempt(1, "gpt", status=JobStatus.FAILED)
SECOND = Attempt(2, "gpt-a002", status=JobStatus.COMPLETED)


def test_the_logs_of_all_attempts_are_printed_in_order():
    """The first attempt dies, the second goes on; each line is said once, with the decisions between them."""
    world = World(
        decided(RunState.WATCHING, "adopted gpt"),
        job("InProgress", "Training"),
        printed("step 1", "step 2", "step 3"),
        job("Failed", reason="InternalServerError"),
        decided(RunState.STARTING, "relaunched", FIRST, Attempt(2, "gpt-a002", status=JobStatus.IN_PROGRESS)),
        lambda world: (printed("step 4", name="gpt-a002")(world), printed("late line")(world)),
        lambda world: (
            job("Completed", name="gpt-a002")(world),
            decided(RunState.COMPLETED, "done", FIRST, SECOND)(world),
        ),
        printed("the last line", name="gpt-a002"),
    )
    job("InProgress", "Starting")(world)
    job("InProgress", "Starting", name="gpt-a002")(world)
    follower, lines = followed(world)
    assert [line for line in lines if ">" in line] == [
        *("gpt algo-1> step 1", "gpt algo-1> step 2", "gpt algo-1> step 3", "gpt algo-1> late line"),
        *("gpt-a002 algo-1> step 4", "gpt-a002 algo-1> the last line"),
    ]
    decisions = ["gpt is watching: adopted gpt", "gpt is Failed: InternalServerError", "gpt is starting: relaunched"]
    assert [line for line in lines if line in (*decisions, "gpt is completed: done")] == [
        *decisions,
        "gpt is completed: done",
    ]
    assert (follower.ended, follower.last_job) == ("completed", "gpt-a002")


def test_a_held_run_ends_with_its_reason():
    world = World(decided(RunState.HELD, "the same error twice", FIRST))
    job("Failed")(world)
    world.run = replace(RUN, attempts=(FIRST,))
    world.night[0] = lambda world: (
        decided(RunState.HELD, "the same error twice", FIRST)(world),
        setattr(world, "run", replace(world.run, hold_reason="the same error twice")),
    )
    follower, _ = followed(world)
    assert (follower.ended, follower.why) == ("held", "the same error twice")


def test_without_a_supervisor_the_job_itself_is_followed():
    """Its end is the end, once its last lines have arrived."""
    world = World(printed("step 1"), job("Completed"), printed("saved"))
    job("InProgress", "Training")(world)
    follower, lines = followed(world, supervised=False)
    assert lines == ["gpt is InProgress Training", "gpt algo-1> step 1", "gpt is Completed", "gpt algo-1> saved"]
    assert follower.ended == "completed"


def test_a_failed_job_without_a_run_is_waited_for():
    """The sweep takes a minute to find it; then the run goes on."""
    later = [lambda world: None] * 20
    world = World(
        *later,
        decided(RunState.WAITING, "adopted, relaunching", FIRST),
        lambda world: (
            job("Completed", name="gpt-a002")(world),
            decided(RunState.COMPLETED, "done", FIRST, SECOND)(world),
        ),
    )
    job("Failed")(world)
    follower, _ = followed(world)
    assert follower.ended == "completed"


def test_an_unreadable_state_is_reported_once_and_passes():
    """Throttled or offline: nothing is lost, and nothing ends."""
    refusal = ClientError({"Error": {"Code": "Throttling", "Message": "Rate exceeded"}}, "DescribeTrainingJob")
    world = World(lambda world: None, lambda world: None, lambda world: world.jobs.update(sound), job("Completed"))
    sound = {"gpt": ("InProgress", "Training", "")}
    real = world.describe_training_job

    def describe(*, TrainingJobName: str) -> dict[str, str]:
        if TrainingJobName not in world.jobs:
            raise refusal
        return real(TrainingJobName=TrainingJobName)

    world.describe_training_job = describe
    follower, lines = followed(world, supervised=False)
    assert len([line for line in lines if "cannot look now" in line]) == 1
    assert follower.ended == "completed"


def test_only_the_first_hosts_log_is_followed_without_remote_shells():
    """Reading dozens of streams would be throttled, and ten ranks say the same."""
    world = World(job("Completed"))
    job("InProgress")(world)
    printed("shell", host="algo-1-9/ssm")(world)
    for number in range(1, 11):
        printed(f"host {number}", host=f"algo-{number}")(world)
    _, lines = followed(world, supervised=False)
    assert [line for line in lines if ">" in line] == ["gpt algo-1> host 1"]
    few = World(job("Completed"))
    job("InProgress")(few)
    printed("one")(few)
    printed("two", host="algo-2")(few)
    _, lines = followed(few, supervised=False)
    assert [line for line in lines if ">" in line] == ["gpt algo-1> one", "gpt algo-2> two"]


def test_a_log_group_that_is_not_there_yet_is_no_error():
    world = World(lambda world: setattr(world, "has_group", True), printed("hello"), job("Completed"))
    world.has_group = False
    job("InProgress")(world)
    _, lines = followed(world, supervised=False)
    assert "gpt algo-1> hello" in lines
