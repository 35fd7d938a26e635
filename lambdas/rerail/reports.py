"""What an agent reports from within a job: a hint, which concerns nothing but the current attempt of its own run."""

from dataclasses import replace
from datetime import datetime

from rerail.actions import Severity
from rerail.decision import Decision, notice, with_attempt
from rerail.interventions import on_found
from rerail.mailbox import Told
from rerail.model import Run
from rerail.policy import Policy
from rerail.saving import on_answer
from rerail.signals import Found, MailRefused, Reported


def on_report(run: Run, reported: Reported, policy: Policy) -> Decision:
    """Whoever reports is there, whatever it says: an agent works in this attempt."""
    report, attempt = reported.report, run.current
    if (report.attempt, report.job) != (attempt.number, attempt.job_name):
        return Decision(run)
    if attempt.exists and not attempt.may_be_live:
        return Decision(run)
    run = with_attempt(run, replace(attempt, agent=True, abilities=report.abilities or attempt.abilities))
    if report.told is Told.FINDINGS:
        return on_found(run, _found(run, reported), policy)
    return on_answer(run, reported)


def _found(run: Run, reported: Reported) -> Found:
    """The findings, dated within the attempt by our clock: the agent's may be wrong."""
    attempt = run.current
    begin = attempt.training_started_at or attempt.created_at or run.created_at
    findings = tuple(
        replace(f, at=_within(f.at, begin, reported.at), onset_at=_within(f.onset_at, begin, reported.at))
        for f in reported.report.findings
    )
    return Found(reported.at, attempt.job_name, findings, reported.checkpoints, witnessed=True)


def _within(at: datetime | None, begin: datetime, end: datetime) -> datetime | None:
    return at and min(max(at, begin), end)


def on_bad_mail(run: Run, refused: MailRefused) -> Decision:
    """Said once for each kind of defect; nothing else comes of it."""
    if refused.defect in run.defects:
        return Decision(run)
    run = replace(run, defects=(*run.defects, refused.defect))
    reason = f"a report from the job cannot be read and is passed over: {refused.why}"
    body = f"{reason}. To do: install the agent of the version that is deployed here"
    tell = notice(run, Severity.INFORM, "a report cannot be read", body, key=f"mail-{refused.defect}")
    return Decision(run, (tell,), reason, finding="bad_mail")
