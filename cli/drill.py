"""`rerail drill`: proves that a run can be restarted, by restarting it and comparing what it trains twice."""

import json
import math
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, field
from datetime import datetime, timedelta
from typing import Annotated, Any

import typer
from rich.panel import Panel
from rich.table import Table

from cli import place
from cli.console import Console
from cli.durations import parse_seconds
from cli.logbook import Logbook
from cli.losses import Losses, find_largest_difference
from cli.names import RunName, find_run
from cli.operators import ask
from cli.place import AsJson, Local, Place
from cli.training_logs.expressions import limit_time
from rerail.accounting.costs import find_dollars_per_hour
from rerail.decisions.decision import find_manifest_key, select_known
from rerail.model.checkpoint_layouts import Layout
from rerail.model.checkpoints import EMERGENCY, Checkpoint, Health
from rerail.model.formatting import format_dollars, format_duration
from rerail.model.policy import Policy
from rerail.model.run import Run, RunState
from rerail.model.signals import OperatorVerb
from rerail.ports import policy_of
from rerail.supervisor.pause import parse_pause

STEPS, TOLERANCE, PATIENCE = 10, 0.01, "60m"
# A script that saves more often than this many times in between is taken as it comes.
MOST_NEWER = 3
# How often to look for the save that was asked for once another new one is there, which does as well.
LOOKS_AT_OTHERS = 10
# Of a log that may be days long, the end is enough.
LOOK_BACK = timedelta(minutes=15)


@dataclass(frozen=True, slots=True)
class Proof:
    """What a drill has shown. `from_step` is the save that was restarted from, `forced` says that it was made for the
    drill; `largest_difference` is between the losses of one step before and after, `share` that as a share of the loss,
    `at_step` where. `lost_steps` were trained twice, `mttr_s` are the seconds from the stop to the first new step."""

    run: str
    proven: bool
    why: str
    jobs: tuple[str, ...]
    from_step: int | None = None
    forced: bool = False
    steps_compared: int = 0
    largest_difference: float | None = None
    share: float | None = None
    at_step: int | None = None
    tolerance: float = TOLERANCE
    lost_steps: int | None = None
    mttr_s: float | None = None


class Failed(Exception):
    """The drill has come to nothing; the message says why."""


def drill(
    run: RunName,
    steps: Annotated[int, typer.Option(help="Steps that it trains on after the save, to compare.", min=1)] = STEPS,
    tolerance: Annotated[
        float, typer.Option(help="By how much the losses may differ, as a share of the loss.", min=0.0)
    ] = TOLERANCE,
    patience: Annotated[str, typer.Option(help="How long to wait for machines and steps, such as 90m.")] = PATIENCE,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask first.")] = False,
    why: Annotated[str, typer.Option("--why", help="Kept in the run's timeline, with your name.")] = "",
    local: Local = False,
    as_json: AsJson = False,
) -> None:
    """Prove that a run can be restarted: save, train some steps, stop, relaunch from that save, compare those steps.

    Exit status 0 if it is proven. It costs the steps and a restart, and nothing else: no budget is charged, and no save
    is distrusted. A script without an agent is restarted from its own newest save.
    """
    from rerail.aws.ssm import SsmPolicies

    where = place.find(local=local)
    record = find_run(where, run)
    policy = policy_of(record, SsmPolicies(where.outputs["PolicyPrefix"], place.now))
    _check(where, record)
    within = parse_seconds(patience, "--patience")
    console = Console(stderr=True)
    if not yes:
        _confirm(record, policy, steps)
    it = RestartDrill(
        where, run, policy, steps, tolerance, within, why=why, say=lambda line: console.print(line, markup=False)
    )
    try:
        proof = it.prove()
    except KeyboardInterrupt:
        console.print(f"not waited for: the run goes on, `rerail show {run}` tells what became of it", markup=False)
        raise typer.Exit(130) from None
    if as_json:
        typer.echo(json.dumps(_plain(proof), indent=2))
    else:
        Console().print(_page(proof))
    raise typer.Exit(0 if proof.proven else 1)


def _check(where: Place, run: Run) -> None:
    """What can be told before anybody is asked; the supervisor looks again."""
    if run.state is RunState.HELD:
        place.fail(f"{run.id} is held: {run.hold_text}", f"`rerail release {run.id}`, and drill it when it trains")
    attempt = run.current
    if run.state is not RunState.WATCHING or attempt.secondary != "Training":
        doing = attempt.secondary or attempt.status or "not launched"
        place.fail(f"{run.id} does not train ({run.state}, {doing})", "drill it when it does")
    if run.proposal:
        place.fail(f"{run.proposal.id} waits for an answer", f"`rerail show {run.id}` tells how to answer it")
    if not run.checkpoint_uri:
        place.fail(f"the jobs of {run.id} save nowhere that Rerail knows of", "give the job a CheckpointConfig")
    name = where.outputs.get("PauseParameter")
    if name and parse_pause(where.client("ssm").get_parameter(Name=name)["Parameter"]["Value"]):
        place.fail(
            "Rerail is paused for this account: no job is stopped or launched", "`rerail resume`, then drill again"
        )


def _confirm(run: Run, policy: Policy, steps: int) -> None:
    price = find_dollars_per_hour(run, policy.prices)
    costs = f"; its machines cost {format_dollars(price)} an hour" if price else ""
    typer.echo(f"{run.id} is stopped and relaunched: {steps} steps or more are trained twice{costs}.", err=True)
    if not typer.confirm("Drill it?", err=True):
        place.fail("not drilled", "--yes does not ask")


def _is_clean(checkpoint: Checkpoint) -> bool:
    return checkpoint.is_whole and checkpoint.health is Health.CLEAN


@dataclass
class RestartDrill:
    """One drill, from the save to the comparison."""

    where: Place
    run_id: str
    policy: Policy
    steps: int
    tolerance: float
    within_s: float
    why: str = ""
    say: Callable[[str], None] = print
    clock: Callable[[], float] = time.monotonic
    sleep: Callable[[float], None] = time.sleep
    _losses: dict[str, Losses] = field(default_factory=dict)

    def __post_init__(self) -> None:
        from rerail.aws.s3 import S3Checkpoints

        self._book = Logbook(self.where.client("logs"), place.now() - LOOK_BACK)
        self._saves = S3Checkpoints()

    def prove(self) -> Proof:
        """What it has shown, be it that the run cannot be restarted."""
        run = self._load()
        before = run.current
        facts: dict[str, Any] = {"run": self.run_id, "jobs": (before.job_name,), "tolerance": self.tolerance}
        try:
            self._has_losses(run)
            start, forced = self._saved(run)
            facts |= {"from_step": start, "forced": forced}
            facts |= {"from_step": (start := self._trained(run, start))}
            stopped_at = self._stopped(start)
            after = self._relaunched(run)
            job = after.current.job_name
            facts |= {"jobs": (before.job_name, job), "from_step": after.current.resumed_from_step or 0}
            if not before.agent and after.current.resumed_from_step is None:  # of a file, only the new job tells
                facts |= {"from_step": self._found_start(before.job_name, job)}
            return self._compared(before.job_name, after, stopped_at, facts)
        except Failed as error:
            return Proof(**facts, proven=False, why=str(error))

    def _has_losses(self, run: Run) -> None:
        """Require losses to compare before anything is requested; do not wait for metrics that are not defined."""
        names, defined = self.policy.metrics, run.defined_metrics
        missing = [] if run.current.agent or defined is None else {names.step, names.loss} - {*defined}
        for _ in self._looks(within_s=1.0 if missing else min(self.within_s, 300.0)):
            if self._read(run.current.job_name).by_step:
                return
        why = f", and its jobs define no metric named {' or '.join(sorted(missing))}" if missing else ""
        raise Failed(f"its log has no line with a step and a loss{why}: print Rerail's line, or add MetricDefinitions")

    def _saved(self, run: Run) -> tuple[int, bool]:
        """The step to restart from: of a save made for it, or of the newest that there is."""
        there = {checkpoint.step for checkpoint in self._clean(run)}
        if run.current.agent:
            patience = min(self.within_s, self.policy.save.deadline.total_seconds())
            until = place.now() + timedelta(seconds=patience)
            self.say(f"asking the agent to save; the job goes on; it waits for a checkpoint until {until:%H:%M} UTC")
            ask(self.where, self.run_id, OperatorVerb.SAVE, self._reason(), quietly=True)
            others = 0
            for _ in self._looks(within_s=patience):
                self._still_trains(run)
                new = [checkpoint for checkpoint in self._clean(run) if checkpoint.step not in there]
                forced = [checkpoint for checkpoint in new if checkpoint.reason == EMERGENCY]
                others += bool(new)
                if forced or others > LOOKS_AT_OTHERS:  # it may have saved at that very step of its own accord
                    chosen = (forced or new)[0]
                    self.say(f"saved at step {chosen.step}")
                    return chosen.step, bool(forced)
            waited = format_duration(timedelta(seconds=patience))
            self.say(f"the agent saved no checkpoint within {waited}: the newest one is used")
        newest = self._find_newest(run)
        if newest is None:
            raise Failed("it has saved nothing clean yet")
        return newest, False

    def _find_newest(self, run: Run) -> int | None:
        """The step of the newest save; of a file that is overwritten, the last one logged before it was seen."""
        found = self._list(run)
        if (steps := [checkpoint.step for checkpoint in found if _is_clean(checkpoint)]) or run.current.agent:
            return max(steps, default=None)
        files = [file for file in found if file.layout == Layout.FILE]
        if not files:
            return None
        saved_at = max(file.saved_at for file in files)
        logged = self._read(run.current.job_name).at.items()
        # S3 counts whole seconds.
        return max((step for step, at in logged if at.replace(microsecond=0) <= saved_at), default=None)

    def _trained(self, run: Run, start: int) -> int:
        """Wait until so many steps are trained since the save; a script that would not look back at it and saves again
        meanwhile moves the start."""
        job, newer = run.current.job_name, 0
        self.say(f"letting it train {self.steps} steps from step {start} on")
        for _ in self._looks():
            self._still_trains(run)
            losses = self._read(job)
            if not run.current.agent and newer < MOST_NEWER:
                found = self._find_newest(run)
                newest = start if found is None else found
                start, newer = (newest, newer + 1) if newest > start else (start, newer)
            beyond = [step for step in losses.by_step if step > start]
            if beyond and max(beyond) >= start + (self.steps if newer < MOST_NEWER else 1):
                return start
        raise Failed(f"it has not trained {self.steps} steps beyond step {start} in time")

    def _stopped(self, start: int) -> datetime:
        """Ask for the restart; when the stop was decided, from which the time to repair counts."""
        self.say(f"stopping the job, to relaunch it from step {start}")
        id = ask(self.where, self.run_id, OperatorVerb.DRILL, self._reason(), quietly=True, step=start)
        for _ in self._looks(within_s=min(self.within_s, 600.0)):
            timeline = self.where.runs.timeline(self.run_id)
            entry = next((entry for entry in timeline if entry.signal.get("id") == id), None)
            if entry is None:
                continue
            if not any(action.get("type") == "StopJob" for action in entry.actions):
                raise Failed(entry.reason)
            return entry.at
        raise Failed("the supervisor has not answered: `rerail status` tells whether it is well")

    def _relaunched(self, before: Run) -> Run:
        """The run with the job that the drill has launched."""
        number = before.current.number + 1
        for _ in self._looks():
            run = self._load()
            if len(run.attempts) >= number and run.attempts[number - 1].exists:
                self.say(f"{run.attempts[number - 1].job_name} is launched")
                return run
            if run.state.is_end:
                raise Failed(f"the run is {run.state}: {run.hold_text or run.current.failure_reason}")
        raise Failed("the next job was not launched in time")

    def _found_start(self, before: str, job: str) -> int:
        """The step that a script without a named checkpoint went on from, by the first line of its new job."""
        first = self._read(before).first_step
        for _ in self._looks():
            if (step := self._read(job).first_step) is not None:
                if first is not None and step <= first:
                    raise Failed(f"it began again at step {step}")
                return step - 1
        raise Failed(f"{job} has logged no step in time")

    def _compared(self, before: str, run: Run, stopped_at: datetime, facts: dict[str, Any]) -> Proof:
        """Wait until the new job has trained the same steps, and lay the losses side by side."""
        job, number, start = run.current.job_name, run.current.number, facts["from_step"]
        old, new = self._read(before), self._losses_of(job)
        wanted = sorted(step for step in old.by_step if step > start)[: self.steps]
        if not wanted:
            raise Failed(f"it was restarted from step {start}, its very end: no step was trained twice")
        for _ in self._looks():
            new = self._read(job)
            if new.last_step is not None and new.last_step >= wanted[-1]:
                break
            now = self._load()
            if now.state.is_end or now.current.number > number:
                attempt = now.attempts[number - 1]
                raise Failed(f"{job} ended {attempt.status}: {attempt.failure_reason or now.hold_text}")
        else:
            raise Failed(f"{job} has not reached step {wanted[-1]} in time")
        first_at = min((at for at in new.at.values() if at >= stopped_at), default=None)
        facts |= {
            "lost_steps": max(0, (old.last_step or start) - start),
            "mttr_s": round((first_at - stopped_at).total_seconds(), 1) if first_at else None,
        }
        if new.first_step is not None and new.first_step <= start:
            raise Failed(f"it began again at step {new.first_step}, and not after step {start}")
        common = [step for step in wanted if step in new.by_step]
        if not common:
            raise Failed("the new job's log names other steps than the old one's")
        at_step, difference, share = find_largest_difference(old, new, common)
        proven = share <= self.tolerance
        beyond = f"the losses of step {at_step} differ by {share:.2%}, of at most {self.tolerance:.2%}: "
        why = (
            f"{len(common)} steps were trained twice with the same losses"
            if proven
            else (beyond + "the order of the data, the random numbers or the optimizer are not restored as they were")
        )
        facts |= {"steps_compared": len(common), "largest_difference": difference, "share": share, "at_step": at_step}
        return Proof(**facts, proven=proven, why=why)

    # Looking

    def _looks(self, *, within_s: float | None = None) -> Iterator[None]:
        """Again and again, until the time is up."""
        end = self.clock() + (self.within_s if within_s is None else within_s)
        while self.clock() < end:
            yield
            self.sleep(0.3 if self.where.is_local else 5.0)

    def _load(self) -> Run:
        return find_run(self.where, self.run_id)

    def _still_trains(self, before: Run) -> None:
        run = self._load()
        if run.state is not RunState.WATCHING or run.current.number != before.current.number:
            raise Failed(f"the run is {run.state} now, for another reason than the drill: {run.hold_text}".rstrip(": "))

    def _clean(self, run: Run) -> list[Checkpoint]:
        """Its saves, newest first, that the supervisor would resume from."""
        return sorted(filter(_is_clean, self._list(run)), key=lambda c: c.step, reverse=True)

    def _list(self, run: Run) -> Sequence[Checkpoint]:
        return select_known(run, self._saves.list_checkpoints(run.checkpoint_uri, signing_key=find_manifest_key(run)))

    def _losses_of(self, job: str) -> Losses:
        if job not in self._losses:
            description = self.where.client("sagemaker").describe_training_job(TrainingJobName=job)
            definitions = description.get("AlgorithmSpecification", {}).get("MetricDefinitions", [])
            names = self.policy.metrics
            self._losses[job] = Losses.of(definitions, step=names.step or "step", loss=names.loss or "loss")
        return self._losses[job]

    def _read(self, job: str) -> Losses:
        losses = self._losses_of(job)
        for line in self._book.read_new_lines(job):
            try:
                with limit_time():
                    losses.read(line)
            except TimeoutError:
                raise Failed(
                    "an expression of its MetricDefinitions takes too long for one line: simplify it"
                ) from None
        return losses

    def _reason(self) -> str:
        return f"restart drill{f': {self.why}' if self.why else ''}"


def _plain(proof: Proof) -> dict[str, Any]:
    """JSON has no infinity."""
    facts = asdict(proof)
    return {name: None if isinstance(v, float) and not math.isfinite(v) else v for name, v in facts.items()}


def _page(proof: Proof) -> Panel:
    table = Table.grid(padding=(0, 2))
    if proof.from_step is not None:
        made = "saved for the drill" if proof.forced else "the newest that there was"
        table.add_row("restarted from", f"step {proof.from_step:,} ({made})")
    if proof.mttr_s is not None:
        table.add_row("MTTR", f"{format_duration(timedelta(seconds=proof.mttr_s))} from the stop to the first new step")
    if proof.lost_steps is not None:
        table.add_row("lost steps", f"{proof.lost_steps:,} trained twice")
    if proof.largest_difference is not None:
        where = f"at step {proof.at_step:,}, over {proof.steps_compared} steps"
        table.add_row("largest difference", f"{proof.largest_difference:.3g} of the loss ({proof.share:.2%}) {where}")
    table.add_row("jobs", " -> ".join(proof.jobs))
    verdict = "[bold green]proven restartable[/]" if proof.proven else "[bold red]not proven[/]"
    table.add_row("why", proof.why)
    return Panel(table, title=f"{proof.run}: {verdict}", title_align="left")
