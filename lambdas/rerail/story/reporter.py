"""From a run's name to its page, kept where the notices link to it."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

from rerail.story.gather import Gathering
from rerail.story.known import Pages
from rerail.story.story import Story, tell


class Drawn(NamedTuple):
    """A page that was kept: its size, and what could not be read for it."""

    bytes: int
    unread: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Reporter:
    """Over its ports: what is known of a run, how a story is drawn, and where pages are kept."""

    gathering: Gathering
    draws: Callable[[Story], str]
    pages: Pages

    def report(self, run_id: str) -> Drawn | None:
        """Draw the run's page anew; None where there is no such run."""
        known = self.gathering.gather(run_id)
        if known is None:
            return None
        page = self.draws(tell(known))
        self.pages.keep(run_id, page)
        return Drawn(len(page.encode()), known.unread)
