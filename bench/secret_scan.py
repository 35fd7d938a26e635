"""Secrets in this tree, and in every version of every file that git remembers: what no commit after it takes back.

The forms are those of the detectors of `detect-secrets`: keys and tokens that can be told by their looks, headers of
private keys, passwords within addresses, and words such as `password = "..."` in programs. A find that is none is known
by its digest in `KNOWN`, with the reason; the secret itself is never printed."""

import re
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from hashlib import sha1
from itertools import chain
from pathlib import Path

from detect_secrets.core.plugins.util import get_mapping_from_secret_type_to_class
from detect_secrets.plugins.base import RegexBasedDetector

ROOT = Path(__file__).resolve().parent.parent
# These look for entropy or ask their service, and find something in any recorded event.
LEFT_OUT = {"IPPublicDetector"}
ASSIGNED = re.compile(
    r"""(?i)(?:passw(?:or)?d|pwd|secret|token|api_?key|access_?key|private_?key|credential)\w{0,20}["']?\s*
    (?:[:=]|=>)\s*(?:[bru]{0,2})(?P<quote>["'])(?P<value>[^"'\s<>{}$\\]{6,})(?P=quote)""",
    re.VERBOSE,
)
# What is looked at for words: programs and settings. Recorded logs and events say "token" of other things.
PROGRAMS = (".py", ".toml", ".yml", ".yaml", ".sh", ".cfg", ".ini", ".env", ".json", ".md", "Dockerfile", "Makefile")
LARGEST = 5_000_000

# The digest (SHA-1, as in a baseline of detect-secrets) of what looks like a secret and is none, and what it is.
KNOWN: dict[str, str] = {
    "f636f9ae8661f16f7ca0c960c9b4b9b38644faf4": "the name of a secret in Secrets Manager",
    "f3e9c22a1b94d1fd89cac8a8eb7b49fb839173b8": "the name of a secret in Secrets Manager",
    "7d74b92b7b86cd8836ec506cd7a14311c18ea7c0": "the name of a secret in Secrets Manager",
    "ef3f1982516b49ed8998b3b7e0f7b3d19fd91416": "the name of a secret in Secrets Manager",
    "15f86c051ecf0b64e5f8cdc8c689552f42595942": "a statistic of CloudWatch, of the metric tokens_per_s",
    "be30b930b8fd5958e6a1b092f35966182462a155": "the name of the metric tokens_per_s",
    "c2311e92660de47b456e721b0dabc9f857ab48f0": "the account of the local AWS",
    "dc724af18fbdd4e59189f5fe768a5f8311527050": "a key that a bench made up for a local AWS",
    "ff2f456a1a2685269d769af782f1310d3638f2d8": "a page's token that a test made up",
    "890a0c4b9faa4ba2f4266159f58cd8f81d8de239": "a key that a test of hiding secrets made up",
    "25910f981e85ca04baf359199dd0bd4a3ae738b6": "AWS's own example of a key, in a test of hiding secrets",
    "e5c7ffbbbbf53b753e1db53f4d123e690420554d": "a password that a test of hiding secrets made up",
    "fe5567e8d769550852182cdf69d74bb16dff8e29": "a key that a test of hiding secrets made up",
    "f97979ff44a9a1a4105f4bae6fe809715e0a0a84": "a password that a test of hiding secrets made up",
    "a8b0e377e5a644f7455f5fc0723089aeefa4b860": "a key that a test of hiding secrets made up",
    "083d0a90c63e2990760ad43406db008c291b477c": "a password that a test of hiding secrets made up",
    "1ebf0ce1819869fb13e5c5fa94c3bb63d3759ad7": "a token that a test of hiding secrets made up",
    "cb4745ca40fe7502c9b5b71d21cf84470586b640": "a word that a test of hiding secrets leaves as it is",
    "6355d9a081cfbba78240235ce440cc86942614d7": "the word that stands for a hidden secret",
}


@dataclass(frozen=True, slots=True)
class Find:
    """Something with the looks of a secret; `digest` is what to write into KNOWN if it is none."""

    path: str
    line: int
    kind: str
    digest: str


def scan(root: Path = ROOT) -> Iterator[Find]:
    """Every find that is not known, in the tree as it is and in all of git's history, each once."""
    seen, read = set[tuple[str, str]](), set[int]()
    for path, text in chain(tree(root), history(root)):
        if hash(text) in read:
            continue
        read.add(hash(text))
        for find in finds(path, text):
            if find.digest not in KNOWN and (find.digest, find.kind) not in seen:
                seen.add((find.digest, find.kind))
                yield find


def finds(path: str, text: str) -> Iterator[Find]:
    """What has the looks of a secret in one text."""
    for kind, pattern in detectors():
        for match in pattern.finditer(text):
            if "{" not in match[0]:  # what is put in there when it runs is elsewhere
                yield _find(path, text, kind, match.start(), match[0])
    if path.endswith(PROGRAMS):
        for match in ASSIGNED.finditer(text):
            yield _find(path, text, "a word for a secret, and a value", match.start(), match["value"])


def _find(path: str, text: str, kind: str, start: int, value: str) -> Find:
    return Find(path, text.count("\n", 0, start) + 1, kind, sha1(value.encode(), usedforsecurity=False).hexdigest())


def detectors() -> list[tuple[str, re.Pattern[str]]]:
    """The forms of detect-secrets that can be told by their looks."""
    return [
        (kind, pattern)
        for kind, found in get_mapping_from_secret_type_to_class().items()
        if issubclass(found, RegexBasedDetector) and found.__name__ not in LEFT_OUT
        for pattern in found.denylist
    ]


def tree(root: Path) -> Iterator[tuple[str, str]]:
    """The files that git keeps or would keep, by their paths."""
    for name in _git(root, "ls-files", "--cached", "--others", "--exclude-standard", "-z").split("\0"):
        file = root / name
        if name and file.is_file() and file.stat().st_size <= LARGEST:
            yield name, file.read_bytes().decode(errors="replace")


def history(root: Path) -> Iterator[tuple[str, str]]:
    """Every content that a file ever had in any branch, with a path that it had."""
    names: dict[str, str] = {}
    for line in _git(root, "rev-list", "--objects", "--all").splitlines():
        digest, _, path = line.partition(" ")
        if path:
            names.setdefault(digest, path)
    with subprocess.Popen(
        ["git", "cat-file", "--batch"], cwd=root, stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as git:
        assert git.stdin and git.stdout
        for digest, path in names.items():
            git.stdin.write(f"{digest}\n".encode())
            git.stdin.flush()
            _, kind, size = git.stdout.readline().split()
            content = git.stdout.read(int(size) + 1)[:-1]
            if kind == b"blob" and int(size) <= LARGEST:
                yield path, content.decode(errors="replace")
        git.stdin.close()


def _git(root: Path, *words: str) -> str:
    return subprocess.run(["git", *words], cwd=root, capture_output=True, text=True, check=True).stdout
