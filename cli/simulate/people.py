"""A run that people look after: they are called when the job has failed, and find the rest in their own time."""

from cli.simulate.accounts import Spent
from cli.simulate.faults import SimulatedFault
from cli.simulate.world import SimulatedFinding, SimulatedRun
from rerail.model.run import JobStatus

LOOK_S = 60.0


class OnCall:
    """They relaunch what has failed from its newest checkpoint, and fix what would fail again the second time."""

    def __init__(self, world: SimulatedRun) -> None:
        self.world = world
        self.attempt = 0
        self.called_for = 0
        self.resume: int | None = None
        self.failed_at: list[int] = []

    def begin(self) -> None:
        self._launch(None)
        self.world.schedule(LOOK_S, self._look)

    def _look(self) -> None:
        """No event is lost on them: how long they take is known as a whole."""
        self.on_job_changed()
        self.world.schedule(LOOK_S, self._look)

    def on_job_changed(self) -> None:
        job = self.world.job
        if job is None or job.number != self.attempt or self.called_for == self.attempt:
            return
        if job.status is JobStatus.FAILED:
            self.called_for = self.attempt
            self.world.waiting = Spent.HUMAN
            self.world.counts["pages"] += 1
            self.failed_at.append(job.step)
            if self.failed_at.count(job.step) > 1:
                self.world.remove_causes()
            delay = self.world.draw_delay(self.world.assumed.human_crash, "people")
            self.world.schedule(delay, self._relaunch, self.attempt)
        elif job.status is JobStatus.STOPPED:
            self.called_for = self.attempt
            self._launch(self.resume)

    def on_fault(self, fault: SimulatedFault) -> None:
        world, slow = self.world, fault is SimulatedFault.SLOW
        world.counts["pages"] += 1
        delay = world.draw_delay(world.assumed.human_slow if slow else world.assumed.human_diverged, fault)
        world.schedule(delay, self._swap if slow else self._roll_back)

    def on_finding(self, found: SimulatedFinding) -> None:
        """Do nothing: people on call have no detectors."""

    def on_crash(self, text: str) -> None:
        """Do nothing: no process waits for a command."""

    def on_restart(self) -> None:
        """Do nothing: people on call restart nothing in place."""

    def _relaunch(self, attempt: int) -> None:
        if attempt == self.attempt and not self.world.is_live:
            self._launch(self.world.find_newest())

    def _roll_back(self) -> None:
        """Roll back to before the onset, with its cause removed."""
        world = self.world
        if world.onset is not None and world.is_live:
            world.remove_causes()
            self.resume = world.find_newest(before=world.onset)
            world.stop()

    def _swap(self) -> None:
        """They have it saved first."""
        if self.world.slow and self.world.is_live:
            self.world.save_now(self._saved)

    def _saved(self, step: int) -> None:
        self.resume = step
        self.world.stop()

    def _launch(self, step: int | None) -> None:
        """Until there is capacity they try again and again."""
        if self.world.launch(f"run-{self.attempt + 1}", self.attempt + 1, resume_step=step):
            self.attempt += 1
        else:
            self.world.schedule(LOOK_S, self._launch, step)
