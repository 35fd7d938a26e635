"""What of a job's request is nobody's business, where its text turns up elsewhere: in a failure, a refusal, a log line.

SageMaker quotes the script's command line, hyperparameters and all, and a refused request's fields with their values.
"""

import json
import re
from collections.abc import Iterator, Mapping
from typing import Any

from rerail.model.secrets import HIDDEN

PLACES = ("Environment", "HyperParameters")
NAMES = re.compile(
    r"secret|token|passw|pwd|credential|auth|cookie|dsn|private|signature|connection|webhook|(^|[_\W]|api|access)key($|[_\W\d])",
    re.IGNORECASE,
)
WITH_PASSWORD = re.compile(r"://[^/\s:@]*:[^/\s@]+@")
# Shorter ones, and numbers, are no secrets, and stand in every other text.
LEAST = 6


def redact_values(text: str, request: Mapping[str, Any]) -> str:
    """The text without the values of the request's variables and hyperparameters whose names say that they are secret,
    and without those that are addresses with a password; `request` may be a description as well."""
    if not text:
        return text
    for value in sorted(_secrets(request), key=len, reverse=True):
        text = text.replace(value, HIDDEN)
    return text


def _secrets(request: Mapping[str, Any]) -> Iterator[str]:
    for place in PLACES:
        for name, value in (request.get(place) or {}).items():
            if NAMES.search(name) or WITH_PASSWORD.search(value):
                yield from (each for each in _spellings(value) if len(each) >= LEAST and not _is_number(each))


def _spellings(value: str) -> set[str]:
    """As it stands, and as script mode hands it on: hyperparameters are JSON there."""
    try:
        read = json.loads(value)
    except (ValueError, RecursionError):
        return {value}
    return {value, read} if isinstance(read, str) else {value}


def _is_number(text: str) -> bool:
    return re.fullmatch(r"[-+.,\deE]*", text) is not None
