"""Remove secrets from texts that other people can read: failure reasons, error messages, log lines, reports.

SageMaker quotes the script's command line with all hyperparameters, and the field values of rejected requests. Secrets
are recognized by their form (keys of known services, URLs with credentials) and as values of the job's own request
whose names tell. Such a value is removed in each spelling that a log commonly has: quoted, escaped, encoded, cut off.
"""

import base64
import html
import json
import re
import shlex
from collections.abc import Iterator, Mapping, Sequence
from itertools import islice
from typing import Any
from urllib.parse import quote, quote_plus

from rerail.model.lazy_pattern import LazyPattern

HIDDEN = "[hidden]"
PLACES = ("Environment", "HyperParameters")
# Shorter values and numbers are not secrets, and occur in most texts by chance.
MIN_SECRET_LENGTH = 6
# Values longer than this are compared in parts: SageMaker limits a value to 2,500 characters.
MAX_SECRET_LENGTH = 5_000
# Parts of one value, such as the items of a list; and of all values, because each costs time for each text.
MAX_PARTS, MAX_PARTS_OF_ALL = 50, 1_000

# The first group is kept. The lengths are bounded, so that any line can be searched quickly.
_SECRET_PATTERNS = (
    LazyPattern(r"(-----BEGIN [A-Z ]{0,40}PRIVATE KEY-----)[\s\S]{1,8000}?(?=-----END|\Z)"),
    LazyPattern(r"(\b(?:AKIA|ASIA))[A-Z0-9]{16}\b"),
    LazyPattern(
        r"(\b(?:hf|gh[opsur]|github_pat|glpat|sk|pk|rk|xox[abeprs]|npm|pypi|dop_v1|whsec)[_-])[A-Za-z0-9_-]{16,400}"
    ),
    LazyPattern(r"(\bAIza)[A-Za-z0-9_-]{30,60}"),
    LazyPattern(r"(\beyJ)[A-Za-z0-9_-]{5,2000}\.[A-Za-z0-9_-]{2,2000}\.[A-Za-z0-9_-]{2,2000}"),
    LazyPattern(
        r"([?&;](?:X-Amz-(?:Signature|Security-Token|Credential)|sig|signature|se?cret|token|access_token|api_?key|key"
        r"|password|pwd|auth)=)[^&\s\"'<>]{6,2000}",
        re.IGNORECASE,
    ),
    LazyPattern(r"(X-Amz-(?:Signature|Security-Token|Credential)=)[^&\s\"']{1,2000}"),
    LazyPattern(r"(\b(?:bearer|basic)\s)[A-Za-z0-9._~+/=-]{12,2000}", re.IGNORECASE),
    # Credentials in a URL: user and password, or a key in the place of the user.
    LazyPattern(r"(://[^/\s:@]{0,80}:)[^/\s]{1,200}(?=@)"),
    LazyPattern(r"(://)[A-Za-z0-9._~+-]{16,200}(?=@)"),
    # Addresses that anyone may post to.
    LazyPattern(r"(hooks\.slack\.com/(?:services|workflows|triggers)/)[\w/-]{6,200}"),
    LazyPattern(r"(discord(?:app)?\.com/api/webhooks/)[\w/-]{6,200}"),
    LazyPattern(r"(\.webhook\.office\.com/)[\w/@-]{6,300}"),
    LazyPattern(
        r"(\b[\w-]{0,40}(?:passwor[dt]|passwd|passphrase|secret|api[_-]?key|access[_-]?key|private[_-]?key|credentials?"
        r"|[a-z]_token|[a-z]-token|(?<![a-z])(?:pass|pwd|jwt|pat|sas))[\w-]{0,20}[\"']?\s?[=:]\s?[\"']?)"
        r"(?!\[hidden\])[^\s\"',;]{6,400}",
        re.IGNORECASE,
    ),
)

# A word of a name that makes its value a secret; `apikey` is written in one word.
_SECRET_WORD = LazyPattern(
    r"secrets?|tokens?|\w*passwor[dt]s?|passwd|\w*passphrase|pass|pwd|pat|jwt|creds?|credentials?|auth|authorization"
    r"|cookies?|dsn|private|signature|sig|sas|webhook|connection|connstr|(?:api|access|secret|auth|private|ssh|deploy|license)key|bearer|otp"
)
# Tokens and keys of another kind: `pad_token`, `max_tokens`, `label_key`.
_PLAIN_WORD = LazyPattern(
    r"pad|eos|bos|unk|mask|sep|cls|max|min|num|n|new|total|special|per|label|labels|data|input|inputs|target|image|text"
    r"|sort|primary|foreign|batch|metric|monitor|column|prompt|response|caption|audio|video"
)
# The last word of a name that describes a secret without being one: `auth_mode`, `token_file`, `secret_arn`.
_DESCRIPTION = LazyPattern(
    r"mode|type|kind|name|path|file|dir|folder|arn|size|length|count|limit|ttl|timeout|version|provider|backend|method"
    r"|class|enabled|required|env|var|region|ids?|prefix|suffix|column|field|format|level|policy"
)
# Words that error messages consist of: where one is the value of a secret, hiding it would hide the error.
_ORDINARY_WORD = LazyPattern(
    r"memory|tokenizer|default|disabled|enabled|required|optional|unknown|training|running|failed|failure|errors?|model"
    r"|process(?:es)?|signal|devices?|python|modules?|import(?:ed)?|load(?:ing|ed)|workers?|datasets?|checkpoints?"
    r"|gradients?|invalid|timeouts?|connection|network|internal|server|service|storage|bucket|secrets?|tokens?"
    r"|passwords?|kerberos|bearer|anonymous|boolean|string|number|integer|b?float(?:16|32)|cuda(?::\d)?|exception"
    r"|traceback|system|machines?|allocated?|capacity|denied|access|permission|forbidden|refused|expired|missing|epochs?",
    re.IGNORECASE,
)
_CAMEL = LazyPattern(r"(?<=[a-z0-9])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])")
_URL_SECRET = LazyPattern(
    r"://([^/\s]+)@|[?&;](?:sig|signature|token|access_token|key|api_?key|password|secret)=([^&\s]+)|hooks\.slack\.com",
    re.IGNORECASE,
)


def redact_patterns(text: str) -> str:
    """Return the text with everything hidden that has the form of a secret."""
    for pattern in _SECRET_PATTERNS:
        text = pattern.sub(rf"\g<1>{HIDDEN}", text)
    return text


def redact_values(text: str, request: Mapping[str, Any]) -> str:
    """Return the text without the secret values of a request or job description, and without patterns of secrets.

    Secret are environment variables and hyperparameters with a telling name, and URLs that contain credentials.
    """
    return redact_secrets(text, find_secrets(request)) if text else text


def find_secrets(request: Mapping[str, Any]) -> tuple[str, ...]:
    """Return every spelling of every secret value of a request, the longest first."""
    return tuple(sorted(set(_find_secrets(request)), key=len, reverse=True))


def redact_secrets(text: str, secrets: Sequence[str]) -> str:
    """Return the text without these values, and without patterns of secrets."""
    for value in secrets:
        text = _replace(text, value)
    for value in secrets:
        text = _without_cut_end(text, value)
    return redact_patterns(text)


def is_secret_name(name: str) -> bool:
    """Return whether a variable or hyperparameter of this name holds a secret."""
    words = [word for word in re.split(r"[\W_]+|(?<=\D)(?=\d)", _CAMEL.sub("_", name).lower()) if word]
    while words and words[-1].isdigit():
        words.pop()
    if not words or _DESCRIPTION.fullmatch(words[-1]):
        return False
    if words[-1] in ("token", "tokens", "key", "keys") and any(_PLAIN_WORD.fullmatch(word) for word in words[:-1]):
        return False
    return words[-1] in ("key", "keys") or any(_SECRET_WORD.fullmatch(word) for word in words)


def _find_secrets(request: Mapping[str, Any]) -> Iterator[str]:
    """Yield every spelling of every secret value; of too many parts, those of the first values."""
    found, parts = set[str](), set[str]()
    for place in PLACES:
        for name, value in (request.get(place) or {}).items():
            text = str(value)[:MAX_SECRET_LENGTH]
            is_secret = is_secret_name(str(name))
            found |= {text, *islice(_list_strings(text), 1)} if is_secret else set()
            if len(parts) < MAX_PARTS_OF_ALL:
                own = _list_values(text) if is_secret else _list_url_secrets(text)
                parts |= set(sorted(own, key=len, reverse=True)[:MAX_PARTS_OF_ALL])
    for part in found | parts:
        if _is_secret_value(part):
            yield from _list_spellings(part)


def _list_values(text: str) -> set[str]:
    """Return the value, what it contains if it is JSON, and its parts if it is a list, a pair or several lines."""
    values = {text, *_list_strings(text)}
    for value in tuple(values):
        parts = re.split(r"[,;\r\n|]+", value) + value.split(":", 1)
        values |= {part.strip() for part in parts[:MAX_PARTS] if len(part.strip()) > MIN_SECRET_LENGTH}
        values |= set(_list_url_secrets(value))
    return values


def _list_strings(text: str) -> Iterator[str]:
    """Yield the strings in a value that is JSON: script mode passes hyperparameters as JSON."""
    try:
        nodes = [json.loads(text)]
    except (ValueError, RecursionError):
        return
    for _ in range(MAX_PARTS):
        if not nodes:
            return
        node = nodes.pop()
        if isinstance(node, str):
            yield node
        elif isinstance(node, list):
            nodes.extend(node[:MAX_PARTS])
        elif isinstance(node, dict):
            nodes.extend(list(node.values())[:MAX_PARTS])


def _list_url_secrets(text: str) -> Iterator[str]:
    """Yield the credentials in the URLs of a value; all of it, if the address itself is a secret."""
    for value in {text, *_list_strings(text)}:
        for match in _URL_SECRET.finditer(value):
            if match[1]:
                yield match[1]
                yield match[1].partition(":")[2]
            elif match[2]:
                yield match[2]
            else:
                yield value


def _is_secret_value(value: str) -> bool:
    is_number = re.fullmatch(r"[-+.,\deE]*", value) is not None
    return len(value) >= MIN_SECRET_LENGTH and not is_number and not _ORDINARY_WORD.fullmatch(value)


def _list_spellings(value: str) -> Iterator[str]:
    """Yield the value as logs, command lines, tracebacks and URLs spell it."""
    plain = {value, value.strip()}
    escaped = {json.dumps(value)[1:-1], json.dumps(value, ensure_ascii=False)[1:-1], repr(value)[1:-1]}
    escaped |= {json.dumps(spelling)[1:-1] for spelling in tuple(escaped)}
    escaped |= {repr(value.encode(errors="replace"))[2:-1], shlex.quote(value), html.escape(value)}
    encoded = {quote(value, safe="", errors="replace"), quote(value, errors="replace")}
    encoded.add(quote_plus(value, errors="replace"))
    encoded |= {re.sub("%[0-9A-F]{2}", lambda match: match[0].lower(), spelling) for spelling in tuple(encoded)}
    raw = value.encode(errors="replace")
    for data in (base64.b64encode(raw), base64.urlsafe_b64encode(raw)):
        encoded.add(data.decode().rstrip("="))
    yield from (spelling for spelling in plain | escaped | encoded if len(spelling) >= MIN_SECRET_LENGTH)


def _replace(text: str, value: str) -> str:
    """Return the text without the value; a plain word is removed only where it is a whole word."""
    if value not in text:
        return text
    if value.isalpha():
        return re.sub(rf"(?<![A-Za-z]){value}(?![A-Za-z])", HIDDEN, text)
    return text.replace(value, HIDDEN)


def _without_cut_end(text: str, value: str) -> str:
    """Return the text without the beginning of the value at its end: SageMaker cuts a reason at 1,024 characters."""
    start = text.find(value[:MIN_SECRET_LENGTH], max(0, len(text) - len(value)))
    while start >= 0:
        if value.startswith(text[start:]):
            return text[:start] + HIDDEN
        start = text.find(value[:MIN_SECRET_LENGTH], start + 1)
    return text
