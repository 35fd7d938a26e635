"""Missing or unreadable configuration never increases what Rerail may do."""

from dataclasses import fields, is_dataclass, replace
from datetime import timedelta

import pytest

from rerail.messages.messages import JobStateChanged
from rerail.model.actions import Severity
from rerail.model.errors import PolicyError, StateUnknown
from rerail.model.policy import Mode, parse_policy
from rerail.model.run import RunState
from tests.fakes import DEFAULT, Agent, World


def with_run_under(mode: Mode) -> World:
    """A run under the policy `careful` of this mode, with checkpoints."""
    world = World()
    world.policies.by_name["careful"] = replace(DEFAULT, name="careful", mode=mode)
    world.adopt(policy="careful")
    for step in (100, 200):
        world.minutes(5)
        world.checkpoints.save(step=step)
    return world


def remove(world: World, monkeypatch, error: Exception | None) -> None:
    """Delete the policy, or have it raise this error."""
    policy = world.policies.by_name.pop("careful")
    if error is None:
        return

    def get(name):
        if name == "careful":
            raise error
        return world.policies.by_name.get(name, policy)

    monkeypatch.setattr(world.policies, "get", get)


@pytest.mark.threat("T27")
@pytest.mark.parametrize("error", [None, PolicyError("policy 'careful': field 'mode' is 'x'")], ids=["gone", "broken"])
@pytest.mark.parametrize("mode", [Mode.OBSERVE, Mode.APPROVE, Mode.PAUSE])
def test_a_removed_policy_lets_rerail_do_nothing_more(mode, error, monkeypatch):
    """Renamed, deleted or broken by a deployment: the run is treated as before, and on-call is paged once."""
    world = with_run_under(mode)
    remove(world, monkeypatch, error)
    world.minutes(15)
    world.lose_node(minutes=20)
    assert world.sagemaker.live() == []
    assert world.notice_titles().count("gpt: its policy cannot be used") == 1


@pytest.mark.threat("T27")
@pytest.mark.parametrize("mode", [Mode.APPROVE, Mode.PAUSE])
def test_a_policy_that_is_removed_while_a_launch_waits_is_paged_too(mode, monkeypatch):
    """The run waits for an approval or for the end of the pause."""
    world = with_run_under(mode)
    world.lose_node(minutes=3)
    remove(world, monkeypatch, None)
    world.minutes(20)
    assert world.sagemaker.live() == []
    assert world.notice_titles().count("gpt: its policy cannot be used") == 1


@pytest.mark.threat("T27")
def test_a_removed_policy_still_recovers_what_it_may(monkeypatch):
    """A run under `act` is relaunched as before. The page closes once the policy is deployed again."""
    world = with_run_under(Mode.ACT)
    policy = world.policies.by_name["careful"]
    remove(world, monkeypatch, None)
    world.minutes(9)
    assert world.notice_titles() == [], "a deployment may be under way"
    world.lose_node(minutes=15)
    assert world.sagemaker.live() == ["gpt-a002"]
    page = next(notice for notice in world.bus.notices if notice.severity is Severity.PAGE)
    assert "mode act" in page.body and "policies/careful.toml" in page.todo
    world.policies.by_name["careful"] = policy
    world.minutes(2)
    assert world.notice_titles().count("gpt: all clear: its policy is back") == 1
    assert world.run().pages == ()


@pytest.mark.threat("T27")
def test_the_last_policy_is_the_newest_that_was_read(monkeypatch):
    """A policy made stricter and then removed, with no decision in between: the stricter one applies."""
    world = with_run_under(Mode.ACT)
    world.policies.by_name["careful"] = replace(DEFAULT, name="careful", mode=Mode.OBSERVE)
    world.minutes(1)
    remove(world, monkeypatch, None)
    world.lose_node(minutes=15)
    assert world.sagemaker.live() == []


@pytest.mark.threat("T27")
def test_a_run_whose_policy_was_never_read_is_only_observed():
    """A record of an earlier version knows no policy."""
    world = with_run_under(Mode.APPROVE)
    run = world.run()
    world.runs.save(replace(run, last_policy=None, version=run.version + 1))
    del world.policies.by_name["careful"]
    world.minutes(15)
    world.lose_node(minutes=15)
    assert world.sagemaker.live() == []
    assert "the run is only observed" in next(n.body for n in world.bus.notices if n.severity is Severity.PAGE)


@pytest.mark.threat("T27")
def test_the_pause_covers_a_removed_policy(monkeypatch):
    """Rerail is paused, and the policy is gone: nothing is launched. An account's pause is not a policy's mode."""
    world = with_run_under(Mode.ACT)
    world.pause.paused = True
    world.minutes(1)
    remove(world, monkeypatch, None)
    world.lose_node(minutes=15)
    assert world.sagemaker.live() == []
    world.pause.paused = False
    world.minutes(15)
    assert world.sagemaker.live() == ["gpt-a002"]


@pytest.mark.threat("T27")
def test_an_outage_of_the_parameters_changes_nothing(monkeypatch):
    """Unreadable is not removed: the run waits, and is handled afterwards."""
    world = with_run_under(Mode.ACT)
    run = world.run()
    with monkeypatch.context() as patch:
        remove(world, patch, StateUnknown("GetParameter: throttled"))
        with pytest.raises(StateUnknown):
            world.supervisor().handle(JobStateChanged("gpt"))
        world.minutes(3)
        assert (world.run(), world.run().state) == (run, RunState.WATCHING)


@pytest.mark.threat("T27")
def test_a_job_is_adopted_though_the_default_is_missing_too():
    """Neither the named policy nor the default can be read: the run is observed."""
    world = World()
    world.policies.by_name.clear()
    world.adopt()
    assert world.run().observe_only


SECTIONS = {f.name: value for f in fields(DEFAULT) if is_dataclass(value := getattr(DEFAULT, f.name))}
DURATIONS = [(name, f.name) for name, section in SECTIONS.items() for f in fields(section) if f.type is timedelta]


@pytest.mark.threat("T26")
@pytest.mark.parametrize(("section", "name"), DURATIONS)
def test_a_duration_of_zero_fails_no_sweep(section, name):
    world = World()
    least = "1ms" if section == "detection" else "0s"  # of most thresholds zero is refused
    world.policies.by_name["default"] = parse_policy(f'[{section}]\n{name} = "{least}"\n', name="default")
    world.sagemaker.defined_metrics = ()
    world.adopt()
    Agent(world).hello()
    world.minutes(6)
    report = world.round().run()
    assert (report.broken, report.unread) == ({}, "")
