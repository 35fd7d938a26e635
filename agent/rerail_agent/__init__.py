"""What a training script imports, so that Rerail can watch it closely and ask it for a checkpoint: `Guard`."""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rerail_agent.guard import Guard as Guard

__all__ = ["Guard"]


def __getattr__(name: str) -> Any:
    # Not imported at once: init.py, which is PID 1 of a container, lives in this package and needs no torch.
    if name == "Guard":
        from rerail_agent.guard import Guard

        return Guard
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
