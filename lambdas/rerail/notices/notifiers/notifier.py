"""Send a notice through every configured channel, and raise if any of them fails."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from rerail.model.errors import RerailError
from rerail.model.notice import Notice
from rerail.notices.notifiers.links import Links

Channel = Callable[[Notice, Links], None]


class NotificationFailed(RerailError):
    """A notice did not reach every channel; the message names the failed channels and their errors."""


@dataclass(frozen=True, slots=True)
class Notifier:
    """Sends notices through the configured channels."""

    channels: Sequence[tuple[str, Channel]]  # name and channel, the most reliable first

    def send(self, notice: Notice, links: Links) -> None:
        """Send the notice through every channel, including those after a failed one.

        Raises NotificationFailed. A retry is safe, because receivers deduplicate by the notice's key."""
        failed: list[tuple[str, Exception]] = []
        for name, channel in self.channels:
            try:
                channel(notice, links)
            except Exception as error:  # the other channels must still be tried
                failed.append((name, error))
        if failed:
            errors = "; ".join(f"{name}: {type(error).__name__}: {error}" for name, error in failed)
            what = f"the notice {notice.key} was not delivered to every channel"
            raise NotificationFailed(f"{what}: {errors}") from failed[0][1]
