"""The jobs of `rerail acceptance`: scenarios of the demo with the acceptance job, on a clock of their own."""

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from cli.demo.scenarios import SCENARIOS, Name, Scenario
from rerail.model.policy import Policy
from rerail.model.prices import find_price

INSTANCE_TYPE = "ml.m5.large"
# The least for a process on a fast local clock, and on AWS.
LEAST_STEP_S, STEP_S = 0.1, 2.0
# Without the agent an onset is dated to a period of the metrics, and the steps before the margin must take longer.
LEAST_DATED_PERIODS = 1.25
STEPS_AFTER = 30
SAVE_EVERY = 10
# No job lasts longer, whatever becomes of this command.
MAX_RUNTIME_S = 3600
# A relaunch needs 15 minutes of it, so what a trial is expected to take is far less.
EXPECTED_JOB_MINUTES = 10
# A rollback needs a checkpoint that is so many steps older than the policy's margin; a larger margin takes too long.
STEPS_BEFORE_MARGIN, LARGEST_MARGIN = 50, 400
KEEP_ALIVE_S = 900
# No other job takes over the warm pool, since that needs a volume of the same size.
VOLUME_GB, POOL_VOLUME_GB = 30, 31
# The agent's shortest time without a step that is a hang: on AWS, and where the clock is fast.
HANG_S, LEAST_HANG_S = 60.0, 8.0
NO_RESTARTS = {"RERAIL_RESTARTS": "off"}
STEP_METRIC, LOSS_METRIC = "iter ([0-9]+)", r"\bloss ([-+.0-9eE]+)"
OWN_LINE = re.compile(r"iter (\d+) \| loss (\S+)")
AGENT_LINE = re.compile(r"rerail step=(\d+) (?:.*?\s)?loss=(\S+)")


class AcceptanceLossReader:
    """The lines of container/acceptance_job.py, with and without the agent."""

    def parse_losses(self, message: str) -> Iterator[tuple[int, float]]:
        for pattern in (AGENT_LINE, OWN_LINE):
            for step, loss in pattern.findall(message):
                yield int(step), float(loss)


@dataclass(frozen=True, slots=True)
class AcceptanceTrial:
    """A run that is started, and the scenario that it must follow."""

    name: str
    summary: str
    scenario: Scenario
    # The fault that the job makes: `error`, `nan`, `stall`, or none.
    fault: str = ""
    # Whether the script uses the agent, under its init.
    agent: bool = True
    # More of the job's environment.
    environment: Mapping[str, str] = field(default_factory=lambda: dict(NO_RESTARTS))
    # Whether this command stops the job, as a person would, once it has trained for a while.
    is_stopped: bool = False
    # How many jobs the run takes.
    jobs: int = 2
    # A fast local clock leaves a step at least this much time.
    least_step_s: float = LEAST_STEP_S

    @property
    def volume_gb(self) -> int:
        """Return the size of the machine's volume."""
        return POOL_VOLUME_GB if self.scenario.keep_alive else VOLUME_GB

    @property
    def dollars(self) -> float:
        """Return what it is expected to cost."""
        return (find_price(INSTANCE_TYPE, {}) or 0.0) * self.jobs * EXPECTED_JOB_MINUTES / 60

    def make_environment(self, scale: float) -> dict[str, str]:
        """Return the job's environment on a clock that runs `scale` times as fast as AWS's."""
        step_s = max(self.least_step_s, STEP_S / scale)
        facts = {
            "ACCEPTANCE_STEPS": self.scenario.steps,
            "ACCEPTANCE_STEP_SECONDS": round(step_s, 3),
            "ACCEPTANCE_SAVE_EVERY": SAVE_EVERY,
            "ACCEPTANCE_FAULT": self.fault,
            "ACCEPTANCE_FAULT_STEP": self.scenario.fault_step,
            "ACCEPTANCE_LAYOUT": "manifest" if self.agent else "own",
            "RERAIL_HANG_SECONDS": max(LEAST_HANG_S, HANG_S / scale) if self.fault == "stall" else "",
        }
        return {name: str(value) for name, value in facts.items() if value != ""} | dict(self.environment)

    @property
    def training_s(self) -> float:
        """Return the seconds that its steps take at least: up to the fault, and in the next attempt from the start."""
        return 0.0 if self.is_stopped else self.least_step_s * (self.scenario.fault_step + self.scenario.steps)


def fit_trials(names: Sequence[str], policy: Policy) -> tuple[list[AcceptanceTrial], dict[str, str]]:
    """Return the trials as this policy lets them end, and why it excludes others."""
    fitted, excluded, margin = [], dict[str, str](), policy.ladder.margin_steps
    for trial in (TRIALS_BY_NAME[name] for name in names):
        scenario = trial.scenario
        if scenario.in_place and not policy.restart.in_place:
            excluded[trial.name] = f"the policy {policy.name} does not restart in place"
            continue
        if trial.fault == "nan":
            if margin > LARGEST_MARGIN:
                excluded[trial.name] = (
                    f"the policy {policy.name} goes back {margin} steps, which takes too long: choose another --policy"
                )
                continue
            fault_step = max(scenario.fault_step, margin + STEPS_BEFORE_MARGIN)
            trial = replace(trial, scenario=replace(scenario, fault_step=fault_step, steps=fault_step + STEPS_AFTER))
            if not trial.agent:
                dated_s = LEAST_DATED_PERIODS * policy.metrics.period.total_seconds()
                step_s = max(LEAST_STEP_S, dated_s / (fault_step - margin - SAVE_EVERY))
                trial = replace(trial, least_step_s=step_s)
        fitted.append(trial)
    return fitted, excluded


def _follow(name: Name, **changes: Any) -> Scenario:
    """Return a scenario of the demo for a job of its own, without an undisturbed run beside it."""
    usual: dict[str, Any] = {"exact": False, "drill": "", "steps": 120, "fault_step": 60}
    return replace(SCENARIOS[name], **usual | changes)


FAILED = _follow(Name.CRASH, causes=("user_code",))
TRIALS: tuple[AcceptanceTrial, ...] = (
    AcceptanceTrial("crash", "the script raises an exception", FAILED, fault="error"),
    AcceptanceTrial("nan", "the loss becomes NaN", _follow(Name.NAN), fault="nan"),
    AcceptanceTrial("hang", "no step completes any more", _follow(Name.STALL), fault="stall"),
    AcceptanceTrial(
        "in-place",
        "the script raises an exception under the agent's init",
        _follow(Name.INPLACE, causes=("user_code",), findings=(), rolls_back=False),
        fault="error",
        # Longer than usual: the functions that send the command may start cold.
        environment={"RERAIL_HOLD_SECONDS": "120"},
        jobs=1,
    ),
    AcceptanceTrial(
        "stop", "a person stops the job", _follow(Name.SIGTERM, faults=None, steps=100_000), is_stopped=True, jobs=1
    ),
    AcceptanceTrial(
        "own-layout",
        "the loss of a script without an agent becomes NaN",
        _follow(Name.HF, fault_step=150, steps=200, breaks=""),
        fault="nan",
        agent=False,
        environment={"RERAIL_MAILBOX": "off"},
    ),
    AcceptanceTrial(
        "spot", "the script raises an exception on a spot machine", replace(FAILED, spot=True), fault="error"
    ),
    AcceptanceTrial(
        "warm-pool",
        "the script raises an exception, and its machine is kept warm",
        replace(FAILED, keep_alive=KEEP_ALIVE_S, pool="Reused"),
        fault="error",
    ),
)
TRIALS_BY_NAME = {trial.name: trial for trial in TRIALS}
