"""Every command in the documentation is accepted by its program."""

import re
import subprocess

import botocore.session
import pytest
import typer
from botocore import xform_name

from cli.demo.scenarios import SCENARIOS, Name
from tests.docs.commands import ROOT, Shown, UnknownCommand, blocks, in_text, leaf, options, pages

# Commands of the AWS CLI that are not operations of a service, and options that every operation takes.
CLI_COMMANDS = {
    ("s3", "ls"),
    ("s3", "cp"),
    ("s3", "rm"),
    ("s3", "rb"),
    ("s3", "sync"),
    ("sso", "login"),
    ("logs", "tail"),
    ("configure", "sso"),
}
GLOBAL_OPTIONS = {"region", "profile", "query", "output", "no-cli-pager"}
PLAIN = ("git", "cd", "export", "$EDITOR", "pip", "python", "python3", ".venv/bin/python", "sudo", "docker", "mkdir")
# A Python file or test data below the folders of the repository, where a page writes its whole path.
REPOSITORY_FILE = re.compile(
    r"(?<![\w./-])((?:lambdas|stacks|agent|container|cli|local|bench|tools|tests)/[\w./-]+\.(?:py|jsonl?|csv))(?![\w.]*\w)"
)
SHELL = re.compile(r"[|;&<>]|\$\(")

# The error of a command line for words that it does not accept.
USAGE_ERROR = typer.BadParameter.__mro__[1]

SHOWN = [shown for page in pages() for shown in blocks(page)]
NAMED = [shown for page in pages() for shown in in_text(page)]


def cases(shown: list[Shown]) -> pytest.MarkDecorator:
    return pytest.mark.parametrize("shown", shown, ids=str)


def test_the_pages_are_read():
    """Commands are found at all."""
    assert len(SHOWN) > 40 and len(NAMED) > 40


@cases([shown for shown in SHOWN if shown.words[0].removeprefix(".venv/bin/") == "rerail"])
def test_a_command_in_a_block_is_accepted(shown):
    """Subcommand, arguments and options are those of the command line."""
    command, path, rest = leaf(shown.words[1:])
    command.make_context(" ".join(path) or "rerail", rest)


@cases(NAMED)
def test_a_command_in_the_text_exists_with_its_options(shown):
    """The names of its commands and options are real."""
    words = re.sub(r"[\[\]|]", " ", shown.text).split()
    command, _, rest = leaf(_without_dots(words[1:]))
    asked = {word.partition("=")[0] for word in _before_the_script(rest) if word.startswith("-") and word != "-"}
    assert asked <= options(command)


def _without_dots(words: list[str]) -> list[str]:
    """Drop the dots of a group that is named as a whole, such as `rerail policy ...`."""
    return [word for word in words if word not in ("...", "…")]


def _before_the_script(words: list[str]) -> list[str]:
    return words[: words.index("--")] if "--" in words else words


@pytest.mark.slow
@cases([shown for shown in SHOWN if shown.words[0] == "make"])
def test_a_target_of_make_exists(shown):
    """`make -n` accepts the target."""
    done = subprocess.run(["make", "-n", *shown.words[1:]], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


@cases([shown for shown in SHOWN if shown.words[0] == "aws"])
def test_a_call_of_the_aws_cli_is_one_of_its_service(shown):
    """Service, operation and options are those of the service's own model."""
    service, operation, *rest = shown.words[1:]
    if (service, operation) in CLI_COMMANDS:
        return
    model = botocore.session.get_session().get_service_model({"s3api": "s3"}.get(service, service))
    operations = {xform_name(name, "-"): name for name in model.operation_names}
    assert operation in operations
    shape = model.operation_model(operations[operation]).input_shape
    members = {xform_name(name, "-") for name in shape.members} if shape else set()
    asked = {word[2:].partition("=")[0] for word in rest if word.startswith("--")}
    assert {name.removeprefix("no-") for name in asked} <= members | GLOBAL_OPTIONS


@cases([shown for shown in SHOWN if shown.words[0] in (".venv/bin/python", "python") and shown.words[1:2] == ["-m"]])
def test_a_module_that_is_run_exists(shown):
    """`python -m bench.saving` names a file of this repository, or a tool of its environment."""
    module = shown.words[2]
    ours = (ROOT / (module.replace(".", "/") + ".py")).exists() or (ROOT / module.replace(".", "/")).is_dir()
    assert ours or module in ("pip", "pytest", "venv")


def test_every_file_of_the_repository_that_a_page_names_exists():
    """A test or module that was moved takes its mentions along."""
    named = {(page.name, ref) for page in pages() for ref in REPOSITORY_FILE.findall(page.read_text(encoding="utf-8"))}
    assert named
    assert not [f"{page}: {path}" for page, path in sorted(named) if not (ROOT / path).exists()]


def test_every_command_is_of_a_kind_that_is_checked():
    """No command escapes these tests."""
    known = ("rerail", ".venv/bin/rerail", "make", "aws", *PLAIN)
    assert not [str(shown) for shown in SHOWN if shown.words[0] not in known]


def test_the_readme_lists_every_scenario_of_the_demo():
    listed = (ROOT / "README.md").read_text().partition("causes other faults:")[2].partition("`make rehearse`")[0]
    assert sorted(re.findall(r"`([a-z-]+)`", listed)) == sorted(Name)


@pytest.mark.parametrize("name", Name)
def test_a_scenario_names_the_packages_that_the_demo_s_environment_lacks(name):
    """`make demo` alone installs requirements/demo.txt; what else a script imports is said before anything starts."""
    installed = (ROOT / "requirements" / "demo.txt").read_text()
    needed = SCENARIOS[name].script.packages
    assert not [package for package in needed if re.search(rf"^{package}==", installed, re.MULTILINE)]
    script = (ROOT / "local/examples/huggingface/train.py") if needed else (ROOT / "container/train.py")
    imported = set(
        re.findall(r"^(?:import|from) (transformers|accelerate|lightning|datasets)\b", script.read_text(), re.M)
    )
    assert imported <= set(needed)


def test_commands_are_single():
    """One command a line, without pipes and substitutions."""
    assert not [str(shown) for shown in SHOWN if SHELL.search(shown.text) and shown.words[0] not in ("export",)]


def test_an_unknown_command_is_an_error():
    """The checks can fail."""
    with pytest.raises(UnknownCommand, match="rerail repair"):
        leaf(["repair", "my-run"])
    command, _, rest = leaf(["show", "my-run", "--everything"])
    with pytest.raises(USAGE_ERROR):
        command.make_context("show", rest)
