"""Check that a resume restored everything: the losses after a checkpoint are kept, and must come again.

A random state, a data position, an optimizer or a schedule missing from a checkpoint shows within three steps. The file
`losses.json` is beside the manifest and is not one of the checkpoint's files. It is written when the losses are known,
and a checkpoint without it is complete too.
"""

import argparse
import json
import math
import platform
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

import torch
import xxhash

from parallel import DistributedWorld
from rerail_agent.checkpoints.store import CheckpointStore

FILE = "losses.json"
SCHEMA = 1
COUNT = 3
LAST_WRITES_S = 10.0
INDIFFERENT = {"checkpoint_every", "keep", "log_every", "step_seconds", "collective_timeout_seconds"}
# On a GPU some kernels add up in the order in which their threads happen to come, and another kind of GPU or of
# collective has an order of its own. From the same state that moves a loss by far less than a thousandth.
GPU_TOLERANCE = 1e-3


@dataclass(frozen=True)
class ReplayResult:
    """The result of a comparison, with a text for people."""

    is_same: bool
    text: str


@dataclass
class Replay:
    """The losses after the newest checkpoints, and the expected losses after the resumed one."""

    # What the losses depend on beside the checkpoint, such as the number of ranks; others are not compared.
    conditions: dict[str, Any]
    # Relative; 0 requires every bit.
    tolerance: float = 0.0
    expected: dict[int, float] = field(default_factory=dict)
    seen: dict[int, dict[int, float]] = field(default_factory=dict)
    committed: set[int] = field(default_factory=set)
    repeated: int = 0
    writes: list[threading.Thread] = field(default_factory=list)

    @classmethod
    def on(
        cls,
        world: DistributedWorld,
        options: argparse.Namespace,
        *,
        skipped: Sequence[range],
        rate: float = 1.0,
        parts: int = 1,
    ) -> "Replay":
        """Make a replay whose conditions are everything but the checkpoint that determines the losses of a run."""
        chosen = {name: value for name, value in vars(options).items() if name not in INDIFFERENT}
        ranks = {"ranks": world.size, "ranks_per_node": world.local_size}
        software = {"torch": torch.__version__, "device": _device_name(world.device)}
        ranges = [[skipped_range.start, skipped_range.stop - 1] for skipped_range in skipped]
        tolerance = GPU_TOLERANCE if world.device.type == "cuda" else 0.0
        asked = ({} if rate == 1.0 else {"rate": rate}) | ({} if parts == 1 else {"parts": parts})
        return cls({**chosen, **ranks, **software, "skipped": ranges, **asked}, tolerance)

    def load_expected(self, step: int, place: CheckpointStore) -> str:
        """Read the file beside the checkpoint; return why nothing is compared, or ""."""
        try:
            return self.set_expected(step, place.read_note(step, FILE))
        except OSError as error:
            return f"{FILE} of step {step} cannot be read ({error}): this resume is not compared"

    def set_expected(self, step: int, text: bytes | None) -> str:
        """Take the file's content, as load_expected() does."""
        if text is None:
            self.start_recording(step)
            self.committed.add(step)
            return f"no losses are known from after step {step}: nothing to compare this resume with"
        try:
            table = json.loads(text)
            losses = {int(key): float.fromhex(value) for key, value in table["losses"].items()}
            then = {**table["conditions"], "schema": table["schema"]}
        except (ValueError, TypeError, KeyError, AttributeError, OverflowError, RecursionError) as error:
            return f"{FILE} of step {step} cannot be read ({type(error).__name__}): this resume is not compared"
        now = json.loads(json.dumps({**self.conditions, "schema": SCHEMA}))
        changed = [name for name in sorted(then.keys() | now.keys()) if then.get(name) != now.get(name)]
        if changed:
            name = changed[0]
            before, after = (json.dumps(conditions.get(name))[:200] for conditions in (then, now))
            # Others may have written the file: what it says stays on one line of the log.
            return f"this resume is not compared: {json.dumps(name)[1:-1]:.100} was {before}, it is {after}"
        self.expected = losses
        return ""

    def start_recording(self, step: int) -> None:
        """Record the next losses for the checkpoint of this step, which is being saved."""
        self.seen.setdefault(step, {})

    def compare(self, step: int, loss: float) -> ReplayResult | None:
        """Take the loss of a step; return a result at the first difference, or after the last equal loss.

        After the first difference nothing more is compared: the next steps can only differ too.
        """
        for after, losses in self.seen.items():
            if after < step <= after + COUNT:
                losses[step] = loss
        if step not in self.expected:
            return None
        expected = self.expected.pop(step)
        if not self._same(loss, expected):
            self.expected.clear()
            text = f"loss {loss:.9g} at step {step}, but {expected:.9g} ({expected.hex()}) before the resume"
            return ReplayResult(False, text)
        self.repeated += 1
        if self.expected:
            return None
        how = f"within {self.tolerance:g} of them" if self.tolerance else "bit for bit"
        text = f"the losses of steps {step - self.repeated + 1} to {step} are those of before the resume, {how}"
        return ReplayResult(True, text)

    def _same(self, one: float, other: float) -> bool:
        if one.hex() == other.hex():  # nan too
            return True
        return self.tolerance > 0 and math.isclose(one, other, rel_tol=self.tolerance)

    def take_complete(self, *, is_last: bool = False) -> Iterator[tuple[int, bytes]]:
        """Yield each committed checkpoint whose losses are complete, and its file's content, once.

        At the end of the attempt fewer losses are enough, because no more will come.
        """
        for step in sorted(self.committed):
            losses = self.seen.get(step, {})
            if len(losses) == COUNT or (is_last and losses):
                self.committed.remove(step)
                yield step, self._dump_losses(self.seen.pop(step))

    def write_due(self, place: CheckpointStore, *, is_last: bool = False) -> None:
        """Write the files that are due, in threads: a step must not wait for S3, nor fail with it."""
        for step, text in self.take_complete(is_last=is_last):
            self.writes.append(threading.Thread(target=_write_losses, args=(place, step, text), daemon=True))
            self.writes[-1].start()
        self.writes = [write for write in self.writes if write.is_alive()]
        for write in self.writes if is_last else ():
            write.join(LAST_WRITES_S)

    def _dump_losses(self, losses: Mapping[int, float]) -> bytes:
        hexes = {str(step): loss.hex() for step, loss in losses.items()}
        return json.dumps({"schema": SCHEMA, "conditions": self.conditions, "losses": hexes}, indent=1).encode()


def _write_losses(place: CheckpointStore, step: int, text: bytes) -> None:
    # The checkpoint may be outdated and deleted by now; only a comparison is lost.
    with suppress(OSError):
        place.write_note(step, FILE, text)


def _device_name(device: torch.device) -> str:
    """Return the device's name: kernels differ between kinds of device, those of CPUs by their instructions."""
    if device.type == "cuda":
        return str(torch.cuda.get_device_name(device))
    return f"{platform.machine()} {torch.backends.cpu.get_cpu_capability()}"


def fingerprint(weights: Mapping[str, torch.Tensor]) -> str:
    """Return one checksum over all weights, to compare two runs."""
    digest = xxhash.xxh3_64()
    for name in sorted(weights):
        digest.update(name.encode())
        digest.update(weights[name].detach().cpu().contiguous().view(-1).view(torch.uint8).numpy().data)
    return f"xxh3_64:{digest.hexdigest()}"
