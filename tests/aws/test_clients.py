"""Clients: one a service, made at the first use, patient with throttling."""

import os

import pytest

from rerail.aws import clients
from rerail.aws.clients import client


@pytest.mark.parametrize(("default", "region"), [("", "eu-west-3"), ("us-east-2", "us-east-2")])
def test_the_region_may_stand_where_other_sdks_read_it(monkeypatch, default, region):
    """The deployment takes AWS_REGION, so the commands after it do; what boto3 reads itself comes first."""
    for name, value in {
        "AWS_DEFAULT_REGION": default,
        "AWS_REGION": "eu-west-3",
        "AWS_CONFIG_FILE": os.devnull,
    }.items():
        monkeypatch.setenv(name, value)
    monkeypatch.delenv("AWS_PROFILE", raising=False)
    assert clients._session.__wrapped__().region_name == region


def test_a_client_is_made_once():
    """Adapters share it, and with it its connections and its pace."""
    assert client("sqs") is client("sqs")
    assert client("sqs") is not client("sns")


def test_a_client_slows_down_instead_of_hammering():
    """The control plane throttles at one or two calls a second; a call that hangs must not outlive the function."""
    config = client("sagemaker").meta.config
    assert config.retries["mode"] == "adaptive"
    assert (config.connect_timeout, config.read_timeout) == (3, 20)
