"""The CDK app: `python app.py` writes the cloud assembly to cdk.out, without credentials, Docker or the CDK CLI.

The folder may be chosen with CDK_OUTDIR. What an account may choose stands in cdk.json, see stacks/options.py."""

import sys

from stacks.assembly import write

if __name__ == "__main__":
    sys.exit(write())
