"""Make a template that CloudFormation deploys without the CDK: what an account chooses becomes parameters.

The synthesized template has those choices written into it, and expects its files in the CDK's bucket. Here it is
synthesized with placeholders, which are replaced by references to parameters wherever they occur.
"""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from local import deploy

STACK = "Rerail"
ROLE = "arn:aws:iam::*:role/RerailPlaceholder"
BUCKET = "rerail-placeholder-bucket"
ADDRESS = "placeholder@rerail.example"
PLACEHOLDERS = {"trainingRoleArns": [ROLE], "checkpointBuckets": [BUCKET], "pageEmail": ADDRESS}
PARAMETERS: dict[str, dict[str, str]] = {
    "TrainingRoleArns": {
        "Type": "CommaDelimitedList",
        "Description": "ARNs of the roles that Rerail may pass to training jobs, separated by commas.",
    },
    "CheckpointBucket": {
        "Type": "String",
        "AllowedPattern": "[a-z0-9.*-]{3,63}",
        "Description": "Name of the bucket in which Rerail may read checkpoints; * stands for any characters.",
    },
    "PageEmail": {
        "Type": "String",
        "AllowedPattern": "[^@\\s,;]+@[^@\\s,;]+\\.[^@\\s,;]+",
        "Description": "E-mail address of the person on call. AWS sends a message that has to be confirmed.",
    },
    "AssetBucket": {"Type": "String", "Description": "Bucket of this region that holds the folder assets/."},
    "AssetPrefix": {
        "Type": "String",
        "Default": "rerail/",
        "AllowedPattern": "([^/]+/)*",
        "Description": "Where in that bucket the folder assets/ is: empty, or a path that ends with a slash.",
    },
}


def write(root: Path, cache: Path, folder: Path) -> Path:
    """Write `Rerail.template.json` and `assets/*.zip` into the folder; return the template's path."""
    assembly = deploy.synthesize(root, cache, context=PLACEHOLDERS)
    template = json.loads((assembly / f"{STACK}.template.json").read_text())
    files = json.loads((assembly / f"{STACK}.assets.json").read_text())["files"]
    (folder / "assets").mkdir(parents=True)
    keys: dict[str, str] = {}
    for asset in files.values():
        source = assembly / asset["source"]["path"]
        if asset["source"].get("packaging") != "zip":
            continue  # the template itself
        (key,) = {destination["objectKey"] for destination in asset["destinations"].values()}
        (folder / "assets" / key).write_bytes(deploy.zipped(source))
        keys[key] = f"assets/{key}"
    made = replace(template, lambda value: refer(value, keys))
    made["Parameters"] = {**PARAMETERS, **template.get("Parameters", {})}
    text = json.dumps(made, indent=1)
    left = [name for name in (ROLE, BUCKET, ADDRESS, "hnb659fds") if name in text]
    if left:
        raise ValueError(f"the template still has {', '.join(left)}: add a replacement to tools/standalone_template.py")
    (folder / f"{STACK}.template.json").write_text(text)
    return folder / f"{STACK}.template.json"


def refer(value: Any, keys: dict[str, str]) -> Any:
    """Return a reference to a parameter in place of a placeholder or of an asset; None for any other value."""
    if isinstance(value, dict) and value.get("S3Key") in keys:
        return {
            **value,
            "S3Bucket": {"Ref": "AssetBucket"},
            "S3Key": {"Fn::Sub": f"${{AssetPrefix}}{keys[value['S3Key']]}"},
        }
    if not isinstance(value, str):
        return None
    if value in (ROLE, ADDRESS):
        return {"Ref": "TrainingRoleArns" if value == ROLE else "PageEmail"}
    if BUCKET in value:
        return {"Fn::Sub": value.replace("${", "${!").replace(BUCKET, "${CheckpointBucket}")}
    return None


def replace(value: Any, change: Callable[[Any], Any]) -> Any:
    """Return the JSON value with each part for which `change` has a replacement replaced by it."""
    changed = change(value)
    if changed is not None:
        return changed
    if isinstance(value, dict):
        return {name: replace(part, change) for name, part in value.items()}
    if isinstance(value, list):
        return [replace(part, change) for part in value]
    return value
