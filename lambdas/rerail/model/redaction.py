"""Remove secrets from texts that other people can read: failure reasons, error messages, log lines, reports.

SageMaker quotes the script's command line with all hyperparameters, and the field values of rejected requests.
"""

import json
import re
from collections.abc import Iterator, Mapping
from typing import Any

HIDDEN = "[hidden]"
# The first group is kept. The lengths are bounded, so that any line can be searched quickly.
_SECRET_PATTERNS = (
    re.compile(r"(\b(?:AKIA|ASIA))[A-Z0-9]{16}\b"),
    re.compile(r"(\b(?:hf|ghp|gho|ghs|ghu|github_pat|glpat|sk|pk|xox[abeprs])[_-])[A-Za-z0-9_-]{16,400}"),
    re.compile(r"(\beyJ)[A-Za-z0-9_-]{8,2000}\.[A-Za-z0-9_-]{2,2000}\.[A-Za-z0-9_-]{2,2000}"),
    re.compile(r"(X-Amz-(?:Signature|Security-Token|Credential)=)[^&\s\"']{1,2000}"),
    re.compile(r"(\bbearer\s)[A-Za-z0-9._~+/=-]{12,2000}", re.IGNORECASE),
    re.compile(r"(://[^/\s:@]{0,80}:)[^/\s@]{1,200}(?=@)"),
    re.compile(
        r"(\b[\w-]{0,40}(?:passwor[dt]|passwd|secret|api[_-]?key|access[_-]?key|private[_-]?key|[a-z]_token|[a-z]-token)"
        r"[\w-]{0,20}[\"']?\s?[=:]\s?[\"']?)[^\s\"',;]{6,400}",
        re.IGNORECASE,
    ),
)
PLACES = ("Environment", "HyperParameters")
NAMES = re.compile(
    r"secret|token|passw|pwd|credential|auth|cookie|dsn|private|signature|connection|webhook|(^|[_\W]|api|access)key($|[_\W\d])",
    re.IGNORECASE,
)
WITH_PASSWORD = re.compile(r"://[^/\s:@]*:[^/\s@]+@")
# Shorter values and numbers are not secrets, and occur in most texts by chance.
MIN_SECRET_LENGTH = 6


def redact_patterns(text: str) -> str:
    """Return the text with everything hidden that has the form of a secret."""
    for pattern in _SECRET_PATTERNS:
        text = pattern.sub(rf"\g<1>{HIDDEN}", text)
    return text


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
