"""Report once what Rerail does not watch of a run, and the line that changes it."""

from datetime import datetime

from rerail.decisions.decision import Decision, has_agent, make_notice, with_warnings
from rerail.model.actions import Severity
from rerail.model.metrics import select_names
from rerail.model.policy import Policy
from rerail.model.run import Run, RunState
from rerail.model.runbooks import Runbook

KEY = "not-watched"


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
