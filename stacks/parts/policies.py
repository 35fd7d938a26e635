"""The policies: each TOML file is checked at synth and deployed as an SSM parameter that a job's tag can name."""

from collections.abc import Mapping
from pathlib import Path

from aws_cdk import aws_ssm as ssm
from constructs import Construct

from rerail.model.errors import PolicyError
from rerail.model.policy import parse_policy, to_toml

PREFIX = "/rerail/policies"
# The most that a parameter of the standard tier holds.
LIMIT_BYTES = 4096


class PolicyParameters(Construct):
    """One parameter per file; a broken file raises PolicyError, naming the file and the field."""

    def __init__(self, scope: Construct, id: str, *, folder: Path) -> None:
        super().__init__(scope, id)
        for name, text in read_policies(folder).items():
            ssm.StringParameter(
                self,
                name,
                parameter_name=f"{PREFIX}/{name}",
                string_value=text,
                description=f"Rerail: the policy {name}",
            )


def read_policies(folder: Path) -> Mapping[str, str]:
    """Policy name to what is deployed of its file: every field with its value. The comments stay behind: with them a
    file outgrows a parameter of the standard tier, and the defaults of the day are part of what was checked."""
    files = sorted(folder.glob("*.toml"))
    if not any(file.stem == "default" for file in files):
        raise PolicyError(f"{folder}: there is no default.toml; jobs without a policy of their own need it")
    return {file.stem: _checked(file) for file in files}


def _checked(file: Path) -> str:
    try:
        text = to_toml(parse_policy(file.read_text(encoding="utf-8-sig"), name=file.stem))
    except PolicyError as error:
        raise PolicyError(f"{file.parent.name}/{file.name}: {error}") from error
    if (size := len(text.encode())) > LIMIT_BYTES:
        raise PolicyError(f"{file.parent.name}/{file.name}: {size} bytes; shorten it to {LIMIT_BYTES}")
    return text
