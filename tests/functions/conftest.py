"""The functions on a pretend AWS: every place that their environment names exists, and no client outlives its test."""

import io
import json
from collections.abc import Callable, Iterator
from functools import cache
from typing import Any

import pytest
from moto import mock_aws
from moto.kms import models as kms

import observability
import wiring.answer
import wiring.notify
import wiring.report
import wiring.supervise
import wiring.sweep
from tests.aws.places import our_own_clients
from tests.functions.account import Account

MADE_ONCE = (
    wiring.supervise.make_supervisor,
    wiring.supervise.make_cluster_monitor,
    wiring.sweep.make_sweep,
    wiring.report.report_settings,
    wiring.report.make_reporter,
    wiring.report.make_fleet_reporter,
    wiring.notify.notify_settings,
    wiring.notify.report_links,
    wiring.notify.make_notifier,
    wiring.answer.make_answering,
)


@pytest.fixture(scope="module", autouse=True)
def clients_of_our_own() -> Iterator[None]:
    """Each key of moto has an RSA key pair, whatever its kind: make one, since that takes longer than all the rest."""
    with our_own_clients(), pytest.MonkeyPatch.context() as patch:
        patch.setattr(kms, "generate_private_key", cache(kms.generate_private_key))
        yield


@pytest.fixture(autouse=True)
def clean(monkeypatch) -> Iterator[None]:
    """Nothing kept from an earlier test."""
    # Powertools reads the namespace from the environment when it is imported, which may have been long ago.
    monkeypatch.setattr(observability.metrics.provider, "namespace", "Rerail")
    for made_once in MADE_ONCE:
        made_once.cache_clear()
    yield
    for made_once in MADE_ONCE:
        made_once.cache_clear()


@pytest.fixture
def account(monkeypatch) -> Iterator[Account]:
    """An account with the stack's resources in it, and the functions told of them."""
    with mock_aws():
        account = Account()
        for settings in account.settings():
            for name, value in settings.variables().items():
                monkeypatch.setenv(name, value)
        yield account


@pytest.fixture
def logged(capsys, monkeypatch) -> Callable[[], list[dict[str, Any]]]:
    """Tells what the function has logged and measured, a table a line."""
    log = io.StringIO()  # the logger was made with the output of its import; metrics are simply printed
    monkeypatch.setattr(observability.logger.registered_handler, "stream", log)

    def lines() -> list[dict[str, Any]]:
        said = (log.getvalue() + capsys.readouterr().out).splitlines()
        return [json.loads(line) for line in said if line.startswith("{")]

    return lines
