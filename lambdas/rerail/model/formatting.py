"""Format durations and amounts of money for people."""

from datetime import timedelta


def format_duration(duration: timedelta) -> str:
    """Return a duration in seconds, minutes or hours, for people."""
    seconds = duration.total_seconds()
    if seconds < 90:
        return f"{seconds:.3g} s" if seconds >= 1 or not seconds else "less than 1 s"
    return f"{seconds / 60:.0f} min" if seconds < 5400 else f"{seconds / 3600:.1f} h"


def format_dollars(amount: float) -> str:
    """Return an amount in dollars, for people."""
    if 0 < amount < 0.01:
        return "less than a cent"
    return f"${amount:,.2f}" if amount < 100 else f"${amount:,.0f}"
