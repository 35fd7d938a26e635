"""Decide on agents' reports from within a job; a report counts only for the current attempt of its run.

Anyone who may write into the mailbox can write an unsigned report. So it is shown to people, and nothing else follows
from it: neither an action nor a change of what the run knows about its agent, its processes or its checkpoints.
"""

from collections.abc import Sequence
from dataclasses import replace
from datetime import datetime

from rerail.decisions.checkpoint_health import with_unrestorable
from rerail.decisions.decision import Decision, make_notice, with_attempt
from rerail.decisions.emergency_checkpoint import on_agent_answer
from rerail.decisions.in_place_restart import is_about_newest_restart, on_crash, on_processes_restarted, on_refused
from rerail.decisions.on_finding import on_findings
from rerail.decisions.start_check import with_first_step
from rerail.model.actions import Severity
from rerail.model.mailbox import QUOTED, Report, ReportKind
from rerail.model.policy import Policy
from rerail.model.redaction import redact_secrets
from rerail.model.run import Run, RunState
from rerail.model.signals import AgentReported, FindingsObserved, ReportInvalid
from rerail.model.signatures import UNSEALED, VARIABLE

REFUSED_SAVES = (ReportKind.DAMAGED, ReportKind.UNLOADED)
# The kinds of reports about trouble.
TROUBLE = (*REFUSED_SAVES, ReportKind.CRASHED, ReportKind.FINDINGS)


def on_report(run: Run, reported: AgentReported, policy: Policy) -> Decision:
    """Record that the attempt has an agent, and act on the report if it is signed."""
    report, attempt = reported.report, run.current
    if not report.is_signed:
        return _on_unsigned(run, report)
    if report.kind in REFUSED_SAVES:
        return _on_refused_checkpoint(run, reported)
    if (report.attempt, report.job) != (attempt.number, attempt.job_name):
        return Decision(run)
    if attempt.exists and not attempt.may_be_live:
        # It may be late: only the first step after a restart is still a fact of the attempt.
        is_fact = report.kind is ReportKind.RESTARTED and run.state is not RunState.RESTARTING
        return on_processes_restarted(run, report, at=attempt.ended_at or reported.at) if is_fact else Decision(run)
    run = replace(run, requires_signature=True)
    is_from_init = report.kind is ReportKind.CRASHED or (report.kind is ReportKind.RESTARTED and report.step is None)
    if not is_from_init:  # which is not an agent, and cannot save checkpoints
        run = with_attempt(run, replace(attempt, agent=True, abilities=report.abilities or attempt.abilities))
    if attempt.is_outdated(report.restart) and report.kind is not ReportKind.REFUSED:
        return Decision(run)
    restarted = on_processes_restarted(run, report, at=reported.at)
    decision = _on_report_kind(restarted.run, reported, policy)
    decision = decision if decision.reason else replace(decision, reason=restarted.reason)
    return with_first_step(run, decision, report)


def _on_unsigned(run: Run, report: Report) -> Decision:
    """Show the report to people, once for each kind of report and finding."""
    claims = {f"unsigned-{finding.kind}": f"{finding.kind}: {finding.evidence}" for finding in report.findings}
    if report.kind in TROUBLE and not claims:
        claims = {f"unsigned-{report.kind}": f"{report.kind}: {(report.reason or report.evidence)[:QUOTED]}"}
    new = {key: claim for key, claim in (claims or {"unsigned": "its agent runs"}).items() if key not in run.defects}
    if not new:
        return Decision(run)
    reason = f"an unsigned report of {report.job} says: {'; '.join(new.values())}"
    notice = make_notice(
        run,
        Severity.INFORM,
        "an unsigned report",
        reason,
        key=next(iter(new)),
        did="nothing: anyone who may write into the mailbox can have written it",
        todo=f"Start jobs with rerail submit or supervised(), or set {VARIABLE}, so that the agent signs its reports",
    )
    return Decision(replace(run, defects=(*run.defects, *new)), (notice,), reason, finding="unsigned_report")


def _on_refused_checkpoint(run: Run, reported: AgentReported) -> Decision:
    """Label a checkpoint that could not be restored; the report counts even if its attempt has ended."""
    report = reported.report
    is_known = any((attempt.number, attempt.job_name) == (report.attempt, report.job) for attempt in run.attempts)
    after = with_unrestorable(run, report) if is_known else run
    if after == run:
        return Decision(run)
    label = after.labels[-1]
    reason = f"the checkpoint of step {label.step} is {label.health}: {label.why}"
    key = f"{label.health}-{label.step}-{label.attempt}"
    did = "no later attempt resumes from it"
    notice = make_notice(after, Severity.INFORM, f"a checkpoint is {label.health}", reason, key=key, did=did)
    return Decision(after, (notice,), reason, finding="damaged_checkpoint")


def _on_report_kind(run: Run, reported: AgentReported, policy: Policy) -> Decision:
    """Act on the report by its kind."""
    kind = reported.report.kind
    if kind is ReportKind.FINDINGS:
        return on_findings(run, _make_observed(run, reported), policy)
    if kind is ReportKind.CRASHED:
        return on_crash(run, reported, policy)
    if kind is ReportKind.REFUSED and is_about_newest_restart(run, reported.report):
        return on_refused(run, reported)
    return Decision(run) if kind is ReportKind.RESTARTED else on_agent_answer(run, reported)


def _make_observed(run: Run, reported: AgentReported) -> FindingsObserved:
    """Return the findings with times limited to the attempt: the agent's clock may be wrong."""
    attempt = run.current
    begin = attempt.training_started_at or attempt.created_at or run.created_at
    findings = tuple(
        replace(item, at=_clamp(item.at, begin, reported.at), onset_at=_clamp(item.onset_at, begin, reported.at))
        for item in reported.report.findings
    )
    return FindingsObserved(reported.at, attempt.job_name, findings, reported.checkpoints, witnessed=True)


def _clamp(at: datetime | None, begin: datetime, end: datetime) -> datetime | None:
    """Return the time limited to the range from `begin` to `end`."""
    return at and min(max(at, begin), end)


def redact_report(report: Report, secrets: Sequence[str]) -> Report:
    """Return the report with the secrets of the job's request removed from its texts."""
    findings = tuple(replace(item, evidence=redact_secrets(item.evidence, secrets)) for item in report.findings)
    reason, evidence = redact_secrets(report.reason, secrets), redact_secrets(report.evidence, secrets)
    return replace(report, findings=findings, reason=reason, evidence=evidence)


def on_invalid_report(run: Run, refused: ReportInvalid, policy: Policy) -> Decision:
    """Send a notice about an invalid report, once for each kind of defect."""
    if refused.defect in run.defects:
        return Decision(run)
    run = replace(run, defects=(*run.defects, refused.defect))
    reason = f"a report from the job cannot be read and is passed over: {refused.why}"
    todo = "Install the agent of the version that is deployed here"
    if refused.defect == UNSEALED:
        reason = f"a report does not show that this run's job has written it, and is passed over: {refused.why}"
        todo = "Find out who else writes into the mailbox, or whether the job's image has several versions of the agent"
    key = f"mail-{refused.defect}"
    notice = make_notice(
        run, Severity.INFORM, "a report cannot be read", reason, key=key, did="it is passed over", todo=todo
    )
    return Decision(run, (notice,), reason, finding="bad_mail")
