"""Adoption: which jobs become runs, which do not, and who is told why."""

from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from types import SimpleNamespace

import pytest
from hypothesis import example, given

from rerail.decisions.adoption import Adopted, AdoptionRefused, adopt, list_first_job_names
from rerail.messages.messages import JobStateChanged
from rerail.model.actions import Severity
from rerail.model.errors import PolicyError, UnknownPolicy
from rerail.model.policy import Mode, Policy
from rerail.model.run import Attempt, Job, JobStatus, Ledger, RunState, make_job_name, make_run_id
from rerail.requests.relaunch import CLUSTER_TAG
from tests.core.strategies import job_names
from tests.fakes import World
from tests.raising import raising

NOON = datetime(2026, 1, 31, 12, tzinfo=UTC)
JOB = Job(
    "gpt", "arn:gpt", JobStatus.IN_PROGRESS, "Training", NOON - timedelta(minutes=5), checkpoint_uri="s3://bucket/gpt/"
)
SUPERVISED = {"rerail:policy": "night", "team": "nlp"}


@dataclass
class Policies:
    """One policy beside the default, and one that is broken."""

    def get(self, name: str) -> Policy:
        if name == "broken":
            raise PolicyError("policy 'broken': field 'mode' is 'x'; it must be one of act, observe")
        if name not in ("default", "night"):
            raise UnknownPolicy(f"no policy {name!r} is deployed")
        return Policy(name=name)


def adopt_job(
    job: Job = JOB, tags=SUPERVISED, *, description=None, taken: bool = False, at=NOON
) -> Adopted | AdoptionRefused:
    return adopt(job, description or {}, tags, Policies(), taken=taken, at=at)


def test_a_tagged_job_becomes_the_first_attempt_of_a_run():
    enrolled = adopt_job(replace(JOB, instance_count=4))
    assert isinstance(enrolled, Adopted)
    assert enrolled.reason == "adopted gpt under policy 'night'"
    run = enrolled.run
    assert (run.id, run.policy, run.state, run.created_at) == ("gpt", "night", RunState.STARTING, NOON)
    assert run.attempts == (Attempt(1, "gpt", created_at=JOB.created_at, instance_count=4),)
    assert run.checkpoint_uri == "s3://bucket/gpt/"
    assert run.ledger == Ledger(starts=(JOB.created_at,))
    assert (run.observe_only, run.pending) == (False, ())


@pytest.mark.parametrize("tags", [{}, {"team": "nlp"}, {"rerail:run": "gpt"}, {"rerail:Policy": "night"}])
def test_an_untagged_job_is_never_touched(tags):
    assert adopt_job(tags=tags) == AdoptionRefused("it has no tag rerail:policy")


def test_sagemaker_is_not_asked_about_each_event_of_a_job_that_is_not_supervised():
    """A tuning job has thousands of them; its end is looked at again, and so is a tag that the event shows."""
    world, asked = World(), []
    world.sagemaker.submit("plain", policy=None)
    describe = world.sagemaker.describe
    world.sagemaker.describe = lambda job: asked.append(job) or describe(job)
    for _ in range(8):
        world.supervisor().handle(JobStateChanged("plain", is_routine=True))
    assert asked == ["plain"]
    world.sagemaker.job_tags["plain"] = {"rerail:policy": "default"}
    assert world.supervisor().handle(JobStateChanged("plain")).id == "plain"
    world.supervisor().handle(JobStateChanged("plain", is_routine=True))
    assert len(asked) > 2, "a run is visited with each event"


@pytest.mark.threat("T28")
@pytest.mark.parametrize("tags", [{"rerail:run": "x"}, {"rerail:policy": "absent"}, {CLUSTER_TAG: "no cluster!"}])
def test_a_thousand_jobs_that_are_not_adopted_as_asked_send_ten_notices(tags):
    """Anybody can tag jobs; the last notice says that others are left out, and the next hour has ten of its own."""
    world = World()
    for number in range(30):
        name = f"job{100 - number}"
        world.sagemaker.submit(name)
        world.sagemaker.job_tags[name] = {"rerail:policy": "default", **tags}
        world.supervisor().handle(JobStateChanged(name))
        world.supervisor().handle(JobStateChanged(name))
        world.clock.pass_by(timedelta(seconds=1))
    assert len(world.bus.notices) == 10
    assert ["left out until 01:00 UTC" in notice.body for notice in world.bus.notices] == [False] * 9 + [True]
    world.clock.pass_by(timedelta(hours=1))
    world.sagemaker.submit("later")
    world.sagemaker.job_tags["later"] = {"rerail:policy": "default", **tags}
    world.supervisor().handle(JobStateChanged("later"))
    assert len(world.bus.notices) == 11


@pytest.mark.parametrize("copied", ["old", ""])
def test_a_job_that_copied_our_tags_is_refused_aloud(copied):
    """A job cloned by hand from a successor is not the run's: its owner is told which tag to remove."""
    refused = adopt_job(tags={**SUPERVISED, "rerail:run": copied})
    assert refused.reason == (
        "its tag rerail:run names a run that did not launch it; remove the tag to have it supervised"
    )
    assert refused.notice.severity is Severity.INFORM
    assert refused.notice.title == "gpt: not supervised"
    assert refused.notice.body == f"gpt is not supervised: {refused.reason}"
    assert refused.notice.key == "gpt/refused"


@pytest.mark.parametrize(
    ("description", "reason"),
    [
        ({"TuningJobArn": "arn:x"}, "it belongs to a hyperparameter tuning job, which launches its own jobs"),
        ({"AutoMLJobArn": "arn:x"}, "it belongs to an AutoML job, which launches its own jobs"),
        ({"ServerlessJobConfig": {"JobType": "x"}}, "it is a serverless customization job, whose machines SageMaker"),
    ],
)
def test_a_job_that_cannot_be_relaunched_is_refused_aloud(description, reason):
    """Better to say so at its start than when it dies at night."""
    refused = adopt_job(description=description)
    assert refused.reason.startswith(reason)
    assert refused.reason.endswith("; remove the tag rerail:policy")
    assert refused.notice and reason in refused.notice.body


@pytest.mark.parametrize("status", [JobStatus.COMPLETED, JobStatus.STOPPED, JobStatus.DELETING])
def test_a_job_that_had_ended_is_left_alone(status):
    """What ended well, or by somebody's will, before it was heard of needs nobody; nobody is told either."""
    assert adopt_job(replace(JOB, status=status)) == AdoptionRefused(f"it had ended ({status}) before it was heard of")


@pytest.mark.parametrize("status", [JobStatus.IN_PROGRESS, JobStatus.STOPPING, JobStatus.FAILED, JobStatus.UNKNOWN])
def test_a_job_that_may_still_need_us_is_adopted(status):
    """Also one that failed within the last hour: its events may have been lost."""
    ended = NOON - timedelta(minutes=60) if status is JobStatus.FAILED else None
    assert isinstance(adopt_job(replace(JOB, status=status, ended_at=ended)), Adopted)


def test_an_old_failure_is_not_dug_up():
    old = replace(JOB, status=JobStatus.FAILED, ended_at=NOON - timedelta(minutes=61))
    assert adopt_job(old) == AdoptionRefused("it failed too long before it was heard of")


@pytest.mark.parametrize(
    ("asked", "problem"),
    [
        ("nihgt", "there is no policy 'nihgt'"),
        ("", "there is no policy ''"),
        ("broken", "policy 'broken': field 'mode' is 'x'; it must be one of act, observe"),
    ],
)
def test_a_policy_that_cannot_be_had_makes_an_observer(asked, problem):
    """The default's thresholds, no action, and one notice that says what to correct, beside one of another tag."""
    enrolled = adopt_job(tags={"rerail:policy": asked, CLUSTER_TAG: "my cluster!"})
    assert isinstance(enrolled, Adopted)
    assert (enrolled.run.policy, enrolled.run.observe_only) == ("default", True)
    assert enrolled.reason == f"adopted gpt under policy 'default', observing only: {problem}"
    notice, other = enrolled.run.pending
    assert other.key == "gpt/cluster"
    assert (notice.severity, notice.title, notice.key) == (Severity.INFORM, "gpt: observing only", "gpt/policy")
    assert notice.body == enrolled.reason
    assert notice.todo == "Deploy that policy or fix the tag rerail:policy, then start the job again"
    unread = SimpleNamespace(get=raising(PolicyError("no bucket")))
    assert adopt(JOB, {}, SUPERVISED, unread, taken=False, at=NOON).run.last_policy.mode is Mode.OBSERVE


@given(job_names)
@example("a" * 43 + "--" + "b" * 18)
def test_names_leave_room_for_successors(name):
    """The first job is found by the run's id; under a taken name a command replaces what the mailbox may hold."""
    for taken in (False, True):
        run = adopt_job(replace(JOB, name=name), taken=taken).run
        assert name in (list_first_job_names(run.id) or (name,))
        assert len(run.pending) == taken
        assert len(make_job_name(run.id, 999)) <= 63
        assert run.current.job_name == name
        assert (run.id == make_run_id(name)) == (not taken)
