"""AWS's training images for PyTorch and TensorFlow: their address by version, machine and region.

Versions, Pythons and accounts are those of SageMaker's SDK 2.257."""

import difflib

from cli.submit.problem import Problem

PYTORCH, TENSORFLOW = "pytorch", "tensorflow"
# The newest of each framework.
NEWEST = "2.8.0"
DEFAULTS = {PYTORCH: NEWEST, TENSORFLOW: "2.19.0"}
# Full version and Python of each, by framework.
VERSIONS = {
    PYTORCH: {
        "2.0": ("2.0.1", "py310"),
        "2.1": ("2.1.0", "py310"),
        "2.2": ("2.2.0", "py310"),
        "2.3": ("2.3.0", "py311"),
        "2.4": ("2.4.0", "py311"),
        "2.5": ("2.5.1", "py311"),
        "2.6": ("2.6.0", "py312"),
        "2.7": ("2.7.1", "py312"),
        "2.8": ("2.8.0", "py312"),
    },
    TENSORFLOW: {
        "2.11": ("2.11.0", "py39"),
        "2.12": ("2.12.0", "py310"),
        "2.13": ("2.13.0", "py310"),
        "2.14": ("2.14.1", "py310"),
        "2.16": ("2.16.2", "py310"),
        "2.18": ("2.18.0", "py310"),
        "2.19": ("2.19.0", "py312"),
    },
}
NAMES = {PYTORCH: "PyTorch", TENSORFLOW: "TensorFlow"}
ACCOUNT = "763104351884"
ELSEWHERE = {
    "af-south-1": "626614931356",
    "ap-east-1": "871362719292",
    "ap-east-2": "975050140332",
    "ap-northeast-3": "364406365360",
    "ap-south-2": "772153158452",
    "ap-southeast-3": "907027046896",
    "ap-southeast-4": "457447274322",
    "ap-southeast-5": "550225433462",
    "ap-southeast-6": "633930458069",
    "ap-southeast-7": "590183813437",
    "ca-west-1": "204538143572",
    "cn-north-1": "727897471807",
    "cn-northwest-1": "727897471807",
    "eu-central-2": "380420809688",
    "eu-south-1": "692866216735",
    "eu-south-2": "503227376785",
    "il-central-1": "780543022126",
    "me-central-1": "914824155844",
    "me-south-1": "217643126080",
    "mx-central-1": "637423239942",
    "us-gov-east-1": "446045086412",
    "us-gov-west-1": "442386744353",
}
GPU_FAMILIES = ("p", "g")
OTHER_CHIPS = ("trn", "inf")


def find_aws_image(framework: str, version: str, instance_type: str, region: str) -> str:
    """Return AWS's image for this kind of machine; raise Problem if there is none for the version or machine.

    `version` is "" for the newest."""
    if framework not in VERSIONS:
        raise Problem(
            f"framework {framework}: AWS's images are known here for {' and '.join(VERSIONS)}",
            "take one of them, or name an image with --image",
        )
    versions, version = VERSIONS[framework], version or DEFAULTS[framework]
    short = ".".join(version.split(".")[:2])
    if short not in versions or version not in (short, versions[short][0]):
        near = difflib.get_close_matches(version, [full for full, _ in versions.values()], n=1)
        known = f"did you mean {near[0]}? " if near else ""
        raise Problem(
            f"framework_version {version}: no {NAMES[framework]} image of that version is known here",
            f"{known}known are {', '.join(versions)}; or name an image with --image",
        )
    family = instance_type.split(".")[1]
    if family.startswith(OTHER_CHIPS):
        raise Problem(
            f"--instance-type {instance_type}: {NAMES[framework]}'s own image does not run there",
            "name one with --image",
        )
    full, python = versions[short]
    device = "gpu" if family.startswith(GPU_FAMILIES) else "cpu"
    account = ELSEWHERE.get(region, ACCOUNT)
    return f"{make_registry(account, region)}/{framework}-training:{full}-{device}-{python}"


def make_registry(account: str, region: str) -> str:
    """Return the address of an account's ECR registry."""
    domain = "amazonaws.com.cn" if region.startswith("cn-") else "amazonaws.com"
    return f"{account}.dkr.ecr.{region}.{domain}"
