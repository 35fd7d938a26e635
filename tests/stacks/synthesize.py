"""Synthesizes variants of the app in one process: starting Node with the CDK takes as long as a synthesis.

`local.deploy` calls it in place of app.py, with the contexts as the context's value `variants`. Each variant gets a
folder with its assembly in `cdk.out` and what was said about it in `said.txt`.
"""

import json
import os
import sys
from contextlib import redirect_stderr
from pathlib import Path


def main() -> None:
    # Before Node starts, which would read both once for all.
    defaults, out = json.loads(os.environ.pop("CDK_CONTEXT_JSON")), Path(os.environ.pop("CDK_OUTDIR"))
    sys.path[0] = os.getcwd()
    from stacks import assembly

    for name, context in defaults.pop("variants").items():
        assembly.ROOT = out / name
        assembly.ROOT.mkdir(parents=True)
        (assembly.ROOT / "cdk.json").write_text(json.dumps({"context": defaults | context}))
        os.environ["CDK_OUTDIR"] = str(assembly.ROOT / "cdk.out")
        with (assembly.ROOT / "said.txt").open("w") as said, redirect_stderr(said):
            if error := assembly.write():
                sys.exit(error)
    (out / "manifest.json").write_text("{}")


if __name__ == "__main__":
    main()
