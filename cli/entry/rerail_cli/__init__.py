"""Start the command `rerail` from a checkout, or from the wheel, in which this package holds the checkout's folders."""

import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent
# In a checkout this package lies in cli/entry.
PROJECT = HERE if (HERE / "cli").is_dir() else HERE.parents[2]


def main() -> None:
    """Run the command line with the modules of this version, also where another version of the agent is installed."""
    sys.path[:0] = [str(PROJECT), str(PROJECT / "lambdas")]
    from cli.main import app

    app()
