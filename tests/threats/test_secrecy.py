"""What SageMaker quotes of a job's request is told without its secrets, and links are made of nothing but names."""

import base64
import html
import json
import re
import shlex
from dataclasses import replace
from urllib.parse import quote, quote_plus

import pytest
from botocore.exceptions import ClientError
from hypothesis import assume, given
from hypothesis import strategies as st

from rerail.aws import sagemaker
from rerail.aws.sagemaker import SageMakerJobs, read_job
from rerail.model.causes import Cause
from rerail.model.errors import RequestRefused
from rerail.model.redaction import HIDDEN, find_secrets, is_secret_name, redact_values
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
FAILED = f'AlgorithmError: ExecuteUserScriptError:\nExitCode 1\nCommand "python train.py --api_token {TOKEN} --lr 3"'


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


SPELLINGS = {
    "plain": str,
    "json": json.dumps,
    "json in json": lambda value: json.dumps(json.dumps(value)),
    "repr": repr,
    "bytes": lambda value: repr(value.encode()),
    "shell": shlex.quote,
    "url": lambda value: quote(value, safe=""),
    "form": quote_plus,
    "lower-case url": lambda value: re.sub("%..", lambda match: match[0].lower(), quote(value, safe="")),
    "html": html.escape,
    "base64": lambda value: base64.b64encode(value.encode()).decode(),
}
SECRETS = ["hunter22xyz", "correct horse battery", "p\"a\\ss'word1", "a/b+c=d&e f%g<h>", "pässwört-ñ"]


@pytest.mark.threat("T17")
@pytest.mark.parametrize("spelling", SPELLINGS)
@pytest.mark.parametrize("value", SECRETS)
def test_a_secret_is_hidden_in_every_spelling(value: str, spelling: str) -> None:
    text = f"Command: train.py --password {SPELLINGS[spelling](value)} --epochs 3"
    assert redact_values(text, {"Environment": {"DB_PASS": value}}).count(HIDDEN) == 1
    as_script_mode = {"HyperParameters": {"password": json.dumps(value)}}
    assert redact_values(text, as_script_mode).count(HIDDEN) == 1


@pytest.mark.threat("T17")
@given(
    value=st.text(st.characters(categories=("L", "N", "P", "S")), min_size=6, max_size=40),
    spelling=st.sampled_from(sorted(SPELLINGS)),
)
def test_no_value_is_printed(value: str, spelling: str) -> None:
    """Whatever a password consists of, its spellings are hidden; numbers are not secrets."""
    assume(value.strip("-+.,0123456789eE"))
    assert HIDDEN in redact_values(f"x {SPELLINGS[spelling](value)} y", {"Environment": {"PASSWORD": value}})


@pytest.mark.threat("T17")
@pytest.mark.parametrize(
    ("name", "value", "part"),
    [
        ("TOKEN_LIST", "tok_aaaaaaa,tok_bbbbbbb", "tok_bbbbbbb"),
        ("CREDS", "user:pw123456", "pw123456"),
        ("SECRETS", '{"db": {"password": "nested-pw-1"}}', "nested-pw-1"),
        ("SENTRY", "https://abcdef0123456789@o1.ingest.sentry.io/1", "abcdef0123456789"),
        ("SAS_URL", "https://x.blob.core.windows.net/c?sv=2020&sig=abcdefghijk%3D", "abcdefghijk%3D"),
        ("SLACK_URL", "https://hooks.slack.com/services/T0/B0/abcdefgh", "hooks.slack.com/services/T0/B0/abcdefgh"),
        ("PRIVATE_KEY", "-----BEGIN RSA PRIVATE KEY-----\nMIIEpAIBAAKCAQEA\n-----END", "MIIEpAIBAAKCAQEA"),
        ("DATABASE_URL", "postgres://me:p@ss-word@db/x", "p@ss-word"),
    ],
)
def test_a_part_of_a_secret_is_hidden(name: str, value: str, part: str) -> None:
    """An item of a list, the password of a pair, a value in JSON, a line of a key, the credentials in a URL."""
    assert part not in redact_values(f"failed with {part} at step 3", {"Environment": {name: value}})
    assert part not in redact_values(f"failed with {value} at step 3", {"Environment": {name: value}})


@pytest.mark.threat("T17")
def test_a_secret_that_is_cut_off_is_hidden() -> None:
    """SageMaker cuts a failure reason at 1,024 characters."""
    request = {"Environment": {"LOGIN_PASSWORD": "correct-horse"}}
    assert redact_values("Command: train.py --login correct-ho", request) == f"Command: train.py --login {HIDDEN}"


NAMES = (
    "DB_PASS SSH_PASSPHRASE GH_PAT githubPAT JWT CREDS dbPassword PGPASSWORD HF_TOKEN TOKEN_2 wandbApiKey OPENAI_KEY"
)
OTHERS = "tokenizer_name max_tokens pad_token label_key auth_mode secret_arn token_file KEYBOARD author compass"


@pytest.mark.parametrize("name", NAMES.split())
def test_a_name_tells_of_a_secret(name: str) -> None:
    assert is_secret_name(name)


@pytest.mark.parametrize("name", OTHERS.split())
def test_a_name_with_a_similar_word_does_not(name: str) -> None:
    assert not is_secret_name(name)


@pytest.mark.threat("T17")
@pytest.mark.parametrize("value", ["memory", "tokenizer", "gpt2-large"])
def test_an_error_is_diagnosed_before_secrets_are_removed(value: str) -> None:
    """A password that equals a word of the error does not hide the word; one that equals the error is hidden."""
    description = {
        "TrainingJobName": "gpt",
        "TrainingJobArn": "arn:aws:sagemaker:eu-west-1:111122223333:training-job/gpt",
        "TrainingJobStatus": "Failed",
        "CreationTime": MIDNIGHT,
        "FailureReason": "AlgorithmError: torch.OutOfMemoryError: CUDA out of memory. gpt2-large, exit code: 1",
        "Environment": {"PASSWORD": value},
    }
    assert "CUDA out of memory" in read_job(description).failure_reason
    job = read_job({**description, "Environment": {"PASSWORD": "CUDA out of memory"}})
    assert job.diagnosis and job.diagnosis.cause is Cause.OOM
    assert "CUDA out of memory" not in job.failure_reason and "CUDA out of memory" not in job.diagnosis.evidence


@pytest.mark.threat("T17")
def test_a_job_of_many_secrets_takes_limited_time() -> None:
    """SageMaker takes 200 values; without a limit their parts have 280,000 spellings, each looked for in each text."""

    def make_job(count: int) -> dict[str, dict[str, str]]:
        items = [f"<first&{part}>|<other&{part}>" for part in range(50)]
        lists = {f"a{number}_token": json.dumps([f"{number}{item}" for item in items]) for number in range(count)}
        return {"HyperParameters": {**lists, "last_password": json.dumps("hunter2-hunter2")}}

    assert len(find_secrets(make_job(99))) < 2 * len(find_secrets(make_job(20)))
    assert redact_values("by hunter2-hunter2", make_job(99)) == f"by {HIDDEN}"
