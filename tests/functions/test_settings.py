"""What the stack sets is what a function reads."""

from dataclasses import fields

import pytest

from rerail.decisions.quarantine import is_below
from settings import AnswerSettings, NotifySettings, ReportSettings, Settings, SuperviseSettings, SweepSettings
from wiring.supervise import read_quarantine_folders

KINDS = (SuperviseSettings, SweepSettings, ReportSettings, NotifySettings, AnswerSettings)


def some(kind: type[Settings]) -> Settings:
    return kind(**{field.name: f"the {field.name}" for field in fields(kind)})


@pytest.mark.parametrize("kind", KINDS)
def test_settings_survive_the_environment(kind):
    """The variables of a setting, put into an environment, read back as the same setting."""
    environment = {"PATH": "/usr/bin", **some(kind).variables()}
    assert kind.from_environment(environment) == some(kind)


@pytest.mark.parametrize(("kind", "field"), [(kind, field.name) for kind in KINDS for field in fields(kind)])
def test_a_missing_variable_is_named(kind, field):
    """The error says which variable the stack forgot."""
    environment = some(kind).variables()
    variable = kind.names()[field]
    del environment[variable]
    with pytest.raises(KeyError, match=f"^'{variable}'$"):
        kind.from_environment(environment)


@pytest.mark.parametrize(
    "text", ["", "{", "[]", "7", '"s3://bucket/"', '{"role": "s3://bucket/"}', '{"role": [["s3:"]]}']
)
def test_folders_that_cannot_be_read_permit_nothing(text):
    """The function starts all the same, and a quarantine is refused with the name of the setting."""
    folders = read_quarantine_folders(text)
    assert not any(is_below("s3://bucket/a/", folder) for listed in folders.values() for folder in listed)
    assert read_quarantine_folders('{"role": ["s3://bucket/"]}') == {"role": ("s3://bucket/",)}
