"""The scenarios: what happens to a run from its first event to its end, phase by phase.

`with an agent`: its agent finds that the loss is no number and is asked to save first, the job is stopped and rolled
back; then its machine dies, and it is relaunched. `without`: its machine breaks and is given back with its warm pool,
its loss turns into no number in CloudWatch, and an operator rolls it back; what its script must not find is set aside.
In every phase it takes one relaunch, except in the first and in the last."""

import json
import re
import time
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from itertools import count
from pathlib import Path
from typing import Any, TypeVar

from rerail.decisions.quarantine import PLACE
from rerail.model.run import Run, RunState
from rerail.model.signals import OperatorVerb
from rerail.sweep.describe_schedule import OWN_MINUTE, is_describe_due
from tests.deployed.faults.faulty_aws import FaultyAws
from tests.deployed.faults.points import HUNG, KILLED, LOST, Call, Phase, Plan, Point
from tests.deployed.jobs import BUCKET

JOBS = Path(__file__).parent / "jobs"
SAVED_BEFORE = 20
PATIENCE_S = 60.0
# The time from the begin of a scenario to about its middle.
MIDDLE = timedelta(seconds=15)
LOOK_EVERY_S = 0.08
# A phase has one whole round of the sweep in it; where its call was not met yet, it is given some more.
ROUNDS, MORE_ROUNDS = 2, 5
# Where a refusal is for a human to judge: what may not be created, and what may not be moved out of the way.
ASKS = ("sagemaker:CreateTrainingJob", "quarantine.", "s3:ListObjectsV2", "s3:GetObject")
# Ways to break a call in which AWS has not refused it.
UNSURE = (*KILLED, *LOST, *HUNG)
ALARMED_WITHIN_S = 10.0
LISTEN_S = 2.0
SWEEP, ROUND = "sweep", "sagemaker:ListTrainingJobs"
T = TypeVar("T")


@dataclass
class ScenarioResult:
    """What came of a scenario: the phases in which a call was broken and those in which a human was asked, letters that
    nobody could handle, each with its alarm, what is wrong, what was called, and what people were told."""

    fired: set[str] = field(default_factory=set)
    held: set[str] = field(default_factory=set)
    letters: tuple[str, ...] = ()
    wrong: str = ""
    calls: list[Call] = field(default_factory=list)
    notices: frozenset[str] = frozenset()
    seconds: float = 0.0


class TurnedOut(Exception):
    """The run has come to an end that it should not have come to; the message says to which."""


def named(number: int, at: datetime) -> str:
    """A name of the run whose own minute is that one: the sweep looks at its saves too, which it does now and then."""
    names = (f"crash-{number:05d}-{extra}" for extra in count())
    return next(name for name in names if is_describe_due(name, at, every=OWN_MINUTE))


class ScenarioRun:
    """One run, and what the bench does to it; `expected` is what people must be notified of, without digits."""

    def __init__(
        self,
        faulty: FaultyAws,
        number: int,
        plan: Plan,
        *,
        expected: Collection[str] = (),
        once: Mapping[Phase, Collection[str]] | None = None,
        fresh: bool = False,
    ) -> None:
        self.faulty, self.plan, self.name = faulty, plan, named(number, datetime.now(UTC) + MIDDLE)
        self.expected, self.once, self.fresh = expected, once or {}, fresh
        self.folder = faulty.marks / self.name
        self.phase = ""
        self.found = ScenarioResult()

    def execute(self) -> ScenarioResult:
        """From the first event to the end."""
        began = time.monotonic()
        self.folder.mkdir()
        try:
            SCENARIOS[self.plan.scenario](self)
            self._leave()
            run = self.until(self._at_rest, "its end")
            self._await_notices()
            self.found.wrong = "; ".join(self._shortcomings(run))
        except (TimeoutError, TurnedOut) as error:
            self.found.wrong = f"in the phase {self.phase}: {error}: {self._describe()}"
            if self.faulty.has_fired(self._fired(self.phase)):
                self.found.fired.add(self.phase)
        self._settle_letters()
        self._take_calls()
        if self.found.wrong:
            self._put_away()
        self.found.seconds = time.monotonic() - began
        return self.found

    def enter(self, phase: str) -> None:
        """From now on calls are noted as this phase's, and one is broken if it is to be."""
        self._leave()
        self.phase = phase
        point = self.plan.of(phase)
        if self.fresh:
            self.faulty.freshen()
        elif point and point.site in self.once.get(Phase(self.plan.scenario, phase), ()):
            self.faulty.freshen(point.function)
        fault = {"site": point.site, "how": point.how, "fired": self._fired(phase)} if point else None
        self.faulty.now(self.name, phase, fault)

    def round(self) -> None:
        """Let the sweep go round before anything happens, where one of its calls is to be broken, or to be seen."""
        point = self.plan.of(self.phase)
        if point is None or point.function == SWEEP:
            self._leave()

    def _fired(self, phase: str) -> str:
        return f"fired-{self.name}-{phase.replace(' ', '-')}"

    def _leave(self) -> None:
        """A phase is over when the sweep has been round in it, and when its call has been broken."""
        if not self.phase:
            return
        point, fired = self.plan.of(self.phase), self._fired(self.phase)
        begun, end = self._rounds(), time.monotonic() + self.faulty.pace.real(PATIENCE_S)
        while not (point and self.faulty.has_fired(fired)) and time.monotonic() < end:
            if self._rounds() - begun >= (MORE_ROUNDS if point else ROUNDS):
                break
            time.sleep(LOOK_EVERY_S)
        if self.faulty.has_fired(fired):
            self.found.fired.add(self.phase)

    def _rounds(self) -> int:
        """How often the sweep has been round in this phase."""
        self._take_calls()
        return sum(call.phase == self.phase and ROUND in call.site for call in self.found.calls)

    def _take_calls(self) -> None:
        self.found.calls += [call for call in self.faulty.new_calls() if call.run == self.name]

    def submit(self, script: str, **how: Any) -> None:
        """The first job of the run."""
        mailbox = self.faulty.aws.outputs["MailboxBucket"]
        places: dict[str, Any] = {"MARKS": str(self.faulty.marks), "BUCKET": BUCKET, "MAILBOX": mailbox}
        self.faulty.account.submit(self.name, script=JOBS / script, **how, **places)

    def sign(self, word: str) -> None:
        """Tell the job something."""
        (self.folder / word).touch()

    def marks(self, word: str, attempt: int | None = None) -> list[dict[str, Any]]:
        """What the jobs have marked so far."""
        log = self.folder / "log.jsonl"
        lines = log.read_text().splitlines() if log.exists() else []
        found = [json.loads(line) for line in lines]
        return [mark for mark in found if mark["word"] == word and attempt in (None, mark["attempt"])]

    def saved(self, attempt: int) -> int:
        """The newest step that the attempt has saved; 0 for none."""
        return max((mark["step"] for mark in self.marks("saved", attempt)), default=0)

    def until(self, look: Callable[[], T | None], what: str) -> T:
        patience_s = self.faulty.pace.real(PATIENCE_S)
        end = time.monotonic() + patience_s
        while time.monotonic() < end:
            if found := look():
                return found
            time.sleep(LOOK_EVERY_S)
        raise TimeoutError(f"{what} did not come within {patience_s:g} s")

    def goes_on(self, attempt: int, *, agent: bool) -> None:
        """Wait until this attempt trains, has saved, and nothing is owed any more: whose agent says what is saved has
        recovered by then, and people are told so."""

        def look() -> bool:
            if self.saved(attempt) - self._from(attempt) < SAVED_BEFORE and not self._may_be_held():
                return False
            run = self.run()
            if run is None:
                return False
            if run.state is RunState.HELD:
                self._release()
                return False
            if run.state.is_end:
                raise TurnedOut(f"the run is {run.state} {run.hold_reason}")
            here = run.current.number == attempt and run.state is RunState.WATCHING and not run.pending
            if agent:
                here = here and run.current.agent and run.open_incident is None
            return here and self.saved(attempt) > self._from(attempt)

        self.until(look, f"attempt {attempt}")

    def _from(self, attempt: int) -> int:
        return next((mark["step"] for mark in self.marks("from", attempt)), 0)

    def _may_be_held(self) -> bool:
        """A human may be asked to judge what was refused here."""
        point = self.plan.of(self.phase)
        return bool(point and self.faulty.has_fired(self._fired(self.phase)))

    def _release(self) -> None:
        """A human has looked, and finds that the refusal was made up."""
        point = self.plan.of(self.phase)
        if self.phase in self.found.held:
            return
        if point is None or point.how in UNSURE or not any(site in point.site for site in ASKS):
            raise TurnedOut("a human is asked, for no reason")
        self.found.held.add(self.phase)
        self.command(OperatorVerb.RELEASE)

    def command(self, verb: OperatorVerb, **more: Any) -> None:
        """An operator's word, as the command line puts it on the bus."""
        detail = {"run": self.name, "verb": verb.value, "who": "bench", "why": "as played", **more}
        entry = {"Source": "rerail.operator", "DetailType": "Rerail Command", "Detail": json.dumps(detail)}
        bus = self.faulty.aws.outputs["BusName"]
        self.faulty.aws.client("events").put_events(Entries=[{**entry, "EventBusName": bus}])

    def kill(self, job: str) -> None:
        self.faulty.account.inject("kill", TrainingJobName=job)

    def run(self) -> Run | None:
        return self.faulty.runs.load(self.name)

    def _at_rest(self) -> Run | None:
        run = self.run()
        if run and run.state is RunState.HELD:
            self._release()
            return None
        return run if run and run.state.is_end and not run.pending else None

    def _await_notices(self) -> None:
        """Wait until every expected notice of this run has arrived; ignore others."""

        if not self.expected:  # nobody knows yet
            time.sleep(LISTEN_S)

        def look() -> bool:
            self.faulty.read_notices()
            return self._notices() >= set(self.expected)

        try:
            self.until(look, "what people are told")
        except TimeoutError as error:
            raise TimeoutError(
                f"{error}: not told: {', '.join(sorted(set(self.expected) - self._notices()))}"
            ) from error
        self.found.notices = frozenset(self._notices())

    def _notices(self) -> frozenset[str]:
        return frozenset(re.sub(r"\d+(\.\d+)?", "#", what) for what in self.faulty.notices[self.name])

    def _shortcomings(self, run: Run) -> Iterator[str]:
        if run.state is not RunState.COMPLETED:
            yield f"the run is {run.state}: {run.hold_reason}"
        yield from self._of_the_jobs()
        yield from self._of_the_steps()
        yield from self._of_the_saves()

    def _of_the_jobs(self) -> Iterator[str]:
        """As many as there should be, and never two at once, by SageMaker's own times and by what they say."""
        asked = {"NameContains": self.name, "SortBy": "CreationTime", "SortOrder": "Ascending"}
        names = [
            s["TrainingJobName"] for s in self.faulty.sagemaker.list_training_jobs(**asked)["TrainingJobSummaries"]
        ]
        wanted = [self.name, *(f"{self.name}-a{number:03d}" for number in range(2, ATTEMPTS[self.plan.scenario] + 1))]
        if names != wanted:
            yield f"its jobs are {', '.join(names)}"
        jobs = [self.faulty.sagemaker.describe_training_job(TrainingJobName=name) for name in names]
        for before, after in zip(jobs, jobs[1:], strict=False):
            if "TrainingEndTime" not in before or after["CreationTime"] < before["TrainingEndTime"]:
                yield f"{after['TrainingJobName']} was created while {before['TrainingJobName']} lived"
        for mark in self.marks("beside another"):
            yield f"the processes of attempt {mark['attempt']} lived beside others"

    def _of_the_steps(self) -> Iterator[str]:
        """Each attempt began where an earlier one had saved, or at the start, and never behind what went wrong."""
        numbers = sorted({mark["attempt"] for mark in self.marks("from")})
        for number in numbers:
            earlier = {mark["step"] for before in numbers if before < number for mark in self.marks("saved", before)}
            if self._from(number) not in {0, *earlier}:
                yield f"attempt {number} began at step {self._from(number)}, which nobody had saved"
        for trouble in self.marks("found"):
            if self._from(trouble["attempt"] + 1) >= trouble["step"]:
                yield f"attempt {trouble['attempt'] + 1} began behind the trouble of step {trouble['step']}"
        if not self.marks("finished"):
            yield "the last step was never trained"

    def _of_the_saves(self) -> Iterator[str]:
        """What was saved is there still: where it was saved, or aside."""
        kept = {key for prefix in (f"{self.name}/", f"{PLACE}{self.name}/") for key in self._keys(prefix)}
        for step in sorted({mark["step"] for mark in self.marks("saved")}):
            for pattern in FILES[self.plan.scenario]:
                if not any(key.endswith(pattern.format(step=step)) for key in kept):
                    yield f"{pattern.format(step=step)} is lost"

    def _put_away(self) -> None:
        """Stop what is left of a scenario that went wrong, so that it does not slow the next ones."""
        self.phase = ""
        self.faulty.now(self.name, "afterwards")
        self.command(OperatorVerb.STOP)
        names = self.faulty.sagemaker.list_training_jobs(NameContains=self.name, StatusEquals="InProgress")
        for job in names["TrainingJobSummaries"]:
            self.kill(job["TrainingJobName"])

    def _keys(self, prefix: str) -> Iterator[str]:
        for page in self.faulty.s3.get_paginator("list_objects_v2").paginate(Bucket=BUCKET, Prefix=prefix):
            yield from (item["Key"] for item in page.get("Contents", []))

    def _settle_letters(self) -> None:
        """Where a letter is left, on-call must be woken: the queue's alarm goes off. Then it is taken out."""
        found = []
        for queue in self.faulty.dead_letters():
            end = time.monotonic() + self.faulty.pace.real(ALARMED_WITHIN_S)
            while not (alarmed := self.faulty.is_alarmed(queue)) and time.monotonic() < end:
                time.sleep(LOOK_EVERY_S)
            letters = self.faulty.empty(queue)
            found.append(queue)
            if not alarmed:
                problem = f"{len(letters)} dead letters in {queue} and no alarm: {letters[:1]}"
                self.found.wrong = "; ".join(filter(None, (self.found.wrong, problem)))
        self.found.letters = tuple(found)

    def _describe(self) -> str:
        run = self.run()
        if run is None:
            return "it was never adopted"
        reasons = " / ".join(entry.reason for entry in self.faulty.runs.timeline(self.name))
        jobs = Counter(mark["word"] for mark in self.marks("from")), self.phase
        return f"{run.state}, attempt {run.current.number}, pending {len(run.pending)}, {jobs}; {reasons}"


def with_an_agent(scenario_run: ScenarioRun) -> None:
    """A loss that is no number, and then a machine that dies."""
    scenario_run.enter("adoption")
    scenario_run.submit("with_agent.py")
    scenario_run.goes_on(1, agent=True)
    scenario_run.enter("handshake")
    scenario_run.sign("trouble-1")
    scenario_run.goes_on(2, agent=True)
    scenario_run.enter("recovery")
    scenario_run.kill(f"{scenario_run.name}-a002")
    scenario_run.goes_on(3, agent=True)
    scenario_run.enter("completion")
    scenario_run.round()
    scenario_run.sign("finish")


def without(scenario_run: ScenarioRun) -> None:
    """A machine that is to be given back, a loss that is no number, and an operator who rolls the run back."""
    scenario_run.enter("adoption")
    scenario_run.submit("without_agent.py", machines={"KeepAlivePeriodInSeconds": 3600})
    scenario_run.goes_on(1, agent=False)
    scenario_run.enter("machine")
    scenario_run.sign("broken-1")
    scenario_run.goes_on(2, agent=False)
    scenario_run.enter("loss")
    scenario_run.sign("nan-2")
    scenario_run.goes_on(3, agent=False)
    scenario_run.enter("command")
    scenario_run.command(OperatorVerb.ROLLBACK, step=scenario_run.saved(3) - SAVED_BEFORE)
    scenario_run.goes_on(4, agent=False)
    scenario_run.enter("completion")
    scenario_run.round()
    scenario_run.sign("finish")


SCENARIOS: Mapping[str, Callable[[ScenarioRun], None]] = {"with an agent": with_an_agent, "without": without}
ATTEMPTS: Mapping[str, int] = {"with an agent": 3, "without": 4}
FILES: Mapping[str, tuple[str, ...]] = {
    "with an agent": ("/step-{step:09d}/manifest.json", "/step-{step:09d}/model.pt"),
    "without": (
        "/global_step{step}/mp_rank_00_model_states.pt",
        "/global_step{step}/zero_pp_rank_0_mp_rank_00_optim_states.pt",
    ),
}
# Where calls are broken. The beginning and the end of a script without an agent are as those of one with it.
PHASES = (
    Phase("with an agent", "adoption"),
    Phase("with an agent", "handshake"),
    Phase("with an agent", "recovery"),
    Phase("with an agent", "completion"),
    Phase("without", "machine"),
    Phase("without", "loss"),
    Phase("without", "command"),
)


def undisturbed(scenario: str) -> Plan:
    return Plan(scenario, ())


def alone(point: Point) -> Plan:
    return Plan(point.scenario, (point,))
