"""A folder of code as the `sourcedir.tar.gz` that AWS's training toolkit unpacks: the same tree, the same digest."""

import gzip
import hashlib
import io
import os
import re
import tarfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from cli.submit.problem import Problem

# Never packed: histories, environments, caches, secrets, and what training itself writes.
NEVER = (
    *(".git", ".hg", ".svn", ".venv", "venv", ".tox", ".nox", "node_modules", "*.egg-info"),
    *("__pycache__", "*.pyc", ".mypy_cache", ".pytest_cache", ".ruff_cache", ".ipynb_checkpoints", ".DS_Store"),
    *(".env", ".aws", ".ssh", "*.pem"),
    *("checkpoints", "checkpoint-*", "step-*/", "wandb", "mlruns", "lightning_logs", ".local", "sourcedir.tar.gz"),
)
MOST_BYTES = 200 * 1024 * 1024


@dataclass(frozen=True, slots=True)
class Source:
    """What is packed: each file's bytes and whether it may be executed, by its path in the folder."""

    entry: str
    files: Mapping[str, tuple[bytes, bool]]

    @property
    def digest(self) -> str:
        """Of names, modes and contents: not of the archive, whose bytes depend on who compresses."""
        digest = hashlib.sha256()
        for name, (content, runs) in sorted(self.files.items()):
            digest.update(f"{name}\0{int(runs)}\0{len(content)}\0".encode())
            digest.update(content)
        return digest.hexdigest()

    def archive(self) -> bytes:
        """Return the gzipped tar, independent of times, owners and the file system's order."""
        tar = io.BytesIO()
        with tarfile.open(fileobj=tar, mode="w", format=tarfile.PAX_FORMAT) as archive:
            for name, (content, runs) in sorted(self.files.items()):
                member = tarfile.TarInfo(name)
                member.size, member.mode = len(content), 0o755 if runs else 0o644
                archive.addfile(member, io.BytesIO(content))
        return gzip.compress(tar.getvalue(), compresslevel=6, mtime=0)

    def mentions(self, *words: str) -> bool:
        """Return whether a Python file has one of these words."""
        texts = (content for name, (content, _) in self.files.items() if name.endswith(".py"))
        return any(word.encode() in text for text in texts for word in words)


def pack(path: Path, *, entry: str = "", exclude: Sequence[str] = ()) -> Source:
    """Return the script with its folder, or a folder with its entry script; raise Problem if it cannot be packed."""
    path = path.expanduser().resolve()
    if not path.exists():
        raise Problem(f"SCRIPT {path} does not exist", "name a Python script, or a folder that holds one")
    folder = path if path.is_dir() else path.parent
    if folder in (Path.home(), Path(folder.anchor)):
        raise Problem(f"SCRIPT {path}: the whole folder {folder} would be packed", "put it into a folder of its own")
    script = _entry_of(folder, entry) if path.is_dir() else path.name
    keeps = Patterns((*NEVER, *exclude))
    files, size = {}, 0
    for name in _walk(folder, keeps):
        size += (folder / name).stat().st_size
        if size > MOST_BYTES:
            raise Problem(
                f"{folder} holds more than {MOST_BYTES >> 20} MB of code (the largest: {_largest(folder, keeps)})",
                "leave data out with --exclude PATTERN, and give it to the job with --input NAME=PATH",
            )
        files[name] = ((folder / name).read_bytes(), os.access(folder / name, os.X_OK))
    if script not in files:
        raise Problem(f"{script} is not among what would be packed of {folder}", "check --exclude and --entry")
    return Source(script, files)


class Patterns:
    """Shell patterns as .gitignore has them: a name anywhere, `/name` or `a/b` from the top, `name/` for folders, `!`
    to take one back; the last that fits decides."""

    def __init__(self, patterns: Sequence[str]) -> None:
        rules = [pattern.strip() for pattern in patterns if pattern.strip() and not pattern.startswith("#")]
        self._rules = [(not rule.startswith("!"), *_compiled(rule.removeprefix("!"))) for rule in rules]

    def leave_out(self, name: str, *, is_folder: bool) -> bool:
        """Return whether the file or folder of this relative path is left out."""
        out = False
        for leaves_out, expression, only_folders in self._rules:
            if (is_folder or not only_folders) and expression.fullmatch(name):
                out = leaves_out
        return out


def _compiled(pattern: str) -> tuple[re.Pattern[str], bool]:
    only_folders, pattern = pattern.endswith("/"), pattern.rstrip("/")
    anywhere = "/" not in pattern
    parts = {"**/": "(?:.*/)?", "/**": "/.*", "**": ".*", "*": "[^/]*", "?": "[^/]"}
    text = "".join(
        parts.get(part) or (part.replace("[!", "[^") if part.startswith("[") else re.escape(part))
        for part in re.findall(r"\*\*/|/\*\*|\*\*|\*|\?|\[[^\]/]+\]|[^*?\[/]+|.", pattern.removeprefix("/"))
    )
    return re.compile(f"(?:.*/)?{text}" if anywhere else text, re.DOTALL), only_folders


def _entry_of(folder: Path, entry: str) -> str:
    if entry:
        if not (folder / entry).is_file():
            raise Problem(f"--entry {entry}: there is no such file in {folder}", "name a script below the folder")
        return Path(entry).as_posix()
    scripts = sorted(path.name for path in folder.glob("*.py"))
    usual = [name for name in ("train.py", "main.py") if name in scripts]
    if not usual and len(scripts) != 1:
        raise Problem(f"{folder} holds {', '.join(scripts) or 'no Python script'}", "say which one runs: --entry NAME")
    return usual[0] if usual else scripts[0]


def _walk(folder: Path, patterns: Patterns) -> Iterator[str]:
    """Relative paths of the files to pack, in order. A link to a file is packed as that file."""
    for root, folders, files in os.walk(folder):
        below = Path(root).relative_to(folder)
        folders[:] = sorted(
            name for name in folders if not patterns.leave_out((below / name).as_posix(), is_folder=True)
        )
        for name in ((below / subfolder).as_posix() for subfolder in folders):
            if (folder / name).is_symlink():
                raise Problem(
                    f"{name} is a link to a folder, which would not be packed",
                    f"leave it out with --exclude {name}, or put the folder itself there",
                )
        for name in ((below / file).as_posix() for file in sorted(files)):
            if patterns.leave_out(name, is_folder=False):
                continue
            if (folder / name).is_file():
                yield name
            elif (folder / name).is_symlink():
                raise Problem(f"{name} is a link to nothing", f"fix the link, or leave it out with --exclude {name}")


def _largest(folder: Path, patterns: Patterns) -> str:
    sizes = sorted(((folder / name).stat().st_size, name) for name in _walk(folder, patterns))[-3:]
    return ", ".join(f"{name} {size >> 20} MB" for size, name in reversed(sizes))
