"""The voice: tells one notice in every way that is set up, each on its own, and raises where one of them failed."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from rerail.model.errors import RerailError
from rerail.notices.notice import Notice
from rerail.notices.notifiers.links import Links

Channel = Callable[[Notice, Links], None]


class NotificationFailed(RerailError):
    """A notice was not told in every way; the message names the ways and their errors."""


@dataclass(frozen=True, slots=True)
class Notifier:
    """The ways to tell a notice, by name, the surest first."""

    ways: Sequence[tuple[str, Channel]]

    def tell(self, notice: Notice, links: Links) -> None:
        """Tell it in every way; one that fails keeps no other from being tried. Raises Untold: to tell it again is no
        harm, since receivers know it by its key."""
        failed: list[tuple[str, Exception]] = []
        for name, way in self.ways:
            try:
                way(notice, links)
            except Exception as error:  # whatever it is, the others come first
                failed.append((name, error))
        if failed:
            said = "; ".join(f"{name}: {type(error).__name__}: {error}" for name, error in failed)
            raise NotificationFailed(f"{notice.key} was not told everywhere: {said}") from failed[0][1]
