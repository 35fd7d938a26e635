"""The settings of a policy for the agent: the first job gets the same ones as its relaunches."""

from dataclasses import replace
from datetime import timedelta
from pathlib import Path

import pytest

from rerail.model.agent_settings import format_settings
from rerail.model.checkpoint_intervals import SaveInterval
from rerail.model.mailbox import LIMITS, CommandKind
from rerail.model.policy import Advice, Mode, Policy, parse_policy
from rerail.model.thresholds import PlannedChange, Thresholds
from rerail_agent.settings import AgentSettings
from tests.fakes import DEFAULT, FakePolicies, World

POLICIES = Path(__file__).parents[2] / "policies"
SHIPPED = [parse_policy(file.read_text(encoding="utf-8"), name=file.stem) for file in sorted(POLICIES.glob("*.toml"))]
OWN = Policy(
    name="own",
    detection=Thresholds(patience_rows=40, startup_limit=timedelta(hours=2), planned=(PlannedChange(20, "longer"),)),
    interval=SaveInterval(longest=timedelta(minutes=20)),
    advice=Advice(machine_mtbf=timedelta(days=2)),
)


@pytest.mark.parametrize(
    "policy", [*SHIPPED, OWN, replace(OWN, interval=SaveInterval(automatic=False))], ids=lambda policy: policy.name
)
def test_the_first_job_has_the_settings_of_its_relaunches(policy):
    """A job that users start has no variables of the policy: its agent takes them from the newest command."""
    world = World(policies=FakePolicies({"default": replace(policy, mode=Mode.ACT)})).with_saves()
    settings = [command.settings for command in world.mailbox.commands]
    first = AgentSettings().with_policy(settings[-1], {}, pytest.fail) if settings else AgentSettings()
    world.lose_node(minutes=10)
    environment = world.sagemaker.requests["gpt-a002"]["Environment"]
    second = AgentSettings.from_environment(environment, pytest.fail)
    assert (first.detection, first.interval) == (second.detection, second.interval)
    assert first.mtbf_s == (172_800 if policy.advice == OWN.advice else None)
    again = AgentSettings.from_environment(environment, pytest.fail)
    assert again.with_policy(world.mailbox.commands[-1].settings or "{}", environment, pytest.fail) == second


def test_nothing_is_posted_to_a_job_whose_policy_sets_nothing_for_the_agent():
    assert World().with_saves().mailbox.commands == []
    world = World(policies=FakePolicies({"default": OWN})).with_saves()
    assert [command.kind for command in world.mailbox.commands] == [CommandKind.TRAIN]


def test_the_mean_time_between_failures_is_that_of_the_jobs_machines():
    assert format_settings(OWN, machines=4).endswith('"RERAIL_MTBF_SECONDS":"43200"}')
    assert format_settings(DEFAULT, machines=4) == ""


def test_settings_that_are_too_long_for_a_command_are_left_out():
    """A command that its agent refuses would stop nothing and save nothing."""
    planned = tuple(PlannedChange(step, "x" * 80) for step in range(200))
    text = format_settings(replace(OWN, detection=Thresholds(planned=planned)), machines=1)
    assert len(text) <= LIMITS["settings"] and text == ""


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("no JSON", "the settings of the policy cannot be read"),
        ("[1]", ""),
        ("3", "the settings of the policy cannot be read"),
        ('{"RERAIL_DETECTION": {"patience_rows": 1}}', "RERAIL_DETECTION"),
        ('{"RERAIL_SAVE_INTERVAL": "{}", "RERAIL_MTBF_SECONDS": "soon"}', "RERAIL_MTBF_SECONDS"),
        ('{"RERAIL_RUN": "other", "LD_PRELOAD": "/tmp/evil.so"}', ""),
    ],
)
def test_a_command_sets_nothing_else_and_nothing_that_is_not_valid(text, line):
    logged: list[str] = []
    assert AgentSettings().with_policy(text, {}, logged.append) == AgentSettings()
    assert line in "".join(logged) and bool(logged) == bool(line)
