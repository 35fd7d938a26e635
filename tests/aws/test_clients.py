"""Clients: one a service, made at the first use, patient with throttling."""

from rerail.aws.clients import client


def test_a_client_is_made_once():
    """Adapters share it, and with it its connections and its pace."""
    assert client("sqs") is client("sqs")
    assert client("sqs") is not client("sns")


def test_a_client_slows_down_instead_of_hammering():
    """The control plane throttles at one or two calls a second; a call that hangs must not outlive the function."""
    config = client("sagemaker").meta.config
    assert config.retries["mode"] == "adaptive"
    assert (config.connect_timeout, config.read_timeout) == (3, 20)
