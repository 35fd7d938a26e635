"""Checkpoints that cost a training loop one copy in memory, and are whole or invisible: `Saver`.

Read saver.py first. A save is staged (arena.py, shares.py, plan.py), written by another process (writer.py) and
committed once every rank is done (courier.py, place.py). A checkpoint is a folder `step-000000060/` in the format of
torch.distributed.checkpoint; it exists when its `manifest.json` does.
"""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rerail_agent.checkpoints.courier import Committed as Committed
    from rerail_agent.checkpoints.manifest import DamagedCheckpoint as DamagedCheckpoint
    from rerail_agent.checkpoints.manifest import Manifest as Manifest
    from rerail_agent.checkpoints.place import place_of as place_of
    from rerail_agent.checkpoints.restore import UnfitState as UnfitState
    from rerail_agent.checkpoints.saver import Saver as Saver
    from rerail_agent.checkpoints.snapshots import Snapshots as Snapshots

HOMES = {
    "Committed": "courier",
    "DamagedCheckpoint": "manifest",
    "Manifest": "manifest",
    "Saver": "saver",
    "Snapshots": "snapshots",
    "UnfitState": "restore",
    "place_of": "place",
}
__all__ = list(HOMES)


def __getattr__(name: str) -> Any:
    # Not imported at once: the writer process lives in this package and does without torch.
    from importlib import import_module

    if name in HOMES:
        return getattr(import_module(f"{__name__}.{HOMES[name]}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
