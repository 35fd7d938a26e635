"""Remove secret values of a job's request from other texts: failure reasons, error messages and log lines.

SageMaker quotes the script's command line with all hyperparameters, and the field values of rejected requests.
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
# Shorter values and numbers are not secrets, and occur in most texts by chance.
MIN_SECRET_LENGTH = 6


def redact_values(text: str, request: Mapping[str, Any]) -> str:
    """Return the text without the secret values of a request or job description.

    Secret are environment variables and hyperparameters with a telling name, and URLs that contain a password.
    """
    if not text:
        return text
    for value in sorted(_find_secrets(request), key=len, reverse=True):
        text = text.replace(value, HIDDEN)
    return text


def _find_secrets(request: Mapping[str, Any]) -> Iterator[str]:
    for place in PLACES:
        for name, value in (request.get(place) or {}).items():
            if NAMES.search(name) or WITH_PASSWORD.search(value):
                yield from (s for s in _list_spellings(value) if len(s) >= MIN_SECRET_LENGTH and not _is_number(s))


def _list_spellings(value: str) -> set[str]:
    """Return the value as it is and as script mode passes it on, where hyperparameters are JSON."""
    try:
        read = json.loads(value)
    except (ValueError, RecursionError):
        return {value}
    return {value, read} if isinstance(read, str) else {value}


def _is_number(text: str) -> bool:
    return re.fullmatch(r"[-+.,\deE]*", text) is not None
