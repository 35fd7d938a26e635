"""How a sample becomes bad input: one or a few values of it replaced, doubled or taken away, still well formed.

What is no longer JSON or TOML is refused by the first line of a parser; what still is reaches the checks behind it."""

import json
import re
import tomllib
from collections.abc import Callable, Iterator
from random import Random
from typing import Any

import tomli_w

INTERESTING: tuple[Any, ...] = (
    *(
        None,
        True,
        -1,
        0,
        1,
        0.5,
        1e308,
        -1e308,
        2**31,
        2**63,
        10**30,
        10**400,
        "",
        "\ud800",
        "\0",
        [],
        {},
        [[]],
        {"": {}},
    ),
    *("NaN", "1e999", "../../etc", "a" * 64, "2026-13-45T99:99:99Z", "0001-01-01T00:00:00+14:00", "rerail"),
    *("2026-01-31T03:00:00", "9999-12-31T23:59:59-12:00", "<script>", "'; --", "-", "0", "é", "\u202e", "\x1b[2J"),
    *("=cmd()", "*", "%s{0}", float("nan"), float("inf"), "InProgress", "Failed", "Stopped", "Rebooting", "InService"),
)
LONG: tuple[Any, ...] = (
    "x" * 70_000,
    "9" * 5_000,
    "(" * 5_000,
    [0] * 5_000,
    {f"k{number}": number for number in range(500)},
)
DEEP = 900
BOTTOMLESS = b"[" * 20_000
ONE_LONG_IN = 200
WORDS = re.compile(r"\s+|[^\s]+")

Change = Callable[[bytes, Random], bytes]


def json_changed(data: bytes, random: Random) -> bytes:
    """A document with one to three of its values changed; what is no JSON comes back as it is."""
    if random.randrange(ONE_LONG_IN) == 0:
        return BOTTOMLESS
    try:
        tree = json.loads(data)
    except (ValueError, RecursionError):
        return data
    try:
        return json.dumps(_tree_changed(tree, random)).encode(errors="replace")
    except RecursionError:
        return BOTTOMLESS


def toml_changed(data: bytes, random: Random) -> bytes:
    """As with JSON; what TOML has no form for comes back as it is."""
    try:
        tree = tomllib.loads(data.decode())
    except (ValueError, RecursionError):
        return data
    made = _tree_changed(tree, random)
    try:
        return tomli_w.dumps(made).encode(errors="replace") if isinstance(made, dict) else data
    except TypeError:
        return data
    except RecursionError:
        return BOTTOMLESS


def text_changed(data: bytes, random: Random) -> bytes:
    """Words of a text replaced by others, doubled, taken away; lines repeated."""
    words = WORDS.findall(data.decode(errors="replace")) or [""]
    for _ in range(random.randrange(1, 4)):
        at = random.randrange(len(words))
        match random.randrange(5):
            case 0:
                words[at] = str(_value(random))
            case 1:
                words[at : at + 1] = [words[at]] * random.randrange(2, 40)
            case 2 if len(words) > 1:
                del words[at]
            case 3:
                words[at] = words[at][: random.randrange(len(words[at]) + 1)] + str(_value(random))
            case _:
                words.insert(at, random.choice(words))
    return "".join(words).encode(errors="replace")


def _tree_changed(tree: Any, random: Random) -> Any:
    for _ in range(1 if random.random() < 0.7 else random.randrange(2, 4)):
        spots = list(_spots(tree))
        if not spots:
            return _value(random)
        holder, key = random.choice(spots)
        chance = random.random()
        if chance < 0.15:
            del holder[key]
        elif chance < 0.25 and isinstance(holder, dict):
            holder[str(_value(random))[:100]] = holder[key]
        elif chance < 0.30 and isinstance(holder, list):
            holder.extend([holder[key]] * random.randrange(1, 30))
        elif chance < 0.33:
            holder[key] = _nested(holder[key], random.randrange(2, DEEP) if random.random() < 0.05 else 2)
        elif chance < 0.45:  # a value from elsewhere in the document: of the right kind, in the wrong place
            other, its = random.choice(spots)
            holder[key] = json.loads(json.dumps(other[its]))  # a copy: nothing may come to stand within itself
        else:
            holder[key] = _value(random)
    return tree


def _value(random: Random) -> Any:
    made = random.choice(LONG if random.randrange(ONE_LONG_IN) == 0 else INTERESTING)
    return made.copy() if isinstance(made, list | dict) else made


def _nested(value: Any, depth: int) -> Any:
    for number in range(depth):
        value = [value] if number % 2 else {"a": value}
    return value


def _spots(tree: Any) -> Iterator[tuple[Any, Any]]:
    pending = [tree]
    while pending:
        holder = pending.pop()
        keys = list(holder) if isinstance(holder, dict) else range(len(holder)) if isinstance(holder, list) else ()
        for key in keys:
            yield holder, key
            pending.append(holder[key])
