"""Where the adapters' tests take place: the region, the account and the table that the stack would make."""

from typing import Any

REGION = "eu-west-1"
ACCOUNT = "123456789012"
TABLE = "Rerail-Runs"


def make_table(dynamodb: Any) -> None:
    """Keys pk and sk, and the sparse index `open` that carries what a round reads."""
    dynamodb.create_table(
        TableName=TABLE,
        BillingMode="PAY_PER_REQUEST",
        AttributeDefinitions=[{"AttributeName": name, "AttributeType": "S"} for name in ("pk", "sk", "open")],
        KeySchema=[{"AttributeName": "pk", "KeyType": "HASH"}, {"AttributeName": "sk", "KeyType": "RANGE"}],
        GlobalSecondaryIndexes=[
            {
                "IndexName": "open",
                "KeySchema": [
                    {"AttributeName": "open", "KeyType": "HASH"},
                    {"AttributeName": "pk", "KeyType": "RANGE"},
                ],
                "Projection": {"ProjectionType": "INCLUDE", "NonKeyAttributes": ["doc", "version", "state"]},
            }
        ],
    )
