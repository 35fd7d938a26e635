"""Whether a run ended as its scenario must: the problems, one sentence each."""

import re
from collections.abc import Iterator, Mapping
from typing import Any

from cli.demo.scenarios import Scenario
from rerail.model.run import RunState

Report = dict[str, Any]
MOVED = re.compile(r"/(?:checkpoint-|step_)(\d+)/")


def find_shortcomings(scenario: Scenario, report: Report) -> list[str]:
    """Return how the run's end differs from the scenario's; empty if it does not."""
    if not report["attempts"]:
        return ["the run has no attempts"]
    return [
        *_ending(scenario, report),
        *(_saving(report) if scenario.asks else ()),
        *(_losing_nothing(report) if scenario.lossless else ()),
        *(_rolling_back(report) if scenario.rolls_back else ()),
        *(_climbing(scenario, report) if scenario.rungs else ()),
        *(_check_moved_checkpoints(report) if scenario.quarantines else ()),
        *(_parting_save(report, scenario.saves) if scenario.saves else ()),
        *_restarts(report, scenario.self_repairs),
        *(_warm(report, scenario.pool) if scenario.pool else ()),
        *(_elsewhere(report, scenario.fallbacks[0]) if scenario.fallbacks else ()),
        *(_split(report, scenario.microbatches) if scenario.microbatches > 1 else ()),
        *(_in_place(report) if scenario.in_place else ()),
        *(_asked(report) if scenario.approves else ()),
        *(_braked(scenario, report) if scenario.other_runs else ()),
        *(_capped(report["cost"]) if scenario.stop_dollars else ()),
        *(_curve(report, scenario.tolerance) if scenario.exact else ()),
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
    if completes and causes and not scenario.in_place and not report["attempts"][-1]["resumed_from_step"]:
        yield "the last attempt did not resume from a checkpoint"
    if missing := set(scenario.findings) - set(report["findings"]):
        yield f"the detectors did not say {', '.join(sorted(missing))}"


def _asked(report: Report) -> Iterator[str]:
    """A proposal with a price, one word, and one job that came of it."""
    asked = report["approval"]
    if asked["answered"] != 1:
        yield f"{asked['answered']} proposals were answered, it must be 1"
    if not asked["words"] or "-a002 from step " not in asked["said"]:
        yield f"the word came to nothing: {asked['said'] or 'nothing was said of it'}"
    if len(report["attempts"]) != 2:
        yield f"there are {len(report['attempts'])} attempts, there must be 2"


def _braked(scenario: Scenario, report: Report) -> Iterator[str]:
    """No more relaunches within the window than the account may have, one page, and everybody comes through."""
    others = report["crowd"]
    if others["states"] != [RunState.COMPLETED] * (scenario.other_runs + 1):
        yield f"the runs of the account ended {', '.join(others['states'])}, all must complete"
    if others["most_in_window"] > others["limit"] or not others["rate_limited"]:
        yield f"{others['most_in_window']} relaunches within {others['window_s']} s, of at most {others['limit']}"
    if not 1 <= others["pages"] <= 2:  # one a window
        yield f"on-call was paged {others['pages']} times for it"


def _capped(cost: Mapping[str, float]) -> Iterator[str]:
    """Stopped at the cap: not before it, and no later than a sweep and a save take."""
    if not cost["cap"] <= cost["dollars"] <= cost["most"]:
        yield f"the run has cost ${cost['dollars']:.4f}, it must be ${cost['cap']:g} to ${cost['most']:.4f}"


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
    quarantined = [save for save in report["checkpoints"] if save["aside"]]
    if not quarantined:
        yield "no suspect checkpoint was quarantined"
    for incident in report["incidents"]:
        onset, resumed = incident["onset_step"], incident["resumed_from_step"]
        if onset is None or resumed is None or resumed >= onset:
            yield f"resumed from step {resumed}, which is not older than the onset at step {onset}"
        places = [save for save in report["checkpoints"] if save["step"] == resumed and not save["aside"]]
        if [save["health"] for save in places] != ["clean"]:
            yield f"the checkpoint of step {resumed} is not there, or not clean"
        if sound := [save["folder"] for save in quarantined if save["step"] <= (resumed or 0) or save["attempt"] != 1]:
            yield f"quarantined without need: {', '.join(sound)}"


def _check_moved_checkpoints(report: Report) -> Iterator[str]:
    """Before the next job, all that was saved since the clean checkpoint was moved away, and nothing else."""
    moved = {int(match[1]) for key in report["set_aside"] if (match := MOVED.search(key))}
    if not moved:
        yield "nothing was moved out of the script's way"
    for incident in report["incidents"]:
        onset, resumed = incident["onset_step"], incident["resumed_from_step"]
        if onset is None or resumed is None or resumed >= onset:
            yield f"resumed from step {resumed}, which is not older than the onset at step {onset}"
        elif early := sorted(step for step in moved if step <= resumed):
            yield f"moved without need: the checkpoints of steps {', '.join(map(str, early))}"
    last = report["attempts"][-1]
    if last["first_step"] != (last["resumed_from_step"] or 0) + 1:
        yield f"the script went on at step {last['first_step']}, not after step {last['resumed_from_step']}"


def _climbing(scenario: Scenario, report: Report) -> Iterator[str]:
    """Rung by rung, each from before the onset; what one skips the later ones skip too."""
    rungs = report["rungs"]
    if tuple(rungs) != scenario.rungs:
        climbed, due = (", ".join(rung or "none" for rung in those) for those in (rungs, scenario.rungs))
        yield f"the rungs of the attempts are {climbed}, they must be {due}"
        return
    onset = min((i["onset_step"] for i in report["incidents"] if i["onset_step"] is not None), default=0)
    for number, (rung, attempt) in enumerate(zip(rungs, report["attempts"], strict=True), start=1):
        resumed, skipped = attempt["resumed_from_step"], attempt["skip_samples"]
        if rung and (resumed is None or resumed >= onset):
            yield f"attempt {number} resumed from step {resumed}, the onset is at step {onset}"
        if ("skip" in rungs[:number]) != bool(skipped):
            yield f"attempt {number} on rung {rung or 'none'} skips samples {skipped or 'none'}"
        if (attempt["rate"] < 1) != (rung == "lower_rate"):
            yield f"attempt {number} on rung {rung or 'none'} has {attempt['rate']} of the learning rate"


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


def _in_place(report: Report) -> Iterator[str]:
    """One job, whose processes were started again once, and trained on."""
    if len(report["attempts"]) != 1:
        yield f"there are {len(report['attempts'])} attempts, there must be 1"
    if [restart["step_after_s"] is not None for restart in report["restarts"]] != [True]:
        yield f"the restarts in place are {report['restarts']}, there must be one that came to its first step"


def _warm(report: Report, becomes: str) -> Iterator[str]:
    """The machines kept after the first attempt were taken over, or given back; in an account, that saved time."""
    first, second = report["attempts"][0], report["attempts"][-1]
    if first["pool"] != becomes:
        yield f"the warm pool of {first['job']} is {first['pool']}, it must be {becomes}"
    if becomes != "Reused":
        return
    if first["pool_reused_by"] != second["job"]:
        yield f"the warm pool was taken by {first['pool_reused_by']}, not by {second['job']}"
    if report["clock_scale"] != 1:
        return  # on a fast clock, a busy machine delays a start by more than a warm pool saves
    if second["start_s"] is None or second["start_s"] >= first["start_s"]:
        yield f"{second['job']} took {second['start_s']} s to start, the first {first['start_s']} s: nothing was saved"


def _elsewhere(report: Report, kind: str) -> Iterator[str]:
    """The run began on its own machines, and ended on those that the policy lists."""
    kinds = [attempt["instance_type"] for attempt in report["attempts"]]
    if kinds[0] == kind or kinds[-1] != kind:
        yield f"the attempts were on {', '.join(map(str, kinds))}; the last one must be on {kind}, the first must not"


def _split(report: Report, parts: int) -> Iterator[str]:
    """The run began with whole batches, and ended with the split ones."""
    splits = [attempt["microbatches"] for attempt in report["attempts"]]
    if splits[0] != 1 or splits[-1] != parts:
        yield f"the microbatches of the attempts are {', '.join(map(str, splits))}; the last must have {parts}"


def _curve(report: Report, tolerance: float) -> Iterator[str]:
    difference = report["reference_max_abs_loss_difference"]
    if difference is None or difference > tolerance:
        yield f"the loss differs from the undisturbed run by {difference}, it may by {tolerance:g}"
