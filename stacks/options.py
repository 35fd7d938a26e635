"""What an account may choose: the context of cdk.json, or `cdk deploy -c name=value`, as typed fields."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from aws_cdk import Aws
from aws_cdk.aws_logs import RetentionDays
from constructs import Node

from stacks import ROOT

TOKENS = {"${AWS::Partition}": Aws.PARTITION, "${AWS::AccountId}": Aws.ACCOUNT_ID, "${AWS::Region}": Aws.REGION}
RETENTIONS = {
    7: RetentionDays.ONE_WEEK,
    30: RetentionDays.ONE_MONTH,
    90: RetentionDays.THREE_MONTHS,
    180: RetentionDays.SIX_MONTHS,
    365: RetentionDays.ONE_YEAR,
    731: RetentionDays.TWO_YEARS,
    1827: RetentionDays.FIVE_YEARS,
    3653: RetentionDays.TEN_YEARS,
}
NAMES = (
    "trainingRoleArns",
    "checkpointBuckets",
    "checkpointKeyArns",
    "asideBuckets",
    "logRetentionDays",
    "pageEmail",
    "informEmail",
    "policiesFolder",
)


class BadOption(Exception):
    """A context value is malformed; the message names it and the remedy."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """The choices; their defaults stand in cdk.json.

    training_role_arns: roles that relaunched jobs may be given (iam:PassRole). The default takes every role whose name
        contains SageMaker, as the SageMaker console names them; list your own to narrow it.
    checkpoint_buckets: bucket names, `*` allowed, whose checkpoints are listed and whose manifests are read. The
        default is the pattern of the managed policy AmazonSageMakerFullAccess.
    checkpoint_key_arns: KMS keys of those buckets, if they have their own.
    aside_buckets: bucket names, `*` allowed, in which the supervisor may move aside what a script without an agent must
        not resume from. The default is none: such a run is held instead.
    log_retention: of the functions' log groups.
    page_email, inform_email: subscribed to the topic of that name, if given; AWS asks them to confirm.
    policies_folder: the policies to deploy, relative to the repository.
    """

    training_role_arns: tuple[str, ...]
    checkpoint_buckets: tuple[str, ...]
    checkpoint_key_arns: tuple[str, ...]
    aside_buckets: tuple[str, ...] = ()
    log_retention: RetentionDays
    page_email: str
    inform_email: str
    policies_folder: Path

    @classmethod
    def from_context(cls, node: Node) -> "Options":
        """Raises BadOption where a value is missing or malformed."""
        context = {name: node.try_get_context(name) for name in NAMES}
        return cls(
            training_role_arns=_texts(context, "trainingRoleArns", at_least=1, starts="arn:"),
            checkpoint_buckets=_texts(context, "checkpointBuckets", at_least=1),
            checkpoint_key_arns=_texts(context, "checkpointKeyArns", starts="arn:"),
            aside_buckets=_texts(context, "asideBuckets"),
            log_retention=_retention(context, "logRetentionDays"),
            page_email=_text(context, "pageEmail"),
            inform_email=_text(context, "informEmail"),
            policies_folder=ROOT / _text(context, "policiesFolder"),
        )


def _text(context: Mapping[str, Any], name: str) -> str:
    value = context[name] or ""
    if not isinstance(value, str):
        raise BadOption(f"context {name!r} is {value!r}; it must be text")
    return value


def _texts(context: Mapping[str, Any], name: str, *, at_least: int = 0, starts: str = "") -> tuple[str, ...]:
    value = context[name] or []
    if isinstance(value, str):  # from the command line: -c checkpointBuckets=one,two
        value = [part.strip() for part in value.split(",")]
    wrong = not isinstance(value, list) or not all(isinstance(v, str) and v.startswith(starts) for v in value)
    if wrong or len(value) < at_least:
        form = f"a list of texts{f' that start with {starts!r}' if starts else ''}"
        raise BadOption(f"context {name!r} is {value!r}; it must be {form}, at least {at_least} of them")
    return tuple(_with_tokens(v) for v in value)


def _retention(context: Mapping[str, Any], name: str) -> RetentionDays:
    value = str(context[name])
    if not value.isdigit() or int(value) not in RETENTIONS:
        raise BadOption(f"context {name!r} is {context[name]!r}; it must be one of {', '.join(map(str, RETENTIONS))}")
    return RETENTIONS[int(value)]


def _with_tokens(text: str) -> str:
    for written, token in TOKENS.items():
        text = text.replace(written, token)
    return text
