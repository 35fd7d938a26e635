"""Make the report page of a run and store it where the notices link to it."""

import json
from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

from rerail.incident_report.facts import ReportPages
from rerail.incident_report.gather import FactGatherer
from rerail.incident_report.report import IncidentReport, make_report
from rerail.model.errors import BadMessage


def run_of(body: str) -> str:
    """Return the run that the notice in a message is about. Raises BadMessage, which names the malformed field."""
    try:
        run = json.loads(body)["detail"]["run"]
    except (ValueError, RecursionError) as error:
        raise BadMessage(f"the message is not JSON: {error!s:.300}") from error
    except (KeyError, TypeError, IndexError) as error:
        raise BadMessage("field 'detail.run' is missing; the message must be a notice from the bus") from error
    if not isinstance(run, str) or not run:
        raise BadMessage(f"field 'detail.run' is {run!r:.100}; it must be the name of a run")
    return run


class StoredPage(NamedTuple):
    """A stored page."""

    bytes: int
    unread: tuple[str, ...]  # what could not be read for it, with the error


@dataclass(frozen=True, slots=True)
class Reporter:
    """Makes and stores report pages through its ports."""

    gathering: FactGatherer
    draws: Callable[[IncidentReport], str]
    pages: ReportPages

    def report(self, run_id: str) -> StoredPage | None:
        """Make and store the run's page; return None if there is no such run."""
        known = self.gathering.gather(run_id)
        if known is None:
            return None
        page = self.draws(make_report(known))
        self.pages.keep(run_id, page)
        return StoredPage(len(page.encode()), known.unread)
