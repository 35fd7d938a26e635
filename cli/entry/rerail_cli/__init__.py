"""Start the command `rerail` from a checkout or from the wheel, in which this package holds the checkout's folders.

`from rerail_cli import remote` runs a function as a supervised job: see docs/remote.md.
"""

import sys
from importlib import import_module
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
# In a checkout this package lies in cli/entry.
PROJECT = HERE if (HERE / "cli").is_dir() else HERE.parent.parent.parent


def main() -> None:
    """Run the command line with the modules of this version, also where another version of the agent is installed."""
    sys.path[:0] = [str(PROJECT), str(PROJECT / "lambdas")]
    from cli.main import app

    app()


def __getattr__(name: str) -> Any:
    """Import what remote functions need when it is first used: the command line starts without it."""
    functions = import_module(f"{__name__}.functions") if not name.startswith("_") else None
    if functions is None or name not in functions.__all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(functions, name)
