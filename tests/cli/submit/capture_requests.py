"""Writes requests/*.json: what SageMaker's Python SDKs send to CreateTrainingJob for jobs that `supervised` was given.

    python -m venv v2 && v2/bin/pip install "sagemaker<3"      # or sagemaker>=3 for version 3
    PYTHONPATH=lambdas v2/bin/python tests/cli/submit/capture_requests.py

Nothing is sent anywhere: every call is answered here, and the SDK's own telemetry is off.
"""

import json
import logging
import os
import tempfile
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import boto3
from botocore.awsrequest import AWSResponse

from rerail.requests.supervised import supervised

REQUESTS = Path(__file__).parent / "requests"
ACCOUNT, REGION, POLICY = "111122223333", "eu-west-1", "careful"
ROLE = f"arn:aws:iam::{ACCOUNT}:role/Training"
IMAGE = f"763104351884.dkr.ecr.{REGION}.amazonaws.com/pytorch-training:2.5.1-cpu-py311"
TRUST = {"Effect": "Allow", "Principal": {"Service": "sagemaker.amazonaws.com"}, "Action": "sts:AssumeRole"}
SCRIPT = "import argparse\n"
SILENT = "SchemaVersion: '1.0'\nSageMaker: {PythonSDK: {Modules: {TelemetryOptOut: true}}}\n"


class Caught(Exception):
    """The request is known: no more is needed of the SDK."""


class Recorder:
    """A boto3 session that talks to nobody; `request` is what was asked of CreateTrainingJob."""

    def __init__(self) -> None:
        self.request: dict[str, Any] = {}
        self.session = boto3.Session(aws_access_key_id="x", aws_secret_access_key="x", region_name=REGION)
        self.session.events.register_last("provide-client-params.sagemaker.CreateTrainingJob", self._catch)
        self.session.events.register("before-call", self._answer)

    def _catch(self, params: dict[str, Any], **_: Any) -> None:
        self.request.update(params)

    def _answer(self, model: Any, **_: Any) -> tuple[AWSResponse, dict[str, Any]]:
        if model.name == "CreateTrainingJob":
            raise Caught
        answers = {
            "GetCallerIdentity": {"Account": ACCOUNT, "Arn": f"arn:aws:iam::{ACCOUNT}:user/me", "UserId": "me"},
            "GetRole": {"Role": {"Arn": ROLE, "AssumeRolePolicyDocument": json.dumps({"Statement": [TRUST]})}},
            "SimulatePrincipalPolicy": {"EvaluationResults": []},
            "ListBuckets": {"Buckets": [{"Name": "bucket", "CreationDate": datetime(2026, 1, 1, tzinfo=UTC)}]},
        }
        return AWSResponse("", 200, {}, None), answers.get(model.name, {})


def version_2(code: Path) -> None:
    """`PyTorch` estimators: supervised by their arguments, as objects, and by their session."""
    import sagemaker
    from sagemaker.pytorch import PyTorch

    arguments = {
        "entry_point": "train.py",
        "source_dir": str(code),
        "role": ROLE,
        "image_uri": IMAGE,
        "instance_type": "ml.g5.xlarge",
        "instance_count": 2,
        "base_job_name": "mnist",
        "hyperparameters": {"epochs": 3, "optimizer": "adam"},
        "environment": {"NCCL_DEBUG": "WARN"},
        "tags": [{"Key": "team", "Value": "vision"}],
        "metric_definitions": [{"Name": "accuracy", "Regex": "Accuracy: ([0-9.]+)"}],
    }
    place = "s3://bucket/runs/mnist-1"

    def fit(name: str, recorder: Recorder, *, given: dict[str, Any], as_object: bool = False) -> None:
        session = sagemaker.Session(boto_session=recorder.session, default_bucket="bucket")
        estimator = PyTorch(**given, sagemaker_session=session)
        estimator = supervised(estimator, POLICY, checkpoints=place) if as_object else estimator
        send(lambda: estimator.fit({"training": "s3://bucket/digits/"}, wait=False), recorder, name)

    fit("v2_arguments", Recorder(), given=supervised(arguments, POLICY, checkpoints=place))
    fit("v2_estimator", Recorder(), given=arguments, as_object=True)
    recorder = Recorder()
    supervised(recorder.session, POLICY)
    fit("v2_session", recorder, given=arguments)


def version_3(code: Path) -> None:
    """A `ModelTrainer`: supervised as an object, and by its session."""
    from sagemaker.core.helper.session_helper import Session
    from sagemaker.train import ModelTrainer
    from sagemaker.train.configs import Compute, InputData, MetricDefinition, SourceCode, Tag

    def trainer(recorder: Recorder) -> Any:
        return ModelTrainer(
            training_image=IMAGE,
            role=ROLE,
            base_job_name="mnist",
            source_code=SourceCode(source_dir=str(code), entry_script="train.py"),
            compute=Compute(instance_type="ml.g5.xlarge", instance_count=2),
            hyperparameters={"epochs": 3, "optimizer": "adam"},
            environment={"NCCL_DEBUG": "WARN"},
            tags=[Tag(key="team", value="vision")],
            sagemaker_session=Session(boto_session=recorder.session, default_bucket="bucket"),
        ).with_metric_definitions([MetricDefinition(name="accuracy", regex="Accuracy: ([0-9.]+)")])

    digits = [InputData(channel_name="training", data_source="s3://bucket/digits/")]
    recorder = Recorder()
    mine = supervised(trainer(recorder), POLICY)
    send(lambda: mine.train(input_data_config=digits, wait=False, logs=False), recorder, "v3_trainer")
    recorder = Recorder()
    supervised(recorder.session, POLICY)
    plain = trainer(recorder)
    send(lambda: plain.train(input_data_config=digits, wait=False, logs=False), recorder, "v3_session")


def send(launch: Any, recorder: Recorder, name: str) -> None:
    """Launch, and write down what was asked for."""
    try:
        launch()
    except Caught:
        REQUESTS.mkdir(exist_ok=True)
        (REQUESTS / f"{name}.json").write_text(json.dumps(recorder.request, indent=2, sort_keys=True) + "\n")
        print(name)
        return
    raise AssertionError(f"{name}: CreateTrainingJob was not called")


if __name__ == "__main__":
    logging.disable(logging.WARNING)
    os.environ["SAGEMAKER_SUPPRESS_V2_WARNING"] = "1"
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "train.py").write_text(SCRIPT)
        settings = Path(folder) / "config.yaml"
        settings.write_text(SILENT)
        os.environ |= {f"SAGEMAKER_{whose}_CONFIG_OVERRIDE": str(settings) for whose in ("ADMIN", "USER")}
        import sagemaker

        (version_2 if hasattr(sagemaker, "Session") else version_3)(Path(folder))
