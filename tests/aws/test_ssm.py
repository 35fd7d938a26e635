"""Policies from SSM: read once a minute, and refused in words."""

from datetime import UTC, datetime, timedelta

import pytest

from rerail.aws.clients import client
from rerail.aws.ssm import FRESH_FOR, SsmPolicies
from rerail.errors import PolicyError, UnknownPolicy
from rerail.policy import Mode, Policy
from tests.fakes import Clock


def deploy(name: str, text: str) -> None:
    client("ssm").put_parameter(Name=f"/rerail/policies/{name}", Value=text, Type="String", Overwrite=True)


@pytest.fixture
def clock() -> Clock:
    return Clock(datetime(2026, 1, 31, tzinfo=UTC))


@pytest.fixture(params=["/rerail/policies", "/rerail/policies/"])
def policies(request, clock) -> SsmPolicies:
    return SsmPolicies(request.param, clock)


def test_a_deployed_policy_is_read(policies):
    """The parameter's text is the policy, its last word the name."""
    deploy("night", 'mode = "observe"')
    assert policies.get("night") == Policy(name="night", mode=Mode.OBSERVE)


def test_a_policy_is_believed_for_a_minute(policies, clock):
    """A change takes effect within a minute, and a minute's decisions cost one request."""
    deploy("night", 'mode = "observe"')
    policies.get("night")
    deploy("night", 'mode = "act"')
    clock.pass_by(FRESH_FOR - timedelta(seconds=1))
    assert policies.get("night").mode is Mode.OBSERVE
    clock.pass_by(timedelta(seconds=1))
    assert policies.get("night").mode is Mode.ACT


@pytest.mark.parametrize("name", ["nihgt", "", "../other", "a b", "x" * 256])
def test_a_policy_that_is_not_deployed_is_unknown(policies, name):
    """Whatever a tag may say, including what no parameter could be called."""
    with pytest.raises(UnknownPolicy):
        policies.get(name)


def test_a_broken_policy_says_what_is_wrong(policies):
    """The parser's own message, and not remembered: once mended, it is read."""
    deploy("night", "[retries]\noom = -1")
    with pytest.raises(PolicyError, match="policy 'night': field 'retries.oom' is -1"):
        policies.get("night")
    deploy("night", "# all as built in")
    assert policies.get("night") == Policy(name="night")
