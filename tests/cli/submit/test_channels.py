"""Where a job's data comes from: shared out among machines, mounted from file systems, or another run's checkpoint."""

import pytest

from cli.submit.request import make_training_request
from cli.submit.settings import read_defaults, read_protection
from tests.cli.submit.test_request import JOB, change, refused

NETWORK = {"subnets": ["subnet-0123456789abcdef0"], "security_groups": ["sg-0123456789abcdef0"]}
LUSTRE = "fs-0123456789abcdef0/mount/set"


def test_each_machine_gets_its_share_of_a_sharded_channel_and_all_of_the_others():
    request = make_training_request(change(inputs={"a": "s3://b/a/", "b": "s3://b/b/"}, shard=["b"]))
    shares = [channel["DataSource"]["S3DataSource"]["S3DataDistributionType"] for channel in request["InputDataConfig"]]
    assert shares == ["FullyReplicated", "ShardedByS3Key"]


def test_a_folder_of_a_file_system_is_mounted_in_its_vpc():
    folders = {"fsx": {"train": LUSTRE}, "efs": {"out": "fs-01234567/results:rw"}}
    request = make_training_request(change(**folders, **NETWORK))
    sources = [channel["DataSource"]["FileSystemDataSource"] for channel in request["InputDataConfig"]]
    assert [list(source.values()) for source in sources] == [
        ["fs-0123456789abcdef0", "FSxLustre", "/mount/set", "ro"],
        ["fs-01234567", "EFS", "/results", "rw"],
    ]
    assert request["VpcConfig"] == {"Subnets": NETWORK["subnets"], "SecurityGroupIds": NETWORK["security_groups"]}


def test_keys_and_encrypted_traffic_come_from_the_defaults(tmp_path):
    """For every command that starts jobs, by `read_protection`."""
    key = f"arn:aws:kms:eu-west-1:{JOB.role.split(':')[4]}:key/1"
    lines = (f'volume_key = "{key}"', 'output_key = "alias/models"', "encrypt_traffic = true")
    (tmp_path / "rerail.toml").write_text("\n".join(("[submit]", *lines)))
    protection = read_protection(read_defaults(tmp_path, tmp_path))
    request = make_training_request(change(**protection))
    assert request["ResourceConfig"]["VolumeKmsKeyId"] == key
    assert request["OutputDataConfig"]["KmsKeyId"] == "alias/models"
    assert request["EnableInterContainerTrafficEncryption"] is True


def test_sagemakers_own_retries_are_asked_for_only_if_given():
    assert make_training_request(change(retries=10))["RetryStrategy"] == {"MaximumRetryAttempts": 10}
    assert "RetryStrategy" not in make_training_request(JOB)


@pytest.mark.parametrize(
    ("changes", "words", "remedy"),
    [
        ({"shard": ["x"], "inputs": {"a": "s3://b/a/"}}, "shard x", "name one"),
        ({"fsx": {"a": LUSTRE}}, "channel a: a file system", "subnets = ["),
        ({"fsx": {"a": LUSTRE}, "inputs": {"a": "s3://b/a/"}, **NETWORK}, "--input a: a file system", "its own name"),
        ({"subnets": NETWORK["subnets"]}, "one without the other", "give both"),
        ({"retries": 31}, "retries 31", "leave it out"),
        ({"output_key": "arn:aws:kms:eu-west-1:999999999999:key/1"}, "output_key = ", "a key of that account"),
        ({"volume_key": "arn:aws:kms:eu-west-1:999999999999:alias/x"}, "volume_key = ", "a key of that account"),
    ],
)
def test_a_mistake_about_data_is_named_with_its_remedy(changes, words, remedy):
    problem = refused(**changes)
    assert words in problem.what and remedy in problem.remedy


@pytest.mark.parametrize("text", ["fs-01234567", "/mount/set", "fs-xyz/mount", "fs-01234567/a:rx"])
def test_what_is_no_folder_of_a_file_system_is_refused(text):
    problem = refused(fsx={"train": text}, **NETWORK)
    assert "not a folder of a file system" in problem.what and 'train = "fs-' in problem.remedy
