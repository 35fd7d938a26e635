"""Imports point one way: handlers -> wiring -> rerail.aws -> rerail -> standard library; nothing imports the tests."""

from collections.abc import Collection
from pathlib import Path

import pytest

from tests.house.sources import ROOT, STANDARD_LIBRARY, core, handlers, imports, modules, shown, top, violations, within

AWS_SDK = ("boto3", "botocore", "s3transfer", "aiobotocore")
HTML_LIBRARIES = ("jinja2", "markdown_it", "markupsafe", "pygal")
HANDLERS = ("supervise", "sweep", "notify", "report")
FUNCTIONS = (*HANDLERS, "wiring", "settings", "observability", "loading")
# What stacks import of the code that runs in Lambda.
OPEN_TO_THE_STACKS = (
    *("settings", "rerail.model.policy", "rerail.model.errors", "rerail.model.mailbox", "rerail.model.runbooks"),
    *("rerail.decisions.quarantine", "rerail.supervisor.pause", "rerail.incident_report.location"),
    *("rerail.notices.notifiers.targets", "rerail.notices.answer_links", "rerail.requests.states"),
)
# The packages of this project that each folder may import besides its own. Nothing imports bench or tests.
ALLOWED = {
    "agent": ("rerail_agent", "rerail.model", "rerail.detection", "rerail.accounting"),
    "container": ("container", "rerail_agent", "rerail.model"),
    "local": ("local",),
    "cli": ("cli", "rerail", "report_page", "local"),
    "tools": ("tools", "rerail", "report_page", "cli", "local"),
    "bench": ("bench", "rerail", "rerail_agent", "cli", "local", "stacks.parts.code", *FUNCTIONS),
    "lambdas": ("rerail", "report_page", *FUNCTIONS),
    "stacks": ("stacks", *OPEN_TO_THE_STACKS),
}
OURS = ("rerail", "rerail_agent", "report_page", "cli", "local", "stacks", "tools", "bench", "tests", *FUNCTIONS)


def outside(paths: list[Path], *packages: str) -> dict[str, Collection[object]]:
    """Return what the files import from outside the standard library and these packages."""
    return violations(
        paths, lambda path: {name for name in imports(path) if top(name) not in STANDARD_LIBRARY | set(packages)}
    )


def inside(paths: list[Path], *packages: str, top_level_only: bool = False) -> dict[str, Collection[object]]:
    """Return what the files import from these packages."""
    return violations(
        paths, lambda path: {name for name in imports(path, top_level_only=top_level_only) if within(name, *packages)}
    )


def test_the_core_imports_the_standard_library_only() -> None:
    assert not outside(core(), "rerail")
    assert not inside(core(), "rerail.aws")


def test_an_adapter_imports_the_sdk_and_the_core() -> None:
    assert not outside(modules("lambdas/rerail/aws"), "rerail", "boto3", "botocore")


def test_only_adapters_import_the_sdk() -> None:
    assert not inside([path for path in modules("lambdas", "stacks") if path.parent.name != "aws"], *AWS_SDK)


def test_a_handler_imports_no_adapter() -> None:
    assert not outside(handlers(), "wiring", "observability", "loading", "aws_lambda_powertools", "rerail")
    assert not inside(handlers(), "rerail.aws")


def test_the_report_page_imports_the_core_and_its_libraries() -> None:
    assert not outside(modules("lambdas/report_page"), "report_page", "rerail", *HTML_LIBRARIES)
    assert not inside(modules("lambdas/report_page"), "rerail.aws")


def test_only_the_report_page_imports_html_libraries() -> None:
    """The other functions have no layer with them."""
    others = [path for path in modules("lambdas") if path.parent.name != "report_page"]
    assert not inside(others, *HTML_LIBRARIES)
    assert not inside(others, "report_page", top_level_only=True)


def test_only_the_wiring_chooses_adapters() -> None:
    others = [path for path in modules("lambdas") if path.parent.name != "aws"]
    assert set(inside(others, "rerail.aws")) == {shown(path) for path in modules("lambdas/wiring")}


def test_training_starts_without_the_sdk() -> None:
    """A training image need not have boto3."""
    assert not inside(modules("agent", "container"), *AWS_SDK, top_level_only=True)
    assert not inside(modules("agent", "container"), "rerail.aws", "wiring", "settings", "observability")


@pytest.mark.parametrize("folder", ALLOWED)
def test_a_folder_imports_only_what_it_may(folder: str) -> None:
    """Move what two folders need into one that both may import."""
    paths = [*modules(folder), ROOT / "app.py"] if folder == "stacks" else modules(folder)
    # Packages of which a module may be imported.
    parents = {package.rpartition(".")[0] for package in ALLOWED[folder]} | {"rerail", "stacks", "stacks.parts"}

    def find_others(path: Path) -> set[str]:
        ours = {name for name in imports(path) if within(name, *OURS)}
        return {name for name in ours if not within(name, *ALLOWED[folder]) and name not in parents}

    assert not violations(paths, find_others)


def test_what_is_shipped_imports_no_test_tool() -> None:
    assert not inside(modules("lambdas", "agent", "container", "stacks"), "pytest", "moto")


S3_CLIENTS = {"lambdas/rerail/aws/clients.py", "agent/rerail_agent/mailbox_objects.py"}
# These make clients of other services alone.
WITHOUT_S3 = {"agent/rerail_agent/waiting.py"}


@pytest.mark.threat("T23")
def test_every_client_of_s3_asks_for_the_buckets_owner() -> None:
    """What is shipped makes clients in two modules, which name the owner in each call; a link is only signed."""
    makers = {
        shown(path)
        for path in modules("lambdas", "agent", "container")
        if any(top(name) in ("boto3", "botocore") for name in imports(path))
        and any(word in path.read_text() for word in ("Session(", "boto3.client", "boto3.resource"))
    }
    assert makers == S3_CLIENTS | WITHOUT_S3
    assert not any('"s3"' in (ROOT / path).read_text() for path in WITHOUT_S3)
    signing = [path for path in modules("lambdas") if "client_as(" in path.read_text()]
    assert {shown(path) for path in signing} == {"lambdas/rerail/aws/clients.py", "lambdas/rerail/aws/report_links.py"}
