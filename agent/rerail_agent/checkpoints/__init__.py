"""Save checkpoints at the cost of one copy in memory; a checkpoint is complete or not visible: `Saver`.

Read saver.py first. A checkpoint is staged (staging_memory.py, write_shares.py, plan.py), written by another process
(writer.py) and committed once every rank is done (commit_queue.py, store.py). It is a folder `step-000000060/` in the
format of torch.distributed.checkpoint; it exists when its `manifest.json` does.
"""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rerail_agent.checkpoints.commit_queue import CommitResult as CommitResult
    from rerail_agent.checkpoints.manifest import DamagedCheckpoint as DamagedCheckpoint
    from rerail_agent.checkpoints.manifest import Manifest as Manifest
    from rerail_agent.checkpoints.restore import UnfitState as UnfitState
    from rerail_agent.checkpoints.saver import Saver as Saver
    from rerail_agent.checkpoints.snapshots import Snapshots as Snapshots
    from rerail_agent.checkpoints.store import open_store as open_store

MODULES = {
    "CommitResult": "commit_queue",
    "DamagedCheckpoint": "manifest",
    "Manifest": "manifest",
    "Saver": "saver",
    "Snapshots": "snapshots",
    "UnfitState": "restore",
    "open_store": "store",
}
__all__ = list(MODULES)


def __getattr__(name: str) -> Any:
    # Not imported at once: the writer process is in this package and must not import torch.
    from importlib import import_module

    if name in MODULES:
        return getattr(import_module(f"{__name__}.{MODULES[name]}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
