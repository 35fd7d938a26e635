"""What is kept is encrypted, and outlives the stack."""

import pytest

from rerail.aws import dynamodb
from rerail.model import mailbox
from tests.stacks.template import many, target, text


@pytest.fixture(scope="module")
def key(template):
    """Logical id of the one key."""
    (id,) = template.of("KMS::Key")
    return id


def test_everything_at_rest_is_under_our_key(template, key):
    """Table, queues and topics."""
    keys = [queue["KmsMasterKeyId"] for queue in template.of("SQS::Queue").values()]
    keys += [topic["KmsMasterKeyId"] for topic in template.of("SNS::Topic").values()]
    keys += [table["SSESpecification"]["KMSMasterKeyId"] for table in template.of("DynamoDB::Table").values()]
    assert len(keys) == len(template.of("SQS::Queue")) + 3
    assert {target(one) for one in keys} == {key}


@pytest.mark.threat("T9")
@pytest.mark.parametrize(
    ("kind", "field"), [("SQS::Queue", "Queues"), ("SNS::Topic", "Topics"), ("S3::Bucket", "Bucket")]
)
def test_everything_in_transit_is_under_tls(template, kind, field):
    """Every queue, every topic and the bucket refuse whoever comes without."""
    refusing = {
        target(one)
        for policy in template.of(f"{kind}Policy").values()
        for statement in policy["PolicyDocument"]["Statement"]
        if statement["Effect"] == "Deny" and statement.get("Condition") == {"Bool": {"aws:SecureTransport": "false"}}
        for one in many(policy[field])
    }
    assert refusing == set(template.of(kind))


def test_the_mailbox_is_where_the_agent_looks_for_it(template):
    """The agent derives the bucket's name from the ARN of its job: it is the one that the code says."""
    bucket = template.of("S3::Bucket")[output(template, "MailboxBucket")]
    assert text(bucket["BucketName"]) == mailbox.make_bucket_name("<AWS::AccountId>", "<AWS::Region>")


def output(template, name):
    """The logical id of what an output names."""
    return target(template.body["Outputs"][name]["Value"])


def test_the_table_is_the_one_that_the_adapter_knows(template):
    """Keys, index, projection and expiry as rerail/aws/dynamodb.py writes and reads them."""
    (table,) = template.of("DynamoDB::Table").values()
    assert names(table["KeySchema"]) == ["pk", "sk"]
    (index,) = table["GlobalSecondaryIndexes"]
    assert index["IndexName"] == dynamodb.INDEX
    assert names(index["KeySchema"]) == ["open", "pk"]
    assert index["Projection"]["ProjectionType"] == "INCLUDE"
    assert set(index["Projection"]["NonKeyAttributes"]) == {"doc", "version", "state"}
    assert table["TimeToLiveSpecification"] == {"AttributeName": "expires", "Enabled": True}
    assert table["BillingMode"] == "PAY_PER_REQUEST"


def names(schema):
    """Attribute names of a key, partition key first."""
    assert [part["KeyType"] for part in schema] == ["HASH", "RANGE"]
    return [part["AttributeName"] for part in schema]


def test_data_outlives_the_stack(template, key):
    """The table with its key, the logs and the dead letters stay when the stack is deleted or a resource replaced."""
    letters = {id for id, queue in template.of("SQS::Queue").items() if "RedrivePolicy" not in queue}
    # A first deployment that fails removes what is empty. The table is protected, and needs its key.
    empty = dict.fromkeys((*template.of("Logs::LogGroup"), *letters), "RetainExceptOnCreate")
    for id, policy in {**dict.fromkeys((key, *template.of("DynamoDB::Table")), "Retain"), **empty}.items():
        assert template.resources[id]["DeletionPolicy"] == policy
        assert template.resources[id]["UpdateReplacePolicy"] == "Retain"


def test_letters_stay_longer_than_signals(template):
    """A dead letter keeps its age: its queue must keep it beyond the life that it had before."""
    signals = template.of("SQS::Queue")[target(template.body["Outputs"]["SignalsQueueUrl"]["Value"])]
    letters = [q for q in template.of("SQS::Queue").values() if "RedrivePolicy" not in q]
    assert {q["MessageRetentionPeriod"] for q in letters} == {14 * 86400}
    assert signals["MessageRetentionPeriod"] < 14 * 86400
