"""Evaluate each assumption about AWS: whether the observations confirm or refute it."""

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from statistics import median

from cli.acceptance.seen import Observation, Observations, ObservedJob
from cli.acceptance.trials import TRIALS, TRIALS_BY_NAME
from cli.demo.verdict import find_shortcomings
from rerail.decisions.quarantine import NOT_ALLOWED as NO_QUARANTINE
from rerail.requests.relaunch import POLICY_TAG, RUN_TAG

# The secondary statuses that botocore's model of SageMaker lists.
KNOWN_STATUSES = frozenset(
    (
        *("Starting", "LaunchingMLInstances", "PreparingTrainingStack", "Pending", "Downloading"),
        *("DownloadingTrainingImage", "Training", "Updating", "Interrupted", "Restarting", "Uploading", "Stopping"),
        *("Completed", "Failed", "Stopped", "MaxRuntimeExceeded", "MaxWaitTimeExceeded"),
    )
)
# The last secondary statuses that go with each final status.
ENDS: Mapping[str, tuple[str, ...]] = {
    "Completed": ("Completed",),
    "Failed": ("Failed",),
    "Stopped": ("Stopped", "MaxRuntimeExceeded", "MaxWaitTimeExceeded"),
}
EVIDENCE_LIMIT = 6
EXIT_CODE = re.compile(r"exit ?code:? *\d", re.IGNORECASE)


class CheckVerdict(StrEnum):
    """The outcome of an assumption."""

    CONFIRMED = "confirmed"
    REFUTED = "refuted"
    NOT_TRIED = "not tried"


@dataclass(frozen=True, slots=True)
class Assessment:
    """The observations of one check, and the reasons why they refute its assumption."""

    seen: str
    problems: tuple[str, ...] = ()
    evidence: tuple[str, ...] = ()


class NotTried(Exception):
    """No observation confirms or refutes the assumption; the message gives the reason."""


@dataclass(frozen=True, slots=True)
class AcceptanceCheck:
    """An assumption of docs/limits.md, and how it is evaluated."""

    id: str
    # The assumption, as docs/limits.md has it.
    assumption: str
    expected: str
    evaluate: Callable[[Observations], Assessment]
    # The trials that must be started for it; none: any trial will do.
    trials: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class CheckResult:
    """The outcome of one check."""

    id: str
    assumption: str
    expected: str
    seen: str
    verdict: CheckVerdict
    evidence: tuple[str, ...] = ()


def evaluate_all(observed: Observations, chosen: Sequence[str] = ()) -> list[CheckResult]:
    """Return the outcome of every check; one that was not chosen counts as not tried."""
    return [evaluate(check, observed, is_chosen=not chosen or check.id in chosen) for check in CHECKS]


def evaluate(check: AcceptanceCheck, observed: Observations, *, is_chosen: bool = True) -> CheckResult:
    """Return the outcome of a check."""
    result = CheckResult(check.id, check.assumption, check.expected, "", CheckVerdict.NOT_TRIED)
    try:
        if not is_chosen:
            raise NotTried("it was not chosen")
        if reason := observed.account.unread.get(check.id):
            raise NotTried(reason)
        found = check.evaluate(observed)
    except NotTried as error:
        return replace(result, seen=str(error))
    verdict = CheckVerdict.REFUTED if found.problems else CheckVerdict.CONFIRMED
    seen = "; ".join((*found.problems, found.seen)) if found.seen else "; ".join(found.problems)
    return replace(result, seen=seen, verdict=verdict, evidence=found.evidence[:EVIDENCE_LIMIT])


def _find(observed: Observations, name: str) -> Observation:
    """Return the trial's observation; raise NotTried if it was not started."""
    trial = observed.trials.get(name)
    if trial is None or trial.not_tried:
        raise NotTried(trial.not_tried if trial else f"the job {name} was not started")
    if trial.jobs and not trial.facts.get("final_step") and not any(job.has_trained for job in trial.jobs):
        job = trial.jobs[0]
        raise NotTried(f"{job.name} never trained: it is {job.status} {job.failure_reason}".rstrip())
    if trial.jobs and trial.jobs[-1].status == "InProgress" and not trial.jobs[-1].has_trained:
        raise NotTried(f"{trial.jobs[-1].name} got no machine in time")
    return trial


def _follows(name: str, **changes: object) -> Callable[[Observations], Assessment]:
    """Return the evaluation of a trial whose run must end as its scenario says."""

    def evaluate_trial(observed: Observations) -> Assessment:
        trial = _find(observed, name)
        scenario = replace(trial.scenario or TRIALS_BY_NAME[name].scenario, **changes)  # type: ignore[arg-type]
        if not trial.facts:
            return Assessment("", (f"Rerail has no record of the job {trial.run}",), _describe_jobs(trial))
        problems = tuple(find_shortcomings(scenario, dict(trial.facts)))
        return Assessment(_summarize(trial), problems, (*_describe_jobs(trial), *trial.decisions[-4:]))

    return evaluate_trial


def _summarize(trial: Observation) -> str:
    attempts = trial.facts["attempts"]
    resumed = [f"{attempt['job']} from step {attempt['resumed_from_step']}" for attempt in attempts[1:]]
    return f"the run ended {trial.facts['state']}" + (f"; resumed: {', '.join(resumed)}" if resumed else "")


def _describe_jobs(trial: Observation) -> tuple[str, ...]:
    return tuple(
        f"{job.name}: {' > '.join(entry.status for entry in job.transitions) or job.status}"
        + (f"; {job.failure_reason[:200]}" if job.failure_reason else "")
        for job in trial.jobs
    )


def _evaluate_own_layout(observed: Observations) -> Assessment:
    trial = _find(observed, "own-layout")
    if any(NO_QUARANTINE in reason for reason in trial.decisions):
        raise NotTried(
            "the deployment does not let Rerail move checkpoints of this role: list its folder "
            "s3://BUCKET/rerail-acceptance/ in quarantineFolders and deploy"
        )
    return _follows("own-layout")(observed)


def _evaluate_human_stop(observed: Observations) -> Assessment:
    found = _follows("stop", saves="")(observed)
    jobs = _find(observed, "stop").jobs
    more = [f"{job.name} was launched although a person had stopped the run" for job in jobs[1:]]
    return replace(found, problems=(*found.problems, *more))


def _evaluate_sigterm(observed: Observations) -> Assessment:
    trial = _find(observed, "stop")
    saves = [upload for upload in trial.uploads if upload.reason == "sigterm"]
    last = trial.facts.get("final_step") if trial.facts else None
    if not saves:
        return Assessment("", ("no checkpoint with the reason sigterm is in S3",), _describe_jobs(trial))
    seen = f"the checkpoint of step {saves[-1].step} is in S3; the last step was {last}"
    is_last = last is not None and abs(last - saves[-1].step) <= 1
    problems = () if is_last else (f"it was saved at step {saves[-1].step}, the script trained until step {last}",)
    return Assessment(seen, problems, _describe_jobs(trial))


def _evaluate_spot(observed: Observations) -> Assessment:
    found = _follows("spot")(observed)
    jobs = _find(observed, "spot").jobs
    more = [f"{job.name} is not a spot job" for job in jobs if not job.is_spot]
    return replace(found, problems=(*found.problems, *more))


def _ended(observed: Observations) -> list[ObservedJob]:
    """Return the jobs that have ended; raise NotTried if there are none."""
    ended = [job for job in observed.jobs if job.status in ENDS]
    if not ended:
        raise NotTried("no job has ended")
    return ended


def _evaluate_events(observed: Observations) -> Assessment:
    ended, events = _ended(observed), observed.account.events
    lacking = [job.name for job in ended if not any(e.job == job.name and e.status == job.status for e in events)]
    delays = sorted((event.arrived_at - event.changed_at).total_seconds() for event in events if event.changed_at)
    problems = [f"no event said that {name} had ended" for name in lacking]
    if delays and delays[-1] > 60:
        problems.append(f"an event took {delays[-1]:.0f} s")
    timing = f", {median(delays):.1f} s after the change (median), {delays[-1]:.1f} s at most" if delays else ""
    evidence = tuple(f"{event.job}: {event.status} {event.secondary}" for event in events)
    return Assessment(f"{len(events)} events of {len(observed.jobs)} jobs{timing}", tuple(problems), evidence)


def _evaluate_states(observed: Observations) -> Assessment:
    ended = _ended(observed)
    problems = [problem for job in ended for problem in _find_odd_statuses(job)]
    seen = sorted({entry.status for job in ended for entry in job.transitions})
    evidence = tuple(f"{job.name}: {' > '.join(entry.status for entry in job.transitions)}" for job in ended)
    return Assessment(f"secondary statuses: {', '.join(seen)}", tuple(problems), evidence)


def _find_odd_statuses(job: ObservedJob) -> Iterator[str]:
    statuses = [entry.status for entry in job.transitions]
    if unknown := sorted(set(statuses) - KNOWN_STATUSES):
        yield f"{job.name} had the unknown status {', '.join(unknown)}"
    if "Training" not in statuses:
        if job.status == "Completed":
            yield f"{job.name} was never seen in Training"
    elif statuses.index("Training") == 0:
        yield f"{job.name} had no status before Training"
    if statuses and statuses[-1] not in ENDS.get(job.status, statuses):
        yield f"{job.name} is {job.status}, and its last secondary status is {statuses[-1]}"


def _evaluate_failure_text(observed: Observations) -> Assessment:
    jobs = [job for job in observed.jobs if job.status == "Failed"]
    if not jobs:
        raise NotTried("no job has failed")
    problems = [
        f"{job.name} failed with: {job.failure_reason[:200] or 'no text'}"
        for job in jobs
        if not job.failure_reason.startswith("AlgorithmError") or not EXIT_CODE.search(job.failure_reason)
    ]
    return Assessment(f"{len(jobs)} failures", tuple(problems), tuple(job.failure_reason[:300] for job in jobs))


def _evaluate_metrics(observed: Observations) -> Assessment:
    trained = [trial for trial in observed.trials.values() if not trial.not_tried and trial.jobs]
    if not trained:
        raise NotTried("no job has trained")
    problems = [f"no metric of {trial.run} was visible in CloudWatch" for trial in trained if not trial.metric_ages]
    ages = sorted(age for trial in trained for ages in trial.metric_ages.values() for age in ages)
    if ages and median(ages) > 300:
        problems.append(f"the newest value is {median(ages):.0f} s old (median)")
    seen = f"the newest value is {median(ages):.0f} s old (median), {ages[-1]:.0f} s at most" if ages else ""
    evidence = tuple(f"{trial.run}: {', '.join(sorted(trial.metric_ages)) or 'none'}" for trial in trained)
    return Assessment(seen, tuple(problems), evidence)


def _evaluate_tags(observed: Observations) -> Assessment:
    successors = [(trial, job) for trial in observed.trials.values() for job in trial.jobs[1:]]
    if not successors:
        raise NotTried("no job was relaunched")
    problems = []
    for trial, job in successors:
        if job.tags.get(RUN_TAG) != trial.run:
            problems.append(f"{job.name} has the tag {RUN_TAG}={job.tags.get(RUN_TAG)}, not {trial.run}")
        if POLICY_TAG not in job.tags:
            problems.append(f"{job.name} lacks the tag {POLICY_TAG}")
    evidence = tuple(f"{job.name}: {dict(sorted(job.tags.items()))}" for _, job in successors)
    return Assessment(f"{len(successors)} relaunched jobs with their tags", tuple(problems), evidence)


def _evaluate_permissions(observed: Observations) -> Assessment:
    denials = observed.account.denials
    if not denials and not any(trial.jobs[1:] for trial in observed.trials.values()):
        raise NotTried("no job was relaunched")  # most calls were not made
    return Assessment(
        "" if denials else "no denied call in the functions' logs",
        tuple(f"AWS denied a call: {line[:300]}" for line in denials[:3]),
        tuple(line[:300] for line in denials),
    )


def _evaluate_encryption(observed: Observations) -> Assessment:
    account = observed.account
    if not any(trial.jobs and TRIALS_BY_NAME[trial.trial].agent for trial in observed.trials.values()):
        raise NotTried("no job with an agent was started")
    reports = sum(trial.reports for trial in observed.trials.values())
    problems = []
    if account.mailbox_encryption != "AES256":
        written = account.mailbox_encryption or "nothing that a job wrote is there"
        problems.append(f"a mailbox object must be encrypted with AES256: {written}")
    if not account.queue_key or not account.queue_key.endswith(account.data_key.rpartition("/")[2]):
        problems.append(
            f"the queue of signals is encrypted with {account.queue_key or 'no key'}, not {account.data_key}"
        )
    if not reports:
        problems.append("no report of an agent came through the encrypted queue")
    seen = f"mailbox: {account.mailbox_encryption}; queue: {account.queue_key}; {reports} reports came through it"
    return Assessment(seen, tuple(problems))


def _evaluate_notices(observed: Observations) -> Assessment:
    runs = [trial.run for trial in observed.trials.values() if len(trial.jobs) > 1]
    if not runs:
        raise NotTried("no run was relaunched, which a notice would report")
    notices = observed.account.notices
    problems = [f"no notice about {run}" for run in runs if not any(notice.run == run for notice in notices)]
    delays = sorted((notice.arrived_at - notice.sent_at).total_seconds() for notice in notices)
    seen = f"{len(notices)} notices" + (f", {median(delays):.1f} s after the decision (median)" if delays else "")
    return Assessment(seen, tuple(problems), tuple(f"{notice.run}: {notice.title}" for notice in notices))


def _evaluate_uploads(observed: Observations) -> Assessment:
    uploads = [(trial.run, upload) for trial in observed.trials.values() for upload in trial.uploads]
    if not uploads:
        raise NotTried("no checkpoint with a manifest was uploaded")
    lags = sorted((upload.manifest_at - upload.saved_at).total_seconds() for _, upload in uploads)
    early = [upload for _, upload in uploads if upload.manifest_at < upload.files_at]
    problems = [f"a manifest took {lags[-1]:.0f} s to reach S3"] if lags[-1] > 300 else []
    seen = f"{median(lags):.0f} s after the save (median), {lags[-1]:.0f} s at most; "
    seen += f"{len(early)} of {len(uploads)} manifests came before a file that they list"
    evidence = tuple(f"{run} step {upload.step}: {upload.manifest_at:%H:%M:%S}" for run, upload in uploads)
    return Assessment(seen, tuple(problems), evidence)


CHECKS: tuple[AcceptanceCheck, ...] = (
    AcceptanceCheck(
        "crash",
        "A job that fails is relaunched from its newest checkpoint, by a new job.",
        "the run completes in its second job, which resumes from a checkpoint",
        _follows("crash"),
        ("crash",),
    ),
    AcceptanceCheck(
        "nan",
        "A NaN that the agent reports is rolled back to a checkpoint from before it, after an emergency checkpoint.",
        "the later checkpoints are quarantined, and the second job resumes from before the NaN",
        _follows("nan"),
        ("nan",),
    ),
    AcceptanceCheck(
        "hang",
        "A job in which no step completes is stopped and relaunched.",
        "the agent reports the stall, and the run completes in its second job",
        _follows("hang"),
        ("hang",),
    ),
    AcceptanceCheck(
        "in-place",
        "The agent's init restarts the processes within the job, in AWS's PyTorch image.",
        "one job, whose processes are started again once",
        _follows("in-place"),
        ("in-place",),
    ),
    AcceptanceCheck(
        "human-stop",
        "A job that a person stops is not relaunched.",
        "the run ends stopped, after one job",
        _evaluate_human_stop,
        ("stop",),
    ),
    AcceptanceCheck(
        "sigterm",
        "SIGTERM reaches the script under the agent's init, and what it saves then is uploaded after it has ended.",
        "the newest checkpoint in S3 is that of the last step, with the reason sigterm",
        _evaluate_sigterm,
        ("stop",),
    ),
    AcceptanceCheck(
        "own-layout",
        "A script without an agent is rolled back by moving its later checkpoints away before the next job starts.",
        "CloudWatch shows the NaN, and the second job goes on from before it",
        _evaluate_own_layout,
        ("own-layout",),
    ),
    AcceptanceCheck(
        "spot",
        "A spot job is relaunched as a spot job.",
        "the run completes in its second job, and both are spot jobs",
        _evaluate_spot,
        ("spot",),
    ),
    AcceptanceCheck(
        "warm-pool",
        "The next job takes over the warm pool of a failed one, and starts sooner.",
        "the first job's pool is reused by the second, which starts sooner",
        _follows("warm-pool"),
        ("warm-pool",),
    ),
    AcceptanceCheck(
        "events",
        "EventBridge receives an event for each job that ends, within a minute.",
        "an event with the final status of each job, at most 60 s late",
        _evaluate_events,
    ),
    AcceptanceCheck(
        "states",
        "A job's secondary statuses are those that botocore lists, with Training between its start and its end.",
        "known statuses; the last one is the job's status",
        _evaluate_states,
    ),
    AcceptanceCheck(
        "failure-text",
        "The text of a script's failure begins with AlgorithmError and names the exit code.",
        "AlgorithmError: ... exit code: N, or ExitCode N of AWS's toolkit",
        _evaluate_failure_text,
        ("crash",),
    ),
    AcceptanceCheck(
        "metrics",
        "What MetricDefinitions find is visible in CloudWatch within five minutes.",
        "values of step and loss of each job, at most 300 s old (median)",
        _evaluate_metrics,
    ),
    AcceptanceCheck(
        "tags",
        "A relaunched job has the tags of its run, which SageMaker accepts from Rerail's role.",
        f"{POLICY_TAG} and {RUN_TAG} on each relaunched job",
        _evaluate_tags,
        ("crash",),
    ),
    AcceptanceCheck(
        "permissions",
        "The functions' roles allow every call that these recoveries need.",
        "no denied call in the logs of the functions",
        _evaluate_permissions,
        ("crash",),
    ),
    AcceptanceCheck(
        "encryption",
        "A job's role writes to the mailbox without a key of its own, and EventBridge delivers to the encrypted queue.",
        "a mailbox object of a job with AES256, and reports of agents through the queue with the deployment's key",
        _evaluate_encryption,
        ("in-place",),
    ),
    AcceptanceCheck(
        "notices",
        "A notice passes the encrypted topic and reaches a subscriber.",
        "a notice about each relaunched run, in a queue that is subscribed for a while",
        _evaluate_notices,
        ("crash",),
    ),
    AcceptanceCheck(
        "uploads",
        "SageMaker uploads new checkpoint files within five minutes; a manifest may come before the files it lists.",
        "each manifest in S3 at most 300 s after the save",
        _evaluate_uploads,
        ("crash",),
    ),
)
CHECK_IDS: Mapping[str, AcceptanceCheck] = {check.id: check for check in CHECKS}


def find_trials(chosen: Sequence[str]) -> list[str]:
    """Return the trials that these checks need, in their order; all of them if none is chosen."""
    wanted = {name for check in CHECKS if not chosen or check.id in chosen for name in check.trials}
    if chosen and not wanted:
        wanted = {"crash"}
    return [trial.name for trial in TRIALS if trial.name in wanted]
