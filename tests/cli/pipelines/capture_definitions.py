"""Writes definitions/*.json: what SageMaker's Python SDKs make of the pipelines in docs/pipelines.md.

    python -m venv v2 && v2/bin/pip install "sagemaker<3"      # or sagemaker-mlops for version 3
    AWS_DEFAULT_REGION=eu-west-1 v2/bin/python tests/cli/pipelines/capture_definitions.py

Nothing is sent anywhere: a definition is made without any call.
"""

import hashlib
import json
import re
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Any
from unittest.mock import MagicMock

HERE = Path(__file__).parent
PAGE = HERE.parents[2] / "docs" / "pipelines.md"
ARN = "arn:aws:lambda:eu-west-1:111122223333:function:start"
QUEUE = "https://sqs.eu-west-1.amazonaws.com/111122223333/Rerail-Callbacks"


def read_code(version: int) -> str:
    """Return the page's code for this version of the SDK."""
    (code,) = re.findall(rf"```python\n(# SageMaker SDK, version {version}\n.*?)```", PAGE.read_text(), re.DOTALL)
    return str(code)


def digest(code: str) -> str:
    return hashlib.sha256(code.encode()).hexdigest()


def main() -> None:
    import boto3

    version = 3 if find_spec("sagemaker.mlops") else 2
    code, boto = read_code(version), boto3.Session("x", "x", region_name="eu-west-1")
    session = MagicMock(boto_session=boto, boto_region_name="eu-west-1", default_bucket_prefix=None)
    session.sagemaker_config = {}
    names: dict[str, Any] = {"session": session, "start_function": ARN, "callback_queue": QUEUE}
    exec(code, names)
    definition = json.loads(names["pipeline"].definition())
    text = json.dumps({"code": digest(code), "definition": definition}, indent=2, sort_keys=True)
    (HERE / "definitions" / f"v{version}.json").write_text(text + "\n")
    print(f"version {version}: written", file=sys.stderr)


if __name__ == "__main__":
    main()
