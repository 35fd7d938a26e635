"""Export `Guard`, with which a training script reports its steps and receives requests for checkpoints."""

import os
import sys
from typing import TYPE_CHECKING, Any

# The wheel's copy of the core, at the end of the path: see agent/hatch_build.py. A checkout has no such folder.
_CORE = os.path.join(os.path.dirname(__file__), "core")
if _CORE not in sys.path:
    sys.path.append(_CORE)

if TYPE_CHECKING:
    from rerail_agent.guard import Guard as Guard

__all__ = ["Guard"]


def __getattr__(name: str) -> Any:
    # Not imported at once: init.py, PID 1 of a container, is in this package and must not need torch.
    if name == "Guard":
        from rerail_agent.guard import Guard

        return Guard
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
