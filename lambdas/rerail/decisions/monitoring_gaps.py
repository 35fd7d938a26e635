"""Report once what Rerail does not watch of a run, and the line that changes it."""

from datetime import datetime

from rerail.decisions.decision import Decision, has_agent, make_notice, with_warnings
from rerail.model.actions import Severity
from rerail.model.metrics import select_names
from rerail.model.policy import Policy
from rerail.model.run import Job, Run, RunState
from rerail.model.runbooks import Runbook

KEY, NO_ROW = "not-watched", "no-metric-row"


def on_unwatched(run: Run, at: datetime, policy: Policy) -> Decision:
    """Send one notice about a job that trains with the tag alone; most runs have no gap."""
    began, after = run.current.training_started_at, policy.notices.unwatched_after
    if run.state is not RunState.WATCHING or KEY in run.warnings or not after or began is None or at - began < after:
        return Decision(run)
    gaps, todo = find_gaps(run, policy)
    if not gaps:
        return Decision(run)
    reason = "not everything is watched: " + "; ".join(gaps)
    notice = make_notice(
        run,
        Severity.INFORM,
        "not everything is watched",
        reason,
        key=KEY,
        runbook=Runbook.BLIND,
        did="watching the rest",
        todo="\n".join(todo),
    )
    return Decision(with_warnings(run, KEY), (notice,), reason, finding=KEY)


def has_no_row(run: Run, job: Job, policy: Policy) -> bool:
    """Return whether a completed job could have published Rerail's metrics, and neither it nor one before it has."""
    is_silent = all(attempt.last_step is None and attempt.first_step is None for attempt in run.attempts)
    return is_silent and not job.metrics and select_names(policy.metrics, job.defined_metrics) is not None


def format_no_row(run: Run) -> str:
    """Return what is to be checked of a run that has completed without a metric row."""
    return (
        f"no metric row of Rerail has arrived: `rerail logs {run.id}` shows whether it trained; if it did, its lines "
        "match no MetricDefinitions of the job (`rerail metrics --log FILE` proposes some)"
    )


def find_gaps(run: Run, policy: Policy) -> tuple[list[str], list[str]]:
    """Return what is not watched or not possible for the run, and what to do about each."""
    gaps, todo = [], []
    has_metrics = select_names(policy.metrics, run.defined_metrics or ()) is not None
    if not has_agent(run) and not has_metrics:
        gaps.append(
            "the job has neither metrics nor an agent with a signing key, so its loss and speed are unknown, "
            "and a stall only shows if its machines are idle"
        )
        todo.append("To have the loss and the speed watched: start the next job with `supervised(request)`")
    if not has_agent(run) and not run.checkpoint_uri:
        gaps.append("it has no CheckpointConfig, so a relaunch starts from the beginning")
        todo.append("To resume from checkpoints: set CheckpointConfig.S3Uri in the request")
    return gaps, todo
