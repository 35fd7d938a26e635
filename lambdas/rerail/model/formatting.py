"""Format durations, amounts of money and commands for people."""

import re
from datetime import timedelta

WITHOUT_LOCAL = ("demo", "diagnose", "local", "metrics", "policy check", "runbook", "simulate")


def format_duration(duration: timedelta) -> str:
    """Return a duration in seconds, minutes or hours, for people."""
    seconds = duration.total_seconds()
    if seconds < 90:
        return f"{seconds:.3g} s" if seconds >= 1 or not seconds else "less than 1 s"
    return f"{seconds / 60:.0f} min" if seconds < 5400 else f"{seconds / 3600:.1f} h"


def format_dollars(amount: float) -> str:
    """Return an amount in dollars, for people."""
    if 0 < amount < 0.01:
        return "under $0.01"
    return f"${amount:,.2f}" if amount < 100 else f"${amount:,.0f}"


def format_files(number: int) -> str:
    """Return a number of files, for people."""
    return "1 file" if number == 1 else f"{number:,} files"


def add_local_option(text: str, names: str = "[a-z]+") -> str:
    """Return the text with --local in each `rerail` command that has this option; `names` is a pattern of commands.

    A command is in backquotes, at the end of a line after a colon, or the whole text.
    """
    command = rf"rerail (?!(?:{'|'.join(WITHOUT_LOCAL)})\b)(?:{names})\b"
    pattern = rf"(?<=`){command}[^`]*(?=`)|(?<=: ){command}[^`\n;]*$|\A{command}[^`\n;]*\Z"
    return re.sub(
        pattern, lambda found: found[0] if "--local" in found[0] else f"{found[0]} --local", text, flags=re.MULTILINE
    )
