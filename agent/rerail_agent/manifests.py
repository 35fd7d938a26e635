"""Make a checkpoint of a folder that a script's own saver has written, by its `manifest.json`.

    commit(folder, step=500, loss=2.1)    once every file is written: each one's size and checksum, the manifest last
    resume_from(root)                     the newest complete checkpoint that this attempt may resume from

The folder is called `step-500`, `step-000000500` or, as the Hugging Face Trainer names it, `checkpoint-500`. Its
content may be of any framework.
"""

import json
import math
import os
import re
import sys
import time
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rerail.model.checkpoints import STEP_FOLDER, is_inside
from rerail_agent.checkpoints.manifest import (
    MANIFEST,
    QUARANTINE,
    SCHEMA,
    DamagedCheckpoint,
    Manifest,
    dump,
    format_now,
    is_count,
    read_start,
    verify_signature,
)
from rerail_agent.checkpoints.store import (
    LocalStore,
    compute_checksum,
    delete_folder,
    find_free_path,
    make_folder,
    sync_folder,
    write_file,
)
from rerail_agent.checkpoints.trust import UNTRUSTED, ManifestTrust
from rerail_agent.deferred_torch import find_process_group
from rerail_agent.fault_isolation import print_line
from rerail_agent.identity import Identity

if TYPE_CHECKING:
    from rerail_agent.guard import Guard

Log = Callable[[str], None]
# Whatever the script's framework writes.
FORMAT = "files"
# Files whose checksums are computed at once.
READERS = 4


@dataclass(frozen=True, slots=True)
class AttemptInfo:
    """The attempt of this process, and the checkpoints that it may resume from."""

    run: str = "local"
    number: int = 1
    # The newest step to resume from; 0 to start from scratch, None for any.
    resume_at_most: int | None = None
    # The restart in place within the attempt.
    restart: int = 0
    # The last restart in place that went back to `resume_at_most`.
    rolled_back: int = 0

    @classmethod
    def from_environment(cls, environment: Mapping[str, str] = os.environ) -> "AttemptInfo":
        """Read the attempt from the environment.

        A first job has no RERAIL_ variables. A successor without RERAIL_RESUME_STEP saves where Rerail cannot read, and
        resumes from what it finds there.
        """
        identity = Identity.from_environment({"RERAIL_MAILBOX": "off", **environment}, lambda message: None)
        step = environment.get("RERAIL_RESUME_STEP", "")
        if not re.fullmatch(r"[0-9]{0,18}", step):
            raise ValueError(f"RERAIL_RESUME_STEP={step!r}: must be a whole number; unset it to start a fresh run")
        at_most = int(step) if step else None
        run = environment.get("RERAIL_RUN") or identity.run or cls().run
        rolled_back = environment.get("RERAIL_ROLLED_BACK", "")
        return cls(run, identity.attempt, at_most, identity.restart, int(rolled_back) if rolled_back.isdigit() else 0)

    def is_own(self, manifest: Manifest) -> bool:
        """Return whether this attempt saved the checkpoint, after the last restart that went back."""
        own = (manifest.run, manifest.attempt) == (self.run, self.number)
        return own and manifest.restart >= self.rolled_back

    def may_resume(self, manifest: Manifest) -> bool:
        """Return whether this attempt may resume from the checkpoint.

        SageMaker restarts a job in place with the environment of its first start. What this attempt has saved since
        then is newer than the step in that environment.
        """
        return self.resume_at_most is None or manifest.step <= self.resume_at_most or self.is_own(manifest)

    def must_quarantine(self, manifest: Manifest) -> bool:
        """Return whether the checkpoint is of another run, or of before the last rollback."""
        return manifest.run != self.run or (manifest.attempt, manifest.restart) < (self.number, self.rolled_back)

    @property
    def is_rollback(self) -> bool:
        """Return whether this attempt must resume from before an earlier one's last checkpoint."""
        return self.resume_at_most is not None and (self.number > 1 or self.rolled_back > 0)


# ---------------------------------------------------------------------- one checkpoint


def commit(
    folder: str | os.PathLike[str],
    *,
    step: int,
    loss: float | None = None,
    consumed_samples: int = 0,
    world_size: int = 1,
    health: str = "clean",
    reason: str = "periodic",
    attempt: AttemptInfo | None = None,
    stall_s: float | None = None,
) -> Manifest:
    """Make a checkpoint of all files in a folder, durably; one process calls it after all ranks have written.

    `stall_s` is how long the training stood still for the save, in seconds. Raises OSError if the disk fails, and
    ValueError for a folder without files or with another step in its name.
    """
    place, attempt = Path(folder), attempt or AttemptInfo.from_environment()
    if parse_step(place) != step:
        raise ValueError(f"{place}: a checkpoint of step {step} lies in a folder step-{step} or checkpoint-{step}")
    names = sorted(path.relative_to(place).as_posix() for path in place.rglob("*") if path.is_file())
    names = [name for name in names if name not in (MANIFEST, f"{MANIFEST}.tmp")]
    if not names:
        raise ValueError(f"{place}: this folder has no files to make a checkpoint of")
    if strange := [name for name in names if not is_inside(name)]:
        raise ValueError(f"{place}: the supervisor takes no file called {strange[0]!r}; use printable names")
    with ThreadPoolExecutor(READERS) as pool:
        files = tuple(pool.map(lambda name: _make_entry(place, name), names))
    for inner in {(place / name).parent for name in names}:
        sync_folder(inner)
    manifest = Manifest(
        run=attempt.run,
        attempt=attempt.number,
        restart=attempt.restart,
        step=step,
        consumed_samples=consumed_samples,
        world_size=world_size,
        loss=loss if loss is not None and math.isfinite(loss) else None,
        reason=reason,
        health=health,
        saved_at=format_now(),
        files=files,
        format=FORMAT,
        stall_s=stall_s,
    )
    text = dump(manifest)
    write_file(place / f"{MANIFEST}.tmp", [memoryview(text)], total=len(text))
    (place / f"{MANIFEST}.tmp").rename(place / MANIFEST)
    sync_folder(place)
    sync_folder(place.parent)
    return manifest


def commit_if_missing(folder: str | os.PathLike[str], **facts: Any) -> bool:
    """Commit a local folder that is named like a checkpoint and has no manifest; return whether it did."""
    place = Path(folder)
    step = parse_step(place)
    if step is None or not place.is_dir() or (place / MANIFEST).exists():
        return False
    commit(place, step=step, **facts)
    return True


def _make_entry(folder: Path, name: str) -> dict[str, Any]:
    path = folder / name
    with open(path, "rb") as file:  # savers do not sync what they write
        os.fsync(file.fileno())
    return {"name": name, "bytes": path.stat().st_size, "checksum": compute_checksum(path)}


def read(folder: Path) -> Manifest:
    """Return a checkpoint's manifest; raises DamagedCheckpoint."""
    known = {field.name for field in fields(Manifest)}
    try:
        table = json.loads(read_start(folder / MANIFEST))
        files = tuple(
            {"name": str(entry["name"]), "bytes": int(entry["bytes"]), "checksum": str(entry["checksum"])}
            for entry in table["files"]
        )
        table["signature"] = verify_signature(table)
        manifest = Manifest(**{name: value for name, value in table.items() if name in known} | {"files": files})
        if not all(map(is_count, (manifest.step, manifest.attempt, manifest.restart))):
            raise TypeError("step, attempt and restart must be whole numbers, 0 or more")
        if not all(is_inside(str(entry["name"])) for entry in files):
            raise ValueError("a file outside the checkpoint's folder")
    except FileNotFoundError as error:
        raise DamagedCheckpoint(f"{MANIFEST} is missing") from error
    except (OSError, ValueError, TypeError, KeyError, AttributeError, OverflowError, RecursionError) as error:
        raise DamagedCheckpoint(f"{MANIFEST} cannot be read: {type(error).__name__}") from error
    if manifest.schema != SCHEMA or parse_step(folder) != manifest.step or not files:
        what = f"schema {manifest.schema!r:.60}, step {manifest.step} and {len(files)} files"
        raise DamagedCheckpoint(f"{MANIFEST} has {what}")
    return manifest


def verify(folder: Path) -> Manifest:
    """Return the manifest if every listed file has its size and its checksum; raises DamagedCheckpoint."""
    manifest = read(folder)
    with ThreadPoolExecutor(READERS) as pool:
        for _ in pool.map(lambda entry: _check(folder, entry), manifest.files):
            pass
    return manifest


def _check(folder: Path, entry: Mapping[str, Any]) -> None:
    path = folder / entry["name"]
    try:
        size = path.stat().st_size
        if size != entry["bytes"]:
            raise DamagedCheckpoint(f"{entry['name']} has {size} bytes instead of {entry['bytes']}")
        if compute_checksum(path) != entry["checksum"]:
            raise DamagedCheckpoint(f"{entry['name']} does not match its checksum")
    except OSError as error:
        raise DamagedCheckpoint(f"{entry['name']} cannot be read: {type(error).__name__}") from error


def is_whole(folder: Path) -> bool:
    """Return whether all listed files of a checkpoint are complete."""
    try:
        verify(folder)
    except DamagedCheckpoint:
        return False
    return True


def parse_step(folder: Path) -> int | None:
    """Return the step in a folder's name, or None."""
    match = STEP_FOLDER.fullmatch(folder.name)
    return int(match[1]) if match else None


# ---------------------------------------------------------------------- all of a run


def list_folders(root: Path) -> list[Path]:
    """Return the folders with a step in their name, the newest step first, incomplete ones too."""
    found = [(step, path) for path in root.glob("*-*") if (step := parse_step(path)) is not None and path.is_dir()]
    return [path for _, path in sorted(found, reverse=True)]


def find_newest_whole(root: Path, allowed: Callable[[Manifest], bool], log: Log = print_line) -> Path | None:
    """Return the newest complete checkpoint that is trusted and allowed; log each damaged one that is passed over."""
    folders = list_folders(root)
    listed = filter(None, map(_read_or_none, folders))
    untrusted = ManifestTrust.from_environment().find_untrusted(listed, signs_all=False)
    for folder in folders:
        try:
            manifest = read(folder)
            if manifest.step in untrusted and not manifest.signature:  # another folder of this step may be signed
                raise DamagedCheckpoint(UNTRUSTED)
            if allowed(manifest):
                verify(folder)
                return folder
        except DamagedCheckpoint as damage:
            log(f"{folder.name} is incomplete ({damage}); falling back to the one before it")
    return None


def quarantine(root: Path, *, after: int, tainted: Callable[[Manifest], bool], log: Log = print_line) -> None:
    """Move tainted checkpoints after a step to `quarantine/a<attempt>-<folder>/`, and log each.

    A checkpoint without a readable manifest is moved too, its attempt unknown. Each takes one rename; nothing is
    deleted.
    """
    for folder in list_folders(root):
        attempt = _get_attempt_if_tainted(tainted, folder)
        if (parse_step(folder) or 0) <= after or attempt is None:
            continue
        if place := _move_to_quarantine(folder, attempt):
            log(f"{folder.name} of attempt {attempt} comes after step {after}: moved to {place}")


def _move_to_quarantine(folder: Path, attempt: int | str) -> str:
    """Return the folder's new place, "" if another machine on the same file system was faster."""
    root = folder.parent
    place = find_free_path(root / QUARANTINE / f"a{attempt}-{folder.name}")
    make_folder(place.parent)
    try:
        folder.rename(place)
    except FileNotFoundError:
        return ""
    sync_folder(place.parent)
    sync_folder(root)
    return str(place.relative_to(root))


def _get_attempt_if_tainted(tainted: Callable[[Manifest], bool], folder: Path) -> int | str | None:
    try:
        manifest = read(folder)
    except DamagedCheckpoint:
        return "unknown"
    return manifest.attempt if tainted(manifest) else None


def choose_kept(manifests: Collection[Manifest], *, keep: int, newest: int, onset: int | None = None) -> set[int]:
    """Return the steps up to `newest` that stay: those of choose_last(), and the one of _choose_safe().

    The newest manifest comes first.
    """
    there = [manifest.step for manifest in manifests if manifest.step <= newest]
    safe = _choose_safe(manifests, newest=newest, onset=onset)
    return choose_last(there, keep=keep, onset=onset) | ({safe} if safe is not None else set())


def choose_last(steps: Sequence[int], *, keep: int, onset: int | None) -> set[int]:
    """Return the last `keep` of the steps, which come newest first.

    While a problem with the loss is open, return the newest and the last `keep` from before its onset: a relaunch may
    go back to any of them.
    """
    if onset is None:
        return {*steps[: max(1, keep)]}
    return {*steps[:1], *[step for step in steps if step < onset][: max(1, keep)]}


def find_safe(root: Path, *, newest: int, onset: int | None = None) -> int | None:
    """Return what _choose_safe() returns of a folder of checkpoints."""
    return _choose_safe(select_trusted(read_all(root)).values(), newest=newest, onset=onset)


def _choose_safe(manifests: Iterable[Manifest], *, newest: int, onset: int | None) -> int | None:
    """Return the step of the last clean checkpoint up to `newest`, which must not be deleted.

    While a problem with the loss is open, that is the last one from before its onset.
    """
    clean = [manifest.step for manifest in manifests if manifest.health == "clean" and manifest.step <= newest]
    earlier = [step for step in clean if onset is not None and step < onset]
    return next(iter(earlier or clean), None)


def read_all(root: Path) -> dict[str, Manifest]:
    """Return the manifests that can be read by their folder's name, the newest step first."""
    return {folder.name: manifest for folder in list_folders(root) if (manifest := _read_or_none(folder))}


def select_trusted(manifests: Mapping[str, Manifest]) -> dict[str, Manifest]:
    """Return the manifests that are trusted, in the same order."""
    untrusted = ManifestTrust.from_environment().find_untrusted(manifests.values(), signs_all=False)
    return {name: found for name, found in manifests.items() if found.signature or found.step not in untrusted}


def _read_or_none(folder: Path) -> Manifest | None:
    try:
        return read(folder)
    except DamagedCheckpoint:
        return None


def delete_checkpoint(folder: Path) -> None:
    """Delete an outdated checkpoint; an error is logged, and training goes on."""
    try:
        delete_folder(folder)
    except FileNotFoundError:
        pass  # another machine on the same file system was faster
    except OSError as error:
        print_line(f"{folder.name} is out of date and could not be deleted: {error}")


def find_root(place: str | os.PathLike[str] | None = None, environment: Mapping[str, str] = os.environ) -> Path:
    """Return the folder for checkpoints: the given one, else RERAIL_CHECKPOINTS, else the one SageMaker uploads."""
    named = os.fspath(place or environment.get("RERAIL_CHECKPOINTS") or "")
    if "://" in named:
        raise ValueError(f"checkpoints={named!r}: must be a folder; frameworks write files. SageMaker uploads them")
    return Path(named or Path(environment.get("SAGEMAKER_BASE_DIR") or "/opt/ml") / "checkpoints")


def resume_from(root: str | os.PathLike[str] | None = None) -> Path | None:
    """Return the newest complete checkpoint that this attempt may resume from, or None to start from scratch.

    On a rollback, checkpoints of earlier attempts after that step are moved to quarantine first. Call it on every rank:
    where a process group exists, all ranks return the same.
    """
    place, attempt = find_root(root), AttemptInfo.from_environment()
    if attempt.is_rollback and attempt.resume_at_most is not None and is_host_leader():
        quarantine(place, after=attempt.resume_at_most, tainted=attempt.must_quarantine)
    at_most = sys.maxsize
    while True:
        found = [name for name in gather(_find_newest(place, attempt, at_most)) if name is not None]
        steps = [parse_step(Path(name)) or 0 for name in found]
        at_most, most = min(steps), max(steps)
        if at_most == most:
            break
    wanted = attempt.resume_at_most
    if wanted and at_most < wanted and get_rank() == 0:
        print_line(f"asked to resume from step {wanted}, which is missing or incomplete; taking step {at_most} instead")
    return place / found[0] if at_most else None  # by its name: another folder of that step was not verified


def _find_newest(root: Path, attempt: AttemptInfo, at_most: int) -> str | None:
    """Return the name of this machine's newest checkpoint, "" if it has none; None where another process reads them."""
    if find_process_group() and not is_host_leader():
        return None
    found = find_newest_whole(root, lambda manifest: manifest.step <= at_most and attempt.may_resume(manifest))
    return found.name if found else ""


# ---------------------------------------------------------------------- from a training loop


def finish_checkpoint(guard: "Guard", folder: Path, *, step: int, reason: str, **facts: Any) -> bool:
    """Commit and report a checkpoint on rank 0, after all ranks have written; return whether it did.

    Errors of the commit are reported, not raised.
    """
    if get_rank() != 0 or guard.fenced:
        return False
    try:
        commit(folder, step=step, reason=reason, health=guard.health, world_size=get_world_size(), **facts)
    except (OSError, ValueError) as error:
        reason_text = f"no checkpoint at step {step}: {type(error).__name__}: {error}"
        print_line(reason_text)
        guard.save_failed(reason_text)
        return False
    guard.committed(folder, step, LocalStore(str(folder.absolute())).durability)
    return True


class FrameworkCheckpoints:
    """Checkpoints `step-<n>/` of a framework that writes its state to a path; the last `keep` of them stay.

    Call every method on every rank.
    """

    def __init__(self, guard: "Guard", root: Path, *, keep: int) -> None:
        self._guard, self._root, self._keep = guard, root, keep
        # Other runs may share the folder: a folder that appears later may be one that they are writing.
        self._known = {folder.name for folder in list_folders(root)}

    def save(self, step: int, write: Callable[[Path], Any], *, reason: str, **facts: Any) -> None:
        """Make `write(folder)` write the state, unless a complete checkpoint of this step exists.

        A save that fails is reported, and training goes on.
        """
        folder = self._root / f"step-{step:09d}"
        self._known.add(folder.name)
        with self._guard.phase("save"):
            if gather(get_rank() == 0 and is_whole(folder) and folder.name in select_trusted(read_all(self._root)))[0]:
                self._guard.committed(folder, step, LocalStore(str(folder.absolute())).durability)
                return
            started = time.monotonic()
            failure = self._first_failure(lambda: self._make_room(folder)) or self._first_failure(lambda: write(folder))
            stall_s = round(time.monotonic() - started, 4)
            if failure:
                print_line(f"the save at step {step} failed: {failure}")
                self._guard.save_failed(f"the save at step {step} failed: {failure}")
            elif gather(finish_checkpoint(self._guard, folder, step=step, reason=reason, stall_s=stall_s, **facts))[0]:
                self._prune(step)

    def _first_failure(self, work: Callable[[], Any]) -> str:
        """Do the work on every rank; return the first failure, the same on all, so that no rank goes on alone."""
        failure = ""
        try:
            work()
        except Exception as error:  # of whatever framework: its save failed, the training has not
            failure = f"{type(error).__name__}: {error}"
        return next((failure for failure in gather(failure) if failure), "")

    def _make_room(self, folder: Path) -> None:
        """Empty the folder of what this run has left there; what may be another run's is moved to quarantine."""
        if is_host_leader():
            is_kept = (folder / MANIFEST).exists() and not self._is_own(folder)
            if is_kept and (moved := _move_to_quarantine(folder, "unknown")):
                print_line(f"{folder.name} may be another run's: moved to {moved}")
            delete_folder(folder)
            folder.mkdir(parents=True, exist_ok=True)

    def _is_own(self, folder: Path) -> bool:
        manifest = select_trusted(read_all(self._root)).get(folder.name)
        return manifest is not None and manifest.run == AttemptInfo.from_environment().run

    def _prune(self, newest: int) -> None:
        # Rank 0 alone knows the onset, and has the manifests.
        spared = gather(self._list_spared(newest) if get_rank() == 0 else None)[0]
        if is_host_leader():
            for folder in list_folders(self._root):
                step = parse_step(folder)
                if step is not None and step < newest and folder.name in self._known - spared:
                    delete_checkpoint(folder)

    def _list_spared(self, newest: int) -> set[str]:
        """Return the names of own folders that stay, and of those whose manifest is another run's or not trusted."""
        manifests, run = read_all(self._root), AttemptInfo.from_environment().run
        trusted = {name: found for name, found in select_trusted(manifests).items() if name in self._known}
        own = {name: found for name, found in trusted.items() if found.run == run}
        kept = choose_kept(own.values(), keep=self._keep, newest=newest, onset=self._guard.onset)
        return manifests.keys() - {name for name, found in own.items() if found.step not in kept}


def get_rank() -> int:
    if dist := find_process_group():
        return int(dist.get_rank())
    return Identity.from_environment({"RERAIL_MAILBOX": "off", **os.environ}, lambda message: None).rank or 0


def get_world_size() -> int:
    dist = find_process_group()
    return int(dist.get_world_size()) if dist else 1


def gather(value: Any) -> list[Any]:
    """Return every rank's value, on every rank."""
    if get_world_size() == 1:
        return [value]
    dist = find_process_group()
    values: list[Any] = [None] * get_world_size()
    dist.all_gather_object(values, value)
    return values


def is_host_leader() -> bool:
    """Return whether this process acts for its machine, whose disk the other ranks may share."""
    names = ("LOCAL_RANK", "OMPI_COMM_WORLD_LOCAL_RANK", "SLURM_LOCALID")
    return next((os.environ[name] for name in names if os.environ.get(name)), "0") == "0"
