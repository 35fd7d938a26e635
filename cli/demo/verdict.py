"""Whether a run ended as its scenario must: the problems, one sentence each."""

from collections.abc import Iterator
from typing import Any

from cli.demo.scenarios import Scenario
from rerail.model import RunState

Report = dict[str, Any]


def shortcomings(scenario: Scenario, report: Report) -> list[str]:
    """Where the run did not end as the scenario must; empty is good."""
    return [
        *_ending(scenario, report),
        *(_saving(report) if scenario.asks else ()),
        *(_losing_nothing(report) if scenario.lossless else ()),
        *(_rolling_back(report) if scenario.rolls_back else ()),
        *(_parting_save(report, scenario.saves) if scenario.saves else ()),
        *_restarts(report, scenario.self_repairs),
        *(_curve(report) if scenario.exact else ()),
    ]


def _ending(scenario: Scenario, report: Report) -> Iterator[str]:
    causes = [attempt["cause"] for attempt in report["attempts"] if attempt["cause"]]
    completes = scenario.ends is RunState.COMPLETED
    if report["state"] != scenario.ends:
        yield f"the run is {report['state']}, it must end {scenario.ends}"
    if tuple(causes) != scenario.causes:
        yield f"the causes are {', '.join(causes) or 'none'}, they must be {', '.join(scenario.causes) or 'none'}"
    if completes and report["final_step"] != scenario.steps and scenario.findings != ("blind",):
        yield f"the last step is {report['final_step']}, it must be {scenario.steps}"
    if completes and causes and not report["attempts"][-1]["resumed_from_step"]:
        yield "the last attempt did not resume from a checkpoint"
    if missing := set(scenario.findings) - set(report["findings"]):
        yield f"the detectors did not say {', '.join(sorted(missing))}"


def _saving(report: Report) -> Iterator[str]:
    """The job was asked to save, and stopped only when it had."""
    asked = report["handshake"]
    if asked is None:
        yield "the agent was not asked for a checkpoint"
    elif "emergency checkpoint" not in asked["stopped_because"]:  # its reports come in any order, or late
        yield f"the job was not stopped for its emergency checkpoint, but: {asked['stopped_because'] or 'not at all'}"


def _losing_nothing(report: Report) -> Iterator[str]:
    lost = [incident["lost_steps"] for incident in report["incidents"]]
    if lost != [0]:
        yield f"the lost steps of each incident are {lost}, they must be [0]"
    if len(report["attempts"]) != 2:
        yield f"there are {len(report['attempts'])} attempts, there must be 2"


def _rolling_back(report: Report) -> Iterator[str]:
    """From a clean checkpoint older than the onset; what was saved since then lies aside, and is not deleted."""
    aside = [save for save in report["checkpoints"] if save["aside"]]
    if not aside:
        yield "no tainted checkpoint was put aside"
    for incident in report["incidents"]:
        onset, resumed = incident["onset_step"], incident["resumed_from_step"]
        if onset is None or resumed is None or resumed >= onset:
            yield f"resumed from step {resumed}, which is not older than the onset at step {onset}"
        places = [save for save in report["checkpoints"] if save["step"] == resumed and not save["aside"]]
        if [save["health"] for save in places] != ["clean"]:
            yield f"the checkpoint of step {resumed} is not there, or not clean"
        if sound := [save["folder"] for save in aside if save["step"] <= (resumed or 0) or save["attempt"] != 1]:
            yield f"put aside without need: {', '.join(sound)}"


def _parting_save(report: Report, reason: str) -> Iterator[str]:
    """The newest checkpoint is the one that the job saved on its way out."""
    newest = next(iter(report["checkpoints"]), None)
    if newest is None:
        yield "nothing was saved"
    elif (newest["step"], newest["reason"], newest["whole"]) != (report["final_step"], reason, True):
        yield f"the newest checkpoint is of step {newest['step']} ({newest['reason']}), not of the last step ({reason})"


def _restarts(report: Report, expected: int) -> Iterator[str]:
    repairs = sum(attempt["self_repairs"] for attempt in report["attempts"])
    if repairs != expected:
        yield f"SageMaker itself restarted the job {repairs} times, it must have been {expected}"
    if expected and len(report["attempts"]) != 1:
        yield "Rerail relaunched what SageMaker itself had restarted"


def _curve(report: Report) -> Iterator[str]:
    if report["reference_max_abs_loss_difference"] != 0.0:
        yield f"the loss differs from the undisturbed run by {report['reference_max_abs_loss_difference']}"
