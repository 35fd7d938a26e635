"""The context is checked before anything is built from it."""

import pytest

from stacks.options import BadOption, Options

GOOD = {
    "trainingRoleArns": ["arn:${AWS::Partition}:iam::${AWS::AccountId}:role/train"],
    "checkpointBuckets": ["weights"],
    "checkpointKeyArns": [],
    "logRetentionDays": 90,
    "pageEmail": "",
    "informEmail": "",
    "policiesFolder": "policies",
}


class Context:
    """Stands in for a construct's node."""

    def __init__(self, **values):
        self.values = GOOD | values

    def try_get_context(self, name):
        return self.values.get(name)


def test_pseudo_parameters_become_tokens():
    """`${AWS::AccountId}` in an ARN is the account that the stack is deployed to."""
    (arn,) = Options.from_context(Context()).training_role_arns
    assert "${AWS::" not in arn
    assert arn.endswith(":role/train")


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("trainingRoleArns", []),
        ("trainingRoleArns", ["train"]),
        ("checkpointBuckets", None),
        ("checkpointBuckets", [7]),
        ("checkpointKeyArns", "alias/weights"),
        ("asideBuckets", [7]),
        ("logRetentionDays", 91),
        ("logRetentionDays", "for ever"),
        ("pageEmail", ["a@example.com"]),
    ],
)
def test_a_wrong_choice_is_named(name, value):
    """The error names the context value and shows what it is."""
    with pytest.raises(BadOption, match=name):
        Options.from_context(Context(**{name: value}))
