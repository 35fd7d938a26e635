"""What the stack sets is what a function reads."""

from dataclasses import fields

import pytest

from settings import NotifySettings, ReportSettings, Settings, SuperviseSettings, SweepSettings

KINDS = (SuperviseSettings, SweepSettings, ReportSettings, NotifySettings)
COMMON = {"RERAIL_TABLE", "RERAIL_POLICY_PREFIX", "RERAIL_MAILBOX", "RERAIL_PAUSE_PARAMETER", "RERAIL_ACCOUNT"}


def some(kind: type[Settings]) -> Settings:
    return kind(**{field.name: f"the {field.name}" for field in fields(kind)})


@pytest.mark.parametrize("kind", KINDS)
def test_settings_survive_the_environment(kind):
    """The variables of a setting, put into an environment, read back as the same setting."""
    environment = {"PATH": "/usr/bin", **some(kind).variables()}
    assert kind.from_environment(environment) == some(kind)


@pytest.mark.parametrize("kind", KINDS)
def test_the_environment_is_the_processs_own(kind, monkeypatch):
    """Without another one, the variables of this process as they are now."""
    for name, value in some(kind).variables().items():
        monkeypatch.setenv(name, value)
    assert kind.from_environment() == some(kind)


@pytest.mark.parametrize(("kind", "field"), [(kind, field.name) for kind in KINDS for field in fields(kind)])
def test_a_missing_variable_is_named(kind, field):
    """The error says which variable the stack forgot."""
    environment = some(kind).variables()
    variable = kind.names()[field]
    del environment[variable]
    with pytest.raises(KeyError, match=f"^'{variable}'$"):
        kind.from_environment(environment)


def test_variables_are_named_after_fields():
    """Four functions, and these are their variables."""
    assert set(SuperviseSettings.names().values()) == COMMON | {"RERAIL_BUS"}
    assert set(ReportSettings.names().values()) == {
        *("RERAIL_TABLE", "RERAIL_POLICY_PREFIX", "RERAIL_REPORTS", "RERAIL_REGION", "RERAIL_DOCS_URL"),
        "RERAIL_ACCOUNT",
    }
    assert set(SweepSettings.names().values()) == COMMON | {"RERAIL_QUEUE_URL"}
    topics = {"RERAIL_PAGE_TOPIC", "RERAIL_INFORM_TOPIC", "RERAIL_CHAT_PAGE_TOPIC", "RERAIL_CHAT_INFORM_TOPIC"}
    ways = {"RERAIL_BUS", "RERAIL_TARGETS"}
    links = {"RERAIL_REPORTS", "RERAIL_REPORT_LINKS", "RERAIL_DOCS_URL"}
    assert set(NotifySettings.names().values()) == topics | ways | links
