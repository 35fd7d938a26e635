"""Policies from SSM: read once a minute, and refused in words."""

from datetime import UTC, datetime, timedelta

import pytest
from botocore.exceptions import EndpointConnectionError

from rerail.aws.clients import client
from rerail.aws.ssm import CACHE_TTL, SsmPause, SsmPolicies
from rerail.model.errors import PolicyError, UnknownPolicy
from rerail.model.policy import Mode, Policy
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
    deploy("night", 'mode = "observe"')
    assert policies.get("night") == Policy(name="night", mode=Mode.OBSERVE)


def test_a_policy_is_believed_for_a_minute(policies, clock):
    """A change takes effect within a minute, and a minute's decisions cost one request."""
    deploy("night", 'mode = "observe"')
    policies.get("night")
    deploy("night", 'mode = "act"')
    clock.pass_by(CACHE_TTL - timedelta(seconds=1))
    assert policies.get("night").mode is Mode.OBSERVE
    clock.pass_by(timedelta(seconds=1))
    assert policies.get("night").mode is Mode.ACT


@pytest.mark.parametrize("name", ["nihgt", "", "../other", "a b", "x" * 256])
def test_a_policy_that_is_not_deployed_is_unknown(policies, name):
    """Whatever a tag may say, including what no parameter could be called."""
    with pytest.raises(UnknownPolicy):
        policies.get(name)


def test_the_error_of_a_broken_policy_names_the_field(policies, clock, monkeypatch):
    """The parser's own message, remembered for a minute as a policy is: a fleet's runs ask for it again and again."""
    deploy("night", "[retries]\noom = -1")
    with pytest.raises(PolicyError, match="policy 'night': field 'retries.oom' is -1"):
        policies.get("night")
    with monkeypatch.context() as patch:
        unreadable(patch)
        with pytest.raises(PolicyError, match="policy 'night': field 'retries.oom' is -1"):
            policies.get("night")
    deploy("night", "# all as built in")
    clock.pass_by(CACHE_TTL)
    assert policies.get("night") == Policy(name="night")


def write_pause(value: str) -> None:
    client("ssm").put_parameter(Name="/rerail/switch", Value=value, Type="String", Overwrite=True)


def unreadable(monkeypatch) -> None:
    monkeypatch.setattr(client("ssm"), "get_parameter", refuse)


def refuse(**_: object) -> None:
    raise EndpointConnectionError(endpoint_url="https://ssm")


def test_a_pause_is_honoured_within_a_minute(clock):
    """Believed for a minute, as policies are."""
    write_pause("on")
    pause = SsmPause("/rerail/switch", clock)
    assert not pause.is_paused()
    write_pause("off")
    assert not pause.is_paused()
    clock.pass_by(CACHE_TTL)
    assert pause.is_paused()


@pytest.mark.parametrize("text, paused", [("active", False), (" ON\n", False), ("paused", True), ("Off", True)])
def test_each_value_for_a_pause_is_understood(clock, text, paused):
    write_pause(text)
    assert SsmPause("/rerail/switch", clock).is_paused() is paused


@pytest.mark.parametrize("known", ["on", "off"])
def test_a_pause_that_cannot_be_read_is_as_it_was_known_last(clock, known, monkeypatch):
    """An outage of SSM changes nothing."""
    write_pause(known)
    pause = SsmPause("/rerail/switch", clock)
    first = pause.is_paused()
    assert first is (known == "off")
    asked: list[object] = []
    monkeypatch.setattr(client("ssm"), "get_parameter", lambda **facts: asked.append(facts) or refuse())
    clock.pass_by(CACHE_TTL)
    assert [pause.is_paused() for _ in range(3)] == [first] * 3
    assert len(asked) == 1, "SSM is asked once a minute during an outage too"


def test_a_pause_that_was_never_read_keeps_everything_waiting(clock, monkeypatch):
    """Nothing is lost by waiting; the next look may tell."""
    pause = SsmPause("/rerail/switch", clock)
    unreadable(monkeypatch)
    assert pause.is_paused()
    monkeypatch.undo()
    write_pause("on")
    clock.pass_by(CACHE_TTL)
    assert not pause.is_paused()


def test_what_was_read_in_a_future_that_never_came_is_read_again(policies, clock):
    """The clock was hours ahead for a moment: neither the pause nor a policy is believed until it is that late."""
    write_pause("on")
    deploy("night", 'mode = "act"')
    pause = SsmPause("/rerail/switch", clock)
    clock.pass_by(timedelta(hours=3))
    assert not pause.is_paused() and policies.get("night").mode is Mode.ACT
    clock.pass_by(-timedelta(hours=3))
    write_pause("off")
    deploy("night", 'mode = "observe"')
    assert pause.is_paused() and policies.get("night").mode is Mode.OBSERVE


@pytest.mark.threat("T27")
@pytest.mark.parametrize("text", [None, "maybe", "of"], ids=["deleted", "not valid", "mistyped"])
def test_a_parameter_that_is_missing_or_not_valid_means_paused(clock, text):
    """Deleting a pause does not lift it; neither does a typing error by the person who pauses."""
    write_pause("on")
    pause = SsmPause("/rerail/switch", clock)
    assert not pause.is_paused()
    if text is None:
        client("ssm").delete_parameter(Name="/rerail/switch")
    else:
        write_pause(text)
    clock.pass_by(CACHE_TTL)
    assert pause.is_paused()
    assert SsmPause("/rerail/switch", clock).is_paused()


MEASURED = (
    '{"schema": 1, "kind": "rerail acceptance", "region": "eu-west-1", "clock_scale": 1, '
    '"made_at": "2026-01-30T00:00:00+00:00", "measurements": {"startup_s": {"median": 400}}}'
)


@pytest.mark.parametrize(
    ("text", "minutes"), [(MEASURED, 400 / 60), (MEASURED.replace("400", "1e9"), 5), ("{", 5), (None, 5)]
)
def test_what_acceptance_has_measured_is_believed_if_it_can_be_read(policies, text, minutes, monkeypatch):
    """Otherwise the assumed time holds; `rerail policy list` compares the policies alone."""
    deploy("night", 'mode = "observe"')
    ssm, read = client("ssm"), client("ssm").get_parameter
    deploy("acceptance/measured", text or MEASURED)
    if text is None:  # SSM answers for the policy alone
        monkeypatch.setattr(ssm, "get_parameter", lambda Name: (read if "night" in Name else refuse)(Name=Name))
    assert policies.get("night").advice.startup == timedelta(minutes=minutes)
