"""Search this tree and the whole git history for secrets: `python -m tools.secret_scan`.

The patterns are the regular expressions of detect-secrets, and assignments to names such as `password`. Its own command
line reads the tree only, and a secret that a later commit removes is still in the history. Secrets are never printed.
"""

import re
import subprocess
import sys
from collections.abc import Iterator
from hashlib import sha1
from itertools import chain, pairwise
from pathlib import Path

from detect_secrets.core.plugins.util import get_mapping_from_secret_type_to_class
from detect_secrets.plugins.base import RegexBasedDetector

ROOT = Path(__file__).resolve().parent.parent
ASSIGNMENT = re.compile(
    r"""(?i)(?:passw(?:or)?d|pwd|secret|token|api_?key|access_?key|private_?key|credential)\w{0,20}["']?\s*
    (?:[:=]|=>)\s*(?:[bru]{0,2})(?P<quote>["'])(?P<value>[^"'\s<>{}$\\]{6,})(?P=quote)""",
    re.VERBOSE,
)
# Files in which assignments are searched. Recorded logs and events use the word "token" for other things.
PROGRAMS = (".py", ".toml", ".yml", ".yaml", ".sh", ".cfg", ".ini", ".env", ".json", ".md", "Dockerfile", "Makefile")
LARGEST = 5_000_000

# SHA-1 digests of what matches and is not a secret, and what it is.
KNOWN: dict[str, str] = {
    "f636f9ae8661f16f7ca0c960c9b4b9b38644faf4": "the name of a secret in Secrets Manager",
    "f3e9c22a1b94d1fd89cac8a8eb7b49fb839173b8": "the name of a secret in Secrets Manager",
    "7d74b92b7b86cd8836ec506cd7a14311c18ea7c0": "the name of a secret in Secrets Manager",
    "ef3f1982516b49ed8998b3b7e0f7b3d19fd91416": "the name of a secret in Secrets Manager",
    "5e25ce007aa95ea2ea8b158aee9c630a32ea5616": "the name of a header",
    "15f86c051ecf0b64e5f8cdc8c689552f42595942": "a statistic of CloudWatch, of the metric tokens_per_s",
    "be30b930b8fd5958e6a1b092f35966182462a155": "the name of the metric tokens_per_s",
    "c2311e92660de47b456e721b0dabc9f857ab48f0": "the account of the local AWS",
    "dc724af18fbdd4e59189f5fe768a5f8311527050": "a synthetic key of a local AWS",
    "8e2efb9f899640525a7495981c92c9c825105393": "the name of a field in an answer of GetLogEvents",
    "ff2f456a1a2685269d769af782f1310d3638f2d8": "a page's synthetic token in a test",
    "890a0c4b9faa4ba2f4266159f58cd8f81d8de239": "a key in a test of redaction",
    "25910f981e85ca04baf359199dd0bd4a3ae738b6": "the example key of the AWS documentation, in a test of redaction",
    "e5c7ffbbbbf53b753e1db53f4d123e690420554d": "a password in a test of redaction",
    "fe5567e8d769550852182cdf69d74bb16dff8e29": "a key in a test of redaction",
    "f97979ff44a9a1a4105f4bae6fe809715e0a0a84": "a password in a test of redaction",
    "a8b0e377e5a644f7455f5fc0723089aeefa4b860": "a key in a test of redaction",
    "083d0a90c63e2990760ad43406db008c291b477c": "a password in a test of redaction",
    "1ebf0ce1819869fb13e5c5fa94c3bb63d3759ad7": "a token in a test of redaction",
    "f8589b0a62de06b0de9383ddbc1033c270b2735b": "a URL with a password in a test of redaction",
    "be4fc4886bd949b369d5e092eb87494f12e57e5b": "the header of a key in a test of redaction",
    "74c468962538c0bddc12417e58938beba1c30dfe": "a synthetic webhook in a test of redaction",
    "8b96cf052529e21d4050ed48a89afbb39c709066": "a password in a test of redaction",
    "36cb589f74157b45811a690c58b434095f48e9fa": "a password in a test of redaction",
    "cb4745ca40fe7502c9b5b71d21cf84470586b640": "a word that redaction leaves as it is",
    "6355d9a081cfbba78240235ce440cc86942614d7": "the word that replaces a secret",
    "caefc74c6bd784683f22a27f7874b740e8e0927f": "the token of a pipeline's callback, in a test",
    "8761d26fb8d6c7853faf7cf13fd3e5471364dc36": "the token of a state machine's task, in a test",
    "0b8a1caec23d75d1154b8d9bef9cec6c03697638": "the token of a state machine's task, in a test",
    "b8db33aac0c054847700220f8f641e3ef936145d": "the token of a pipeline's callback, in a test",
    "21de09062021365719f3027190867bc12c055178": "the token of a pipeline's callback, in a test",
    "77c0c44f04afbdf7a833b255edef196c36029074": "a URL with a password in a test of redaction",
    "ddf177405687b93ebc8ca2791ed4d3bcc6c94232": "a token in a test of redaction",
}


def scan(root: Path = ROOT) -> Iterator[str]:
    """Yield each match that is not known, once: its first path and line, its kind and its digest.

    The versions of a file share most lines, so a line is searched once behind each line that it follows, with that one:
    in programs and in other files.
    """
    found, seen = set[str](), set[int]()
    for path, text in chain(read_tree(root), read_history(root)):
        lines = text.split("\n")
        keys = [hash((*pair, path.endswith(PROGRAMS))) for pair in pairwise(["", *lines])]
        new = [number for number, key in enumerate(keys) if key not in seen]
        seen.update(keys)
        unread_numbers = sorted({near for number in new for near in (number - 1, number) if near >= 0})
        unread = "\n".join(lines[number] for number in unread_numbers)
        for kind, start, value in find_secrets(path, unread):
            digest = sha1(value.encode(), usedforsecurity=False).hexdigest()
            if digest not in found and digest not in KNOWN:
                found.add(digest)
                yield f"{path}:{unread_numbers[unread.count(chr(10), 0, start)] + 1}: {kind} ({digest})"


def find_secrets(path: str, text: str) -> Iterator[tuple[str, int, str]]:
    """Yield the kind, the offset and the value of each match in one text."""
    for kind, plugin in get_mapping_from_secret_type_to_class().items():
        # A public IP address is not a secret.
        if issubclass(plugin, RegexBasedDetector) and plugin.__name__ != "IPPublicDetector":
            for pattern in plugin.denylist:
                yield from ((kind, match.start(), match[0]) for match in pattern.finditer(text) if "{" not in match[0])
    if path.endswith(PROGRAMS):
        for match in ASSIGNMENT.finditer(text):
            yield "assignment to the name of a secret", match.start(), match["value"]


def read_tree(root: Path) -> Iterator[tuple[str, str]]:
    """Yield path and text of the files that git keeps or would keep."""
    for name in _git(root, "ls-files", "--cached", "--others", "--exclude-standard", "-z").split("\0"):
        file = root / name
        if name and file.is_file() and file.stat().st_size <= LARGEST:
            yield name, file.read_bytes().decode(errors="replace")


def read_history(root: Path) -> Iterator[tuple[str, str]]:
    """Yield every text that a file had in any branch, with one of its paths."""
    objects = (line.partition(" ") for line in _git(root, "rev-list", "--objects", "--all").splitlines())
    paths = {digest: path for digest, _, path in objects if path}
    with subprocess.Popen(
        ["git", "cat-file", "--batch"], cwd=root, stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as git:
        assert git.stdin and git.stdout, "started with pipes"
        for digest, path in paths.items():
            git.stdin.write(f"{digest}\n".encode())
            git.stdin.flush()
            _, kind, size = git.stdout.readline().split()
            content = git.stdout.read(int(size) + 1)[:-1]
            if kind == b"blob" and int(size) <= LARGEST:
                yield path, content.decode(errors="replace")
        git.stdin.close()


def _git(root: Path, *words: str) -> str:
    return subprocess.run(["git", *words], cwd=root, capture_output=True, text=True, check=True).stdout


def main() -> int:
    """Print the matches; return 1 if there are any."""
    found = list(scan())
    print("\n".join(found) or "no secret found in the tree and in the git history")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
