"""Imports point one way: handlers -> wiring -> rerail.aws -> rerail -> standard library."""

import pytest

from tests.house.sources import (
    ROOT,
    STANDARD_LIBRARY,
    core,
    handlers,
    imports,
    modules,
    shown,
    top,
    within,
)

AWS_SDK = ("boto3", "botocore", "s3transfer", "aiobotocore")
OF_THE_FUNCTIONS = ("settings", "wiring", "observability", "loading", "rerail")
OF_THE_FUNCTIONS += ("supervise", "sweep", "notify", "report")
OPEN_TO_THE_STACKS = (
    "settings",
    "rerail.model.policy",
    "rerail.model.errors",
    "rerail.model.mailbox",
    "rerail.decisions.quarantine",
    "rerail.supervisor.pause",
)
OPEN_TO_THE_STACKS += (
    "rerail.model.runbooks",
    "rerail.incident_report.location",
    "rerail.notices.notifiers.targets",
)


def each(paths):
    return pytest.mark.parametrize("path", paths, ids=shown)


@each(core())
def test_the_core_thinks_with_the_standard_library_alone(path):
    """lambdas/rerail imports the standard library and itself, and never its own adapters."""
    strangers = {name for name in imports(path) if top(name) not in STANDARD_LIBRARY | {"rerail"}}
    assert not strangers
    assert not {name for name in imports(path) if within(name, "rerail.aws")}


@each(modules("lambdas/rerail/aws"))
def test_an_adapter_knows_the_sdk_and_the_core(path):
    """lambdas/rerail/aws imports boto3, botocore, the core and the standard library; no handler and no wiring."""
    allowed = STANDARD_LIBRARY | {"rerail", "boto3", "botocore"}
    assert not {name for name in imports(path) if top(name) not in allowed}


@each([path for path in modules("lambdas", "stacks") if path.parent.name != "aws"])
def test_only_the_adapters_touch_the_sdk(path):
    """Within what is deployed, boto3 is imported below rerail/aws and nowhere else."""
    assert not {name for name in imports(path) if within(name, *AWS_SDK)}


@each(handlers())
def test_a_handler_translates_and_nothing_more(path):
    """Handlers import the wiring, what loads and observes them, Powertools and the pure core, and no adapter."""
    allowed = STANDARD_LIBRARY | {"wiring", "observability", "loading", "aws_lambda_powertools", "rerail"}
    assert not {name for name in imports(path) if top(name) not in allowed}
    assert not {name for name in imports(path) if within(name, "rerail.aws")}


@each(modules("lambdas/report_page"))
def test_what_draws_knows_the_core_and_its_libraries(path):
    """lambdas/report_page imports Jinja2 and pygal, the core and the standard library; no adapter and no handler."""
    allowed = STANDARD_LIBRARY | {"report_page", "rerail", "jinja2", "markupsafe", "pygal"}
    assert not {name for name in imports(path) if top(name) not in allowed}
    assert not {name for name in imports(path) if within(name, "rerail.aws")}


@each([path for path in modules("lambdas") if path.parent.name != "report_page"])
def test_only_what_draws_knows_html(path):
    """The libraries that a page is drawn with are imported below lambdas/report_page and nowhere else: the other
    functions have no layer with them."""
    assert not {name for name in imports(path) if top(name) in ("jinja2", "markupsafe", "pygal")}
    assert not {name for name in imports(path, top_level_only=True) if top(name) == "report_page"}


def test_only_the_wiring_picks_adapters():
    """Beside the adapters themselves, lambdas/wiring alone imports rerail.aws."""
    pickers = {
        shown(path)
        for path in modules("lambdas")
        if path.parent.name != "aws" and any(within(name, "rerail.aws") for name in imports(path))
    }
    assert pickers == {shown(path) for path in modules("lambdas/wiring")}


@each(modules("stacks") + [path for path in [ROOT / "app.py"] if path.exists()])
def test_the_stacks_know_settings_and_policies_only(path):
    """Of what runs in Lambda, stacks import the settings, policies and errors: no loop, handler or adapter."""
    taken = {name for name in imports(path) if within(name, *OF_THE_FUNCTIONS)}
    assert not {name for name in taken if not within(name, *OPEN_TO_THE_STACKS) and name != "rerail"}


@each(modules("agent", "container"))
def test_training_starts_without_the_sdk(path):
    """The container imports no boto3 at module level (a training image need not have it), and no adapter at all."""
    assert not {name for name in imports(path, top_level_only=True) if within(name, *AWS_SDK)}
    assert not {name for name in imports(path) if within(name, "rerail.aws", "wiring", "settings", "observability")}


@each(modules("lambdas", "agent", "container", "stacks"))
def test_what_is_shipped_knows_no_tests_and_no_tools(path):
    """Neither tests nor the local AWS nor the benchmark is imported by what is deployed."""
    assert not {name for name in imports(path) if within(name, "tests", "local", "bench", "cli", "pytest", "moto")}


S3_CLIENTS = {"lambdas/rerail/aws/clients.py", "agent/rerail_agent/mailbox_objects.py"}


@pytest.mark.threat("T23")
def test_every_client_of_s3_asks_for_the_buckets_owner():
    """What is shipped makes clients in two modules, which name the owner in each call; a link is only signed."""
    made = {
        shown(path)
        for path in modules("lambdas", "agent", "container")
        if any(top(name) in ("boto3", "botocore") for name in imports(path))
        and any(word in path.read_text() for word in ("Session(", "boto3.client", "boto3.resource"))
    }
    assert made == S3_CLIENTS
    signing = [path for path in modules("lambdas") if "client_as(" in path.read_text()]
    assert {shown(path) for path in signing} == {"lambdas/rerail/aws/clients.py", "lambdas/rerail/aws/report_links.py"}
