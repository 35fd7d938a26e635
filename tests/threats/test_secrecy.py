"""What SageMaker quotes of a job's request is told without its secrets, and links are made of nothing but names."""

from dataclasses import replace

import pytest
from botocore.exceptions import ClientError

from rerail.aws import sagemaker
from rerail.aws.sagemaker import SageMakerJobs, read_job
from rerail.model.errors import RequestRefused
from rerail.model.redaction import redact_values
from rerail.notices.notifiers.links import NoticeOrigin, make_links
from tests.fakes import MIDNIGHT
from tests.hostile import HOSTILE
from tests.notices.nights import NIGHTS

TOKEN, PASSWORD = "hf-0123456789abcdef", "correct-horse"
REQUEST = {
    "TrainingJobName": "gpt",
    "HyperParameters": {"api_token": f'"{TOKEN}"', "epochs": "3", "max_tokens": "2048000", "model": "gpt2-large"},
    "Environment": {"DB": f"postgres://me:{PASSWORD}@db/x", "STEPS": "100", "KEYBOARD": "qwerty-layout"},
}
FAILED = (
    f'AlgorithmError: ExecuteUserScriptError:\nExitCode 1\nCommand "python train.py --api_token {TOKEN} --epochs 3"'
)


@pytest.mark.threat("T17")
def test_what_sagemaker_quotes_is_published_without_secrets(monkeypatch):
    """The failed script's command line, and a refused request's fields with their values."""
    description = {
        **REQUEST,
        "TrainingJobArn": "arn:aws:sagemaker:eu-west-1:111122223333:training-job/gpt",
        "TrainingJobStatus": "Failed",
        "CreationTime": MIDNIGHT,
        "FailureReason": FAILED,
    }
    assert read_job(description).failure_reason == FAILED.replace(TOKEN, "[hidden]")

    class Refusing:
        def create_training_job(self, **request):
            message = f"Value '{request['Environment']}' at 'environment' failed to satisfy constraint"
            raise ClientError({"Error": {"Code": "ValidationException", "Message": message}}, "CreateTrainingJob")

    monkeypatch.setattr(sagemaker, "client", lambda service: Refusing())
    with pytest.raises(RequestRefused) as refused:
        SageMakerJobs().create(REQUEST)
    assert PASSWORD not in str(refused.value)
    assert "'STEPS': '100'" in str(refused.value)


@pytest.mark.threat("T17")
@pytest.mark.parametrize(
    "text", ["3 epochs of gpt2-large", "2048000 tokens", "qwerty-layout", "exit code: 100", "", "[hidden]"]
)
def test_what_is_no_secret_stays_as_it_is(text):
    """Numbers, and values whose names say nothing: a failure must be told apart from another."""
    assert redact_values(text, REQUEST) == text
    assert redact_values(text, {}) == text


@pytest.mark.threat("T12")
@pytest.mark.parametrize("text", HOSTILE.values(), ids=list(HOSTILE))
def test_a_link_is_made_of_names(text):
    """A notice on the bus may be anybody's: what is no name of a run or a job leads nowhere, and is typed nowhere."""
    notice = replace(next(iter(NIGHTS.values()))(), run=text, job=text)
    found = make_links(notice, NoticeOrigin("111122223333", "eu-west-1", "https://docs.example.com"))
    assert (found.show, found.console, found.job_arn) == ("rerail status", "", "")
    assert found.runbook.startswith("https://docs.example.com/runbooks/")
