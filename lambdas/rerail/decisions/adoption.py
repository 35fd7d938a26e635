"""Adopt tagged jobs: each becomes the first attempt of a new run."""

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import Any

from rerail.decisions.decision import make_command
from rerail.model.actions import Notify, PostCommand, Severity
from rerail.model.cluster_names import is_cluster_named
from rerail.model.errors import PolicyError, UnknownPolicy
from rerail.model.mailbox import CommandKind
from rerail.model.policy import Mode, Policy
from rerail.model.rate_limit import ADOPTION_NOTICES, MIN_RETENTION
from rerail.model.run import Attempt, Job, JobStatus, Ledger, Run, RunState, make_run_id
from rerail.model.runbooks import Runbook
from rerail.ports import Policies
from rerail.requests.relaunch import CLUSTER_TAG, POLICY_TAG, RUN_TAG, find_refusal

# A job that failed longer ago than this is not adopted: Rerail was not supervising it when it failed.
MAX_FAILURE_AGE = timedelta(hours=1)
# How `_make_run` and `make_run_id` change a name.
DATED, SHORTENED = re.compile(r"-[0-9]{12}$"), re.compile(r".{40,}-[0-9a-f]{8}")


@dataclass(frozen=True, slots=True)
class AdoptionRefused:
    """The job will not be supervised."""

    reason: str
    notice: Notify | None = None  # sent where the job's tags requested supervision


@dataclass(frozen=True, slots=True)
class Adopted:
    """A new run for the job."""

    run: Run
    reason: str  # why it was adopted, and why it is only observed, if so


def adopt(
    job: Job, description: Mapping[str, Any], tags: Mapping[str, str], policies: Policies, *, taken: bool, at: datetime
) -> Adopted | AdoptionRefused:
    """Decide whether a job without a run becomes one.

    `taken` says that another run has the job's name as its id already.
    """
    policy_name = tags.get(POLICY_TAG)
    if policy_name is None:
        return AdoptionRefused(f"it has no tag {POLICY_TAG}")
    if RUN_TAG in tags:
        return refuse(
            job, f"its tag {RUN_TAG} names a run that did not launch it; remove the tag to have it supervised"
        )
    if reason := find_refusal(description):
        return refuse(job, f"{reason}; remove the tag {POLICY_TAG}")
    if job.status in (JobStatus.COMPLETED, JobStatus.STOPPED, JobStatus.DELETING):
        return AdoptionRefused(f"it had ended ({job.status}) before it was heard of")
    if job.ended_at and at - job.ended_at > MAX_FAILURE_AGE:
        return AdoptionRefused("it failed too long before it was heard of")
    policy, problem = _choose_policy(policy_name, policies)
    uri = job.checkpoint_uri
    return _with_cluster(_make_run(job, policy, problem, uri, taken=taken, at=at), tags.get(CLUSTER_TAG, ""))


def _choose_policy(name: str, policies: Policies) -> tuple[Policy, str]:
    """Return the policy by name, or the default policy and why the named one cannot be used."""
    try:
        return policies.get(name), ""
    except UnknownPolicy:
        problem = f"there is no policy {name!r:.100}"
    except PolicyError as error:
        problem = str(error)
    try:
        return policies.get("default"), problem
    except PolicyError:
        return Policy(mode=Mode.OBSERVE), problem


def list_first_job_names(run_id: str) -> tuple[str, ...]:
    """Return what the first job of a run with this id may be called; () if a part of its name was left out."""
    if SHORTENED.fullmatch(run_id):
        return ()
    return tuple(dict.fromkeys((run_id, DATED.sub("", run_id))))


def is_first_job_of_rebuilt(run: Run, job: Job) -> bool:
    """Return whether a run that was rebuilt from a later attempt began with this job, whose name its id shortens.

    As a separate run it would be relaunched into the same folder.
    """
    newest = run.current.created_at
    is_rebuilt = run.attempts[0].created_at is None and run.id == make_run_id(job.name) != job.name
    return is_rebuilt and newest is not None and job.created_at < newest


def _make_run(job: Job, policy: Policy, problem: str, uri: str, *, taken: bool, at: datetime) -> Adopted:
    """Return the new run; with a `problem` it is only observed."""
    # A name may be used again after DeleteTrainingJob: the newer job is another run.
    name = make_run_id(f"{job.name}-{job.created_at:%Y%m%d%H%M}" if taken else job.name)
    reason = f"adopted {job.name} under policy '{policy.name}'"
    notices: tuple[Notify, ...] = ()
    if problem:
        reason += f", observing only: {problem}"
        notice = Notify(
            severity=Severity.INFORM,
            title=f"{name}: observing only",
            body=reason,
            key=f"{name}/policy",
            runbook=Runbook.OBSERVING,
            did="watching and sending notices, nothing else",
            todo=f"Deploy that policy or fix the tag {POLICY_TAG}, then start the job again",
        )
        notices = (notice,)
    run = Run(
        id=name,
        policy=policy.name,
        state=RunState.STARTING,
        created_at=at,
        attempts=(Attempt(1, job.name, created_at=job.created_at, instance_count=job.instance_count),),
        checkpoint_uri=uri,
        max_runtime_s=job.max_runtime_s,
        ledger=Ledger(starts=(job.created_at,)),
        observe_only=bool(problem),
        last_policy=policy,
        pending=notices,
    )
    command = make_command(run, CommandKind.TRAIN, at=at)
    # A user's job lacks the policy's settings, and under a taken name the mailbox may still hold an older command.
    if taken or command.settings:
        run = replace(run, pending=(*notices, PostCommand(command)))
    return Adopted(run, reason)


def _with_cluster(adopted: Adopted, cluster: str) -> Adopted:
    """Return the run with the HyperPod cluster that its tag names; send a notice if the tag is malformed."""
    run = adopted.run
    if not cluster or is_cluster_named(cluster):
        return replace(adopted, run=replace(run, hyperpod=cluster))
    notice = Notify(
        severity=Severity.INFORM,
        title=f"{run.id}: its tag {CLUSTER_TAG} names no cluster",
        body=f"the tag {CLUSTER_TAG} is {cluster[:100]!r}, which is neither the name nor the ARN of a HyperPod cluster",
        key=f"{run.id}/cluster",
        runbook=Runbook.HYPERPOD,
        did="supervising the run, without a cluster that it depends on",
        todo=f"Write the cluster's name into the tag {CLUSTER_TAG} of the next job",
    )
    return replace(adopted, run=replace(run, pending=(*run.pending, notice)))


def refuse(job: Job, reason: str) -> AdoptionRefused:
    """Refuse to adopt a job that requested supervision, with a notice."""
    notice = Notify(
        Severity.INFORM, f"{job.name}: not supervised", f"{job.name} is not supervised: {reason}", f"{job.name}/refused"
    )
    return AdoptionRefused(reason, notice)


def with_limit(notice: Notify, number: int, at: datetime) -> Notify:
    """Return the notice with this number within the hour; the last one says that further ones are left out."""
    if number < ADOPTION_NOTICES:
        return notice
    until = f"{at + MIN_RETENTION:%H:%M} UTC"
    more = f"{number} jobs have had such a notice within the hour, so further ones may be left out until {until}; "
    return replace(notice, body=f"{notice.body}. {more}`rerail doctor JOB` says why a job is not supervised")
