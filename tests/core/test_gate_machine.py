"""The same hostile nights with a gate: a pause that comes and goes, a mode that asks, a brake that holds.

Whatever happens: while Rerail is paused nothing is stopped or created; in the mode `approve` nothing costly is done
without a word or its expiry, one word does one thing, and the brake is never exceeded."""

from dataclasses import replace
from datetime import datetime, timedelta
from typing import Any

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import initialize, invariant, rule

from rerail.messages.messages import CommandReceived
from rerail.model.policy import Mode
from rerail.model.run import RunState
from rerail.model.signals import OperatorVerb
from tests.core.test_machine import Nights

HOUR = timedelta(hours=1)


class GatedNights(Nights):
    """One run in a hostile world with a gate."""

    @initialize(mode=st.sampled_from([Mode.ACT, Mode.APPROVE]), brake=st.sampled_from([1, 2, 100]))
    def begin(self, mode: Mode, brake: int) -> None:
        super().begin()
        policy = self.world.policies.by_name["default"]
        limits = replace(policy.limits, account_relaunches=brake)
        self.world.policies.by_name["default"] = replace(policy, mode=mode, limits=limits)
        self.brake, self.made = brake, dict[str, datetime]()

    @rule()
    def somebody_pauses_or_resumes(self) -> None:
        self.world.pause.paused = not self.world.pause.paused

    @rule(verb=st.sampled_from([OperatorVerb.APPROVE, OperatorVerb.DENY]), late=st.booleans(), twice=st.booleans())
    def somebody_answers(self, verb: OperatorVerb, late: bool, twice: bool) -> None:
        """To what stands, or to what stood before."""
        standing = self.world.run().proposal
        named = "p1" if late or standing is None else standing.id
        self.commands += 1
        for _ in range(2 if twice else 1):
            self._handle(CommandReceived(f"c{self.commands}", "gpt", verb, "ada", "", named))

    def _pass_on(self, method: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        if method.__name__ in ("create", "stop"):
            assert not self.world.pause.paused, f"{method.__name__} while paused"
        if method.__name__ == "create":
            self._is_allowed(args[0]["TrainingJobName"])
        if method.__name__ == "stop":
            self._is_agreed_to(args[0])
        return super()._pass_on(method, args, kwargs)

    def _is_allowed(self, name: str) -> None:
        run, now = self.world.run(), self.world.clock()
        if name not in self.world.sagemaker.jobs:
            self.made[name] = now
        assert sum(now - HOUR < at <= now for at in self.made.values()) <= self.brake
        if self._asks():
            assert run.current.job_name == name and run.current.approved_by, "created without a word"

    def _is_agreed_to(self, name: str) -> None:
        run = self.world.run()
        if self._asks() and name == run.current.job_name and run.stop:
            assert run.stop.approved_by, "stopped without a word"

    def _asks(self) -> bool:
        return self.world.policies.get("default").mode is Mode.APPROVE

    @invariant()
    def a_proposal_speaks_of_the_run_as_it_is(self) -> None:
        run = self.world.run()
        if run.proposal:
            assert run.proposal.attempt == run.current.number
            assert not run.state.is_end

    @invariant()
    def one_word_does_one_thing(self) -> None:
        """A restart or a yes covers one job, a release another: never more jobs than words."""
        run = self.world.run()
        assert sum(attempt.approved_by == "ada" for attempt in run.attempts) <= self.commands

    @invariant()
    def what_is_kept_back_waits(self) -> None:
        run = self.world.run()
        assert not run.blocked_by or run.state is RunState.WAITING

    def teardown(self) -> None:
        if hasattr(self, "world"):
            self.world.pause.paused = False
        super().teardown()


TestGatedNights = GatedNights.TestCase
TestGatedNights.settings = settings(max_examples=150, stateful_step_count=40, deadline=None)
