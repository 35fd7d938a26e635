"""Find the deployment for a command: in the account of your AWS credentials, or in the local AWS on this machine."""

import os
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Annotated, Any, NoReturn

import typer

from cli.commands import COMMANDS
from cli.project import IS_CHECKOUT, ROOT, find_state_folder

# Each `--help` imports this module, so what only a call needs is imported by the call.
if TYPE_CHECKING:
    from rerail.aws.dynamodb import DynamoRuns

# Where the local AWS keeps its files; another folder makes another local AWS.
LOCAL_STATE = find_state_folder()
SYNTHESES = (ROOT / ".local" if IS_CHECKOUT else LOCAL_STATE) / "assemblies"
# What people gave is quoted in errors, and may be of any length.
PROBLEM_LIMIT = 1_500
# A StackSet names the stacks of its accounts otherwise.
STACK = os.environ.get("RERAIL_STACK", "Rerail")

Local = Annotated[bool, typer.Option("--local", help="Look at the local AWS on this machine, not at your account.")]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON for another program.")]


# What a stack of an older version calls an output.
FORMER_OUTPUTS = {"PauseParameter": "SwitchParameter"}


class Outputs(dict[str, str]):
    """A stack's outputs; asking for one that it does not have is one clear error."""

    def __init__(self, outputs: Mapping[str, str]) -> None:
        former = {name: outputs[old] for name, old in FORMER_OUTPUTS.items() if old in outputs}
        super().__init__({**former, **outputs})

    def __missing__(self, name: str) -> str:
        fail(
            f"the stack {STACK} has no output {name}",
            "it is older than this command line, or its deployment has failed: deploy it again (`make deploy`)",
        )


@dataclass(frozen=True, slots=True)
class Place:
    """One deployment of Rerail."""

    name: str
    outputs: Mapping[str, str]
    is_local: bool = False

    @property
    def runs(self) -> "DynamoRuns":
        from rerail.aws.dynamodb import DynamoRuns

        return DynamoRuns(self.outputs["TableName"])

    def client(self, service: str) -> Any:
        return client(service)

    def complete_text(self, text: str) -> str:
        """Return the text, or a single command, with each `rerail` command as it must be typed here."""
        return complete_text(text) if self.is_local else text

    def complete_plain(self, plain: Any) -> Any:
        """Return the JSON value with each `rerail` command in its texts as it must be typed here."""
        if isinstance(plain, dict):
            return {key: self.complete_plain(value) for key, value in plain.items()}
        if isinstance(plain, list | tuple):
            return type(plain)(self.complete_plain(value) for value in plain)
        return self.complete_text(plain) if isinstance(plain, str) else plain


def complete_text(text: str) -> str:
    """Return the text with --local in each quoted `rerail` command that has this option."""
    from rerail.model.formatting import add_local_option

    return add_local_option(text, "|".join(COMMANDS))


def client(service: str) -> Any:
    """Return the client of a service, one for the whole process."""
    from rerail.aws import clients

    return clients.client(service)


def forget_clients() -> None:
    """Drop all cached clients, for another region or other credentials."""
    from rerail.aws import clients

    clients.client.cache_clear()


def now() -> datetime:
    """The command's clock."""
    return datetime.now(UTC)


def find(*, local: bool) -> Place:
    """The deployment, or one clear error and exit status 2."""
    return _local() if local else _account()


def use_local(endpoint_url: str) -> None:
    """From now on every AWS client of this process talks to the local AWS, and nothing of the user's is read."""
    from local.stack import ACCOUNT, REGION

    os.environ |= {
        "AWS_ENDPOINT_URL": endpoint_url,
        "AWS_ACCESS_KEY_ID": ACCOUNT,
        "AWS_SECRET_ACCESS_KEY": "local",
        "AWS_DEFAULT_REGION": REGION,
        "AWS_REGION": REGION,
        "AWS_CONFIG_FILE": os.devnull,
        "AWS_SHARED_CREDENTIALS_FILE": os.devnull,
    }
    for name in ("AWS_SESSION_TOKEN", "AWS_PROFILE"):
        os.environ.pop(name, None)
    forget_clients()


def _local() -> Place:
    from local.stack import LocalAws, LocalAwsError

    try:
        aws = LocalAws.attach(LOCAL_STATE)
    except LocalAwsError:
        fail("no local AWS is running here", "start one with `rerail local up`, or leave --local out")
    use_local(aws.endpoint_url)
    return Place(f"local AWS at {aws.endpoint_url}", Outputs(aws.outputs), is_local=True)


def _account() -> Place:
    from botocore.exceptions import BotoCoreError, ClientError

    from cli.trouble import explain
    from local.deploy import outputs_of

    try:
        outputs = Outputs(outputs_of(client("cloudformation"), STACK))
    except (ClientError, BotoCoreError) as error:
        what, remedy = explain(error)
        fail(f"cannot read the stack {STACK}: {what}", remedy)
    return Place(f"stack {STACK} in {client('cloudformation').meta.region_name}", outputs)


def fail(problem: str, remedy: str, *, status: int = 2) -> NoReturn:
    """One error on stderr, no longer than one reads, and exit status 2, or 1 where the answer is no."""
    from cli.console import Console

    console = Console(stderr=True, markup=False, soft_wrap=True)
    # The names of files and what AWS quotes may contain line ends, and a line of their own would pass for Rerail's.
    problem, remedy = (" ".join(text.splitlines()) for text in (problem, remedy))
    said = problem if len(problem) <= PROBLEM_LIMIT else f"{problem[:PROBLEM_LIMIT]}…"
    console.print(f"error: {said}", style="red")
    console.print(f"to do: {remedy}")
    raise typer.Exit(status)
