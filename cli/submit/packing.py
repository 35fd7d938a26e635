"""A folder of code as the `sourcedir.tar.gz` that AWS's training toolkit unpacks: the same tree, the same digest."""

import gzip
import hashlib
import io
import os
import re
import tarfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from fnmatch import translate
from functools import cache
from pathlib import Path

from cli.submit.problem import Problem
from rerail.requests.identity import COMMAND_SCRIPT

# Never packed or uploaded with a folder, not even where `!` in a pattern asks for it: the files in which common tools
# keep passwords, tokens and keys, as git does in the addresses of remotes. `--dependency FILE` names a single one.
SECRETS = (
    *("secrets.*", "secret.*", "credentials", "credentials.*", "!*.py", "client_secret*.json", ".git-credentials"),
    *(".env", ".env.*", "!.env.example", "!.env.sample", "!.env.template", ".envrc", "service[-_]account*.json"),
    *(".aws", ".ssh", ".kube", "**/.docker/config.json", ".gnupg", ".azure", ".gcloud", "*kubeconfig", ".git"),
    *(".netrc", "_netrc", ".npmrc", ".yarnrc*", ".pypirc", ".pgpass", ".my.cnf", ".htpasswd", ".s3cfg", ".boto"),
    *(".kaggle", "kaggle.json", ".vault-token", ".huggingface", ".databrickscfg", ".svn"),
    *("*.pem", "*.key", "*.p12", "*.pfx", "*.p8", "*.jks", "*.keystore", "*.kdbx", "*.ppk", "*.gpg", "*.asc", ".hg"),
    *("id_rsa*", "id_dsa*", "id_ecdsa*", "id_ed25519*", "*.tfstate", "*.tfstate.*", "*.tfvars", "*.tfvars.json"),
)
# Never packed unless asked for: environments, caches, and what training itself writes.
NEVER = (
    *(".venv", "venv", ".tox", ".nox", "node_modules", "*.egg-info"),
    *("__pycache__", "*.pyc", ".mypy_cache", ".pytest_cache", ".ruff_cache", ".ipynb_checkpoints", ".DS_Store"),
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


def pack(
    path: Path, *, entry: str = "", exclude: Sequence[str] = (), command: str = "", dependencies: Sequence[str] = ()
) -> Source:
    """Return the script with its folder, or a folder with its entry script; raise Problem if it cannot be packed.

    `command` is a shell command that runs in place of a script, in a packed folder. `dependencies` are files and
    folders elsewhere that are packed beside the script under their own names.
    """
    path = path.expanduser().resolve()
    if not path.exists():
        raise Problem(f"SCRIPT {path} does not exist", "name a Python script, or a folder that holds one")
    folder = path if path.is_dir() else path.parent
    if folder in (Path.home(), Path(folder.anchor)):
        raise Problem(f"SCRIPT {path}: the whole folder {folder} would be packed", "put it into a folder of its own")
    if command and (entry or not path.is_dir()):
        raise Problem("--command: it runs in place of a script", "give the folder to pack, without --entry")
    script = COMMAND_SCRIPT if command else _entry_of(folder, entry) if path.is_dir() else path.name
    keeps = make_patterns(exclude)
    files = _read_files(walk(folder, keeps), folder)
    files |= pack_dependencies(dependencies, keeps, files)
    size = sum(len(content) for content, _ in files.values())
    if size > MOST_BYTES:
        largest = sorted(((len(content), name) for name, (content, _) in files.items()), reverse=True)[:3]
        raise _make_size_problem(folder, largest)
    if command:
        files[COMMAND_SCRIPT] = (f"{command}\n".encode(), True)
    if script not in files:
        raise Problem(f"{script} is not among what would be packed of {folder}", "check --exclude and --entry")
    return Source(script, files)


class Patterns:
    """Shell patterns as .gitignore has them: a name anywhere, `/name` or `a/b` from the top, `name/` for folders, `!`
    to take one back; the last that fits decides. What `always` leaves out, no other pattern takes back."""

    def __init__(self, patterns: Sequence[str], always: Sequence[str] = ()) -> None:
        self._lists = [_parse_rules(patterns), _parse_rules(always)]

    def leave_out(self, name: str, *, is_folder: bool) -> bool:
        """Return whether the file or folder of this relative path is left out."""
        own, always = self._lists
        # Tools read the files of `always` in any case on some file systems.
        return _leaves_out(own, name, is_folder=is_folder) or _leaves_out(always, name.lower(), is_folder=is_folder)

    def leave_out_below(self, path: Path) -> bool:
        """Return whether the file of this relative path, or a folder that it is in, is left out."""
        return any(self.leave_out(place.as_posix(), is_folder=place != path) for place in (path, *path.parents))


# The parts of a pattern between its slashes; None, which is `**`, fits any number of a path's.
Parts = list[re.Pattern[str] | None]
Rule = tuple[bool, Parts, bool]


def _parse_rules(patterns: Sequence[str]) -> list[Rule]:
    texts = [pattern.strip() for pattern in patterns if pattern.strip() and not pattern.startswith("#")]
    return [(not text.startswith("!"), *_compiled(text.removeprefix("!"))) for text in texts]


def _leaves_out(rules: Sequence[Rule], name: str, *, is_folder: bool) -> bool:
    out, names = False, name.split("/")
    for leaves_out, parts, only_folders in rules:
        if (is_folder or not only_folders) and _fits(parts, names):
            out = leaves_out
    return out


def _fits(parts: Parts, names: Sequence[str]) -> bool:
    """Return whether a pattern fits a path, in time proportional to both: a project chooses its patterns."""
    ends = [0]  # of the names that the parts so far fit
    for part in parts:
        if part is None:
            ends = list(range(ends[0], len(names) + 1)) if ends else []
        else:
            ends = [end + 1 for end in ends if end < len(names) and part.fullmatch(names[end])]
    return len(names) in ends


def make_patterns(exclude: Sequence[str]) -> Patterns:
    """Return the patterns of what is not packed, with those that a user adds."""
    return Patterns((*NEVER, *exclude), SECRETS)


@cache
def find_secret_patterns() -> Patterns:
    """Return the patterns of secrets alone, for data."""
    return Patterns((), SECRETS)


def _compiled(pattern: str) -> tuple[Parts, bool]:
    only_folders, pattern = pattern.endswith("/"), pattern.rstrip("/")
    texts = pattern.removeprefix("/").split("/") if "/" in pattern else ["**", pattern]
    if texts[-1] == "**":
        texts.append("*")  # what is in a folder, not the folder
    expressions = [translate(text) for text in texts]
    if any("(?!)" in expression for expression in expressions):
        raise Problem(f"--exclude {pattern}: bad character range", "correct the pattern")
    return [None if t == "**" else re.compile(e) for t, e in zip(texts, expressions, strict=True)], only_folders


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


def walk(folder: Path, patterns: Patterns) -> Iterator[str]:
    """Yield the relative paths of the files to pack, in order.

    A link to a file of the project is packed as that file. Raise Problem for any other link: whoever wrote the folder
    would choose what else of this machine is sent.
    """
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
            if (folder / name).is_symlink() and not check_link(folder, name, patterns):
                continue
            if (folder / name).is_file():
                if name.encode(errors="replace") != name.encode(errors="surrogateescape"):
                    raise Problem(f"{name!r:.200} is not a name in UTF-8", "rename it, or leave it out with --exclude")
                yield name


def check_link(folder: Path, name: str, patterns: Patterns) -> bool:
    """Return whether to take the file that a link names; raise Problem if it is outside of the project, or nothing.

    What is too long to follow is an error: without `strict` its end would be taken for that of a plain path.
    """
    try:
        top, target = find_project(folder), (folder / name).resolve(strict=True)
    except (OSError, RuntimeError) as error:
        raise Problem(
            f"{name} cannot be read: {error}", f"fix the link, or leave it out with --exclude {name}"
        ) from error
    if not target.is_relative_to(top):
        raise Problem(
            f"{name} is a link to {target}, outside of {top}",
            f"leave it out with --exclude {name}, or put a copy of the file in its place",
        )
    return not patterns.leave_out_below(target.relative_to(top))


def find_project(folder: Path) -> Path:
    """Return the folder of the repository that holds this one; without one, this one itself."""
    folder = folder.resolve()
    for parent in (folder, *folder.parents):
        if Path.home().is_relative_to(parent):
            break
        if (parent / ".git").exists():
            return parent
    return folder


def read_folder(folder: Path, patterns: Patterns, *, entry: str) -> Source:
    """Return what the patterns leave of a folder."""
    return Source(entry, _read_files(walk(folder, patterns), folder))


def pack_dependencies(
    dependencies: Sequence[str], patterns: Patterns, files: Mapping[str, tuple[bytes, bool]]
) -> dict[str, tuple[bytes, bool]]:
    """Return the files of all dependencies; raise Problem if one has the name of another or of a packed file."""
    found: dict[str, tuple[bytes, bool]] = {}
    for given in dependencies:
        packed = _read_dependency(given, patterns)
        if twice := sorted(packed.keys() & (files.keys() | found.keys())):
            raise Problem(f"--dependency {given}: {twice[0]} is packed already", "rename one of the two")
        found |= packed
    return found


def _read_dependency(given: str, patterns: Patterns) -> dict[str, tuple[bytes, bool]]:
    """Return a file or a folder's files under its own name, as they lie beside the script."""
    path = Path(given).expanduser().resolve()
    if path.is_file():
        return _read_files([path.name], path.parent)
    if not path.is_dir():
        raise Problem(f"--dependency {given}: there is no such file or folder", "give a path of this machine")
    if path in (Path.home(), Path(path.anchor)):
        raise Problem(f"--dependency {given}: the whole folder {path} would be packed", "name a folder below it")
    return _read_files((f"{path.name}/{name}" for name in walk(path, patterns)), path.parent)


def _read_files(names: Iterable[str], folder: Path) -> dict[str, tuple[bytes, bool]]:
    """Return each file's bytes and whether it may be executed; raise Problem before too much is read."""
    files: dict[str, tuple[bytes, bool]] = {}
    sizes: list[tuple[int, str]] = []
    total = 0
    try:
        for name in names:
            size = (folder / name).stat().st_size
            sizes.append((size, name))
            total += size
            if total <= MOST_BYTES:
                files[name] = ((folder / name).read_bytes(), os.access(folder / name, os.X_OK))
    except OSError as error:
        raise Problem(f"{folder} cannot be packed: {error!s:.300}", "leave the file out with --exclude") from error
    if total > MOST_BYTES:
        raise _make_size_problem(folder, sorted(sizes, reverse=True)[:3])
    return files


def _make_size_problem(folder: Path, largest: Iterable[tuple[int, str]]) -> Problem:
    shown = ", ".join(f"{name} {size >> 20} MB" for size, name in largest)
    return Problem(
        f"{folder} holds more than {MOST_BYTES >> 20} MB of code (the largest: {shown})",
        "leave data out with --exclude PATTERN, and give it to the job with --input NAME=PATH",
    )
