"""Adds Rerail's pure core, which lies in another folder of the repository, to the agent's wheel."""

import tempfile

from setuptools import find_packages, setup

# In a folder of its own, a build leaves nothing behind that the next one would pack again.
with tempfile.TemporaryDirectory() as build:
    setup(
        packages=[
            *find_packages(include=["rerail_agent", "rerail_agent.*"]),
            "rerail",
            "rerail.model",
            "rerail.detection",
        ],
        package_dir={"rerail": "../lambdas/rerail"},  # as in a checkout, and in the clone that pip makes of one
        options={"build": {"build_base": build}},
    )
