"""Adoption: a tagged job becomes the first attempt of a run when it is first heard of."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import Any

from rerail.decisions.decision import make_command
from rerail.hyperpod.events import names_cluster
from rerail.model.actions import Notify, PostCommand, Severity
from rerail.model.errors import PolicyError, UnknownPolicy
from rerail.model.mailbox import CommandKind
from rerail.model.policy import Policy
from rerail.model.run import Attempt, Job, JobStatus, Ledger, Run, RunState, run_id
from rerail.model.runbooks import Runbook
from rerail.ports import Policies
from rerail.requests.relaunch import CLUSTER_TAG, POLICY_TAG, RUN_TAG, reason_to_refuse

# A job that failed longer ago than this was not failing on our watch.
RECENT = timedelta(hours=1)


@dataclass(frozen=True, slots=True)
class AdoptionRefused:
    """The job will not be supervised; `notice` says so to people where they asked for supervision."""

    reason: str
    notice: Notify | None = None


@dataclass(frozen=True, slots=True)
class Adopted:
    """The new run, why it is as it is, and what people should know of it."""

    run: Run
    reason: str


def adopt(
    job: Job, description: Mapping[str, Any], tags: Mapping[str, str], policies: Policies, *, taken: bool, at: datetime
) -> Adopted | AdoptionRefused:
    """Decide on a job that no run knows; `taken` says that a run of the natural name exists already."""
    asked = tags.get(POLICY_TAG)
    if asked is None:
        return AdoptionRefused(f"it has no tag {POLICY_TAG}")
    if RUN_TAG in tags:
        return _refused(
            job, f"its tag {RUN_TAG} names a run that did not launch it; remove the tag to have it supervised"
        )
    if reason := reason_to_refuse(description):
        return _refused(job, f"{reason}; remove the tag {POLICY_TAG}")
    if job.status in (JobStatus.COMPLETED, JobStatus.STOPPED, JobStatus.DELETING):
        return AdoptionRefused(f"it had ended ({job.status}) before it was heard of")
    if job.ended_at and at - job.ended_at > RECENT:
        return AdoptionRefused("it failed too long before it was heard of")
    policy, problem = _policy(asked, policies)
    place = job.checkpoint_uri
    return _depending(_enrolled(job, policy, problem, place, taken=taken, at=at), tags.get(CLUSTER_TAG, ""))


def _policy(asked: str, policies: Policies) -> tuple[Policy, str]:
    try:
        return policies.get(asked), ""
    except UnknownPolicy:
        return policies.get("default"), f"there is no policy {asked!r:.100}"
    except PolicyError as error:
        return policies.get("default"), str(error)


def _enrolled(job: Job, policy: Policy, problem: str, place: str, *, taken: bool, at: datetime) -> Adopted:
    # A name may be used again after DeleteTrainingJob: the newer job is another run.
    name = run_id(f"{job.name[:45].rstrip('-')}-{job.created_at:%Y%m%d%H%M}" if taken else job.name)
    reason = f"adopted {job.name} under policy '{policy.name}'"
    notices: tuple[Notify, ...] = ()
    if problem:
        reason += f", observing only: {problem}"
        tell = Notify(
            severity=Severity.INFORM,
            title=f"{name}: observing only",
            body=reason,
            key=f"{name}/policy",
            runbook=Runbook.OBSERVING,
            did="watching and telling, nothing else",
            todo=f"Deploy that policy or mend the tag {POLICY_TAG}, then start the job again",
        )
        notices = (tell,)
    run = Run(
        id=name,
        policy=policy.name,
        state=RunState.STARTING,
        created_at=at,
        attempts=(Attempt(number=1, job_name=job.name, created_at=job.created_at),),
        checkpoint_uri=place,
        max_runtime_s=job.max_runtime_s,
        ledger=Ledger(starts=(job.created_at,)),
        observe_only=bool(problem),
        pending=notices,
    )
    if taken:  # what was last asked of the namesake's agents lies in this job's mailbox still
        run = replace(run, pending=(*notices, PostCommand(make_command(run, CommandKind.TRAIN, at=at))))
    return Adopted(run, reason)


def _depending(enrolled: Adopted, cluster: str) -> Adopted:
    """The run with the HyperPod cluster that it says it depends on; a tag that names none is said, and does no harm."""
    run = enrolled.run
    if not cluster or names_cluster(cluster):
        return replace(enrolled, run=replace(run, hyperpod=cluster))
    tell = Notify(
        severity=Severity.INFORM,
        title=f"{run.id}: its tag {CLUSTER_TAG} names no cluster",
        body=f"the tag {CLUSTER_TAG} is {cluster[:100]!r}, which is neither the name nor the ARN of a HyperPod cluster",
        key=f"{run.id}/cluster",
        runbook=Runbook.HYPERPOD,
        did="supervising the run, without a cluster that it depends on",
        todo=f"Write the cluster's name into the tag {CLUSTER_TAG} of the next job",
    )
    return replace(enrolled, run=replace(run, pending=(*run.pending, tell)))


def _refused(job: Job, reason: str) -> AdoptionRefused:
    notice = Notify(
        Severity.INFORM, f"{job.name}: not supervised", f"{job.name} is not supervised: {reason}", f"{job.name}/refused"
    )
    return AdoptionRefused(reason, notice)
