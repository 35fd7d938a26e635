"""AWS on this machine: an emulator with a SageMaker training API, and the real template deployed into it."""

import sys
from pathlib import Path

# The emulator's own process is started without the caller's path: it finds the core of this version here.
_CORE = str(Path(__file__).resolve().parent.parent / "lambdas")
if _CORE not in sys.path:
    sys.path.insert(0, _CORE)
