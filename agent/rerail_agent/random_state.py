"""Save and restore the state of all random numbers that a script draws, as plain values that torch.load accepts.

A resumed run draws the same numbers as an undisturbed one only if they continue where the checkpoint was saved.
"""

import random
import sys
from collections.abc import Mapping
from typing import Any


def get_random_state() -> dict[str, Any]:
    """Return the states of Python's generator, and of NumPy's and PyTorch's (CPU and all CUDA devices) if loaded.

    Each rank has its own: save it for each rank where ranks draw different numbers.
    """
    state: dict[str, Any] = {"python": random.getstate()}
    if numpy := sys.modules.get("numpy"):
        name, keys, *rest = numpy.random.get_state()
        state["numpy"] = [name, keys.tolist(), *rest]
    if torch := sys.modules.get("torch"):
        state["torch"] = torch.get_rng_state()
        if torch.cuda.is_available():
            state["cuda"] = torch.cuda.get_rng_state_all()
    return state


def set_random_state(state: Mapping[str, Any]) -> None:
    """Restore what `get_random_state` has returned; a state without its library or device is left out."""
    version, numbers, gauss = state["python"]
    random.setstate((version, tuple(numbers), gauss))
    if "numpy" in state and (numpy := sys.modules.get("numpy")):
        name, keys, *rest = state["numpy"]
        numpy.random.set_state((name, numpy.array(keys, dtype="uint32"), *rest))
    if "torch" in state and (torch := sys.modules.get("torch")):
        torch.set_rng_state(state["torch"].cpu())
        devices = torch.cuda.device_count() if torch.cuda.is_available() else 0
        if devices and len(state.get("cuda", ())) == devices:
            torch.cuda.set_rng_state_all([device.cpu() for device in state["cuda"]])
