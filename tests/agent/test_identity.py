"""What the agent reads from its environment, and what it does about nonsense."""

from datetime import timedelta

import pytest

from rerail.model.thresholds import Thresholds
from rerail_agent.identity import Identity
from rerail_agent.settings import AgentSettings

JOB = {
    "TRAINING_JOB_NAME": "night-a002",
    "TRAINING_JOB_ARN": "arn:aws:sagemaker:eu-west-1:123456789012:training-job/night-a002",
}


def identity(**variables: str) -> tuple[Identity, list[str]]:
    logged: list[str] = []
    return Identity.from_environment(variables, logged.append), logged


def test_a_successor_knows_its_run_its_attempt_and_its_mailbox():
    found, logged = identity(**JOB, RERAIL_RUN="night", RERAIL_ATTEMPT="2", RANK="3", WORLD_SIZE="8")
    assert (found.run, found.attempt, found.job, found.rank, found.size) == ("night", 2, "night-a002", 3, 8)
    assert (found.bucket, found.region) == ("sagemaker-rerail-123456789012-eu-west-1", "eu-west-1")
    assert logged == []


def test_the_first_job_of_a_run_gives_the_run_its_name():
    """A job that was not relaunched has no RERAIL_ variables."""
    found, _ = identity(**JOB)
    assert (found.run, found.attempt, found.rank, found.size) == ("night-a002", 1, None, 1)


@pytest.mark.parametrize(
    ("asked", "bucket", "words"),
    [
        ("s3://mine", "mine", ""),
        ("s3://mine/", "mine", ""),
        ("off", "", ""),
        ("https://mine", "", "must be s3://bucket or off"),
        ("s3://mine/with/a/folder", "", "must be s3://bucket or off"),
    ],
)
def test_the_mailbox_can_be_another_or_none(asked, bucket, words):
    """RERAIL_MAILBOX overrides; one that cannot be meant is said so, and there is none then."""
    found, logged = identity(**JOB, RERAIL_MAILBOX=asked)
    assert found.bucket == bucket
    assert words in "".join(logged)
    assert len(logged) == bool(words)


def test_outside_sagemaker_there_is_no_run_and_no_mailbox():
    found, logged = identity(RERAIL_RUN="night", RERAIL_MAILBOX="s3://mine", RANK="1")
    assert (found.run, found.bucket, logged) == ("", "", [])


def test_under_mpirun_the_rank_is_mpiruns():
    found, _ = identity(**JOB, OMPI_COMM_WORLD_RANK="5", OMPI_COMM_WORLD_SIZE="16")
    assert (found.rank, found.size) == (5, 16)


def test_an_invalid_number_is_reported_and_ignored():
    """A mistyped variable never stops a training script."""
    found, logged = identity(**JOB, RERAIL_ATTEMPT="two")
    assert found.attempt == 1
    assert logged == ["RERAIL_ATTEMPT='two': must be a whole number; going on as if it were not set"]


def settings(**variables: str) -> tuple[AgentSettings, list[str]]:
    logged: list[str] = []
    return AgentSettings.from_environment(variables, logged.append), logged


def test_settings_have_defaults_and_can_be_overridden():
    """Seconds are numbers, thresholds a JSON object; durations in it are seconds."""
    assert settings() == (AgentSettings(), [])
    found, logged = settings(
        RERAIL_POLL_SECONDS="0.5",
        RERAIL_HANG_SECONDS="30",
        RERAIL_SAVE_ON_WARNING="off",
        RERAIL_DETECTION='{"patience_rows": 8, "spike_sure": 0.5, "startup_limit": 60, "plateau": true}',
    )
    assert (found.poll_s, found.hang_s, found.save_on_warning, logged) == (0.5, 30, False, [])
    assert (found.detection.patience_rows, found.detection.spike_sure) == (8, 0.5)
    assert (found.detection.startup_limit, found.detection.plateau) == (timedelta(minutes=1), True)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("{", "Expecting"),
        ("[1]", "must be a JSON object"),
        ('{"patience": "long"}', "field 'patience'"),
        ('{"patience_row": 8}', "no field 'patience_row'"),
        ('{"patience_rows": 8.5}', "field 'patience_rows'"),
        ('{"patience_rows": -1}', "field 'patience_rows'"),
        ('{"patience_rows": true}', "field 'patience_rows'"),
        ('{"spike_sure": NaN}', "field 'spike_sure'"),
        ('{"planned": [20000]}', "field 'planned'"),
        ('{"startup_limit": 1e300}', "too large to convert"),
        ('{"startup_limit": 0}', "field 'startup_limit' is 0; it must be above 0"),
        (f'{{"spike_sure": 1{"0" * 400}}}', "too large to convert"),
    ],
)
def test_a_bad_threshold_is_one_line_and_the_defaults(text, words):
    """None of the object counts then: half of the settings would be wrong."""
    found, logged = settings(RERAIL_DETECTION=text)
    assert found.detection == Thresholds()
    assert len(logged) == 1
    assert words in logged[0]


def test_a_bad_interval_is_one_line_and_the_default():
    for text in ("soon", "0", "-1", "nan", "inf"):
        found, logged = settings(RERAIL_POLL_SECONDS=text)
        assert found.poll_s == 5
        assert len(logged) == 1
