"""Deployment options: the context of cdk.json, or `cdk deploy -c name=value`, as typed fields."""

import difflib
import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from aws_cdk import Aws
from aws_cdk.aws_logs import RetentionDays
from constructs import Node

from rerail.decisions.quarantine import is_below
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
    "volumeKeyArns",
    "quarantineFolders",
    "asideBuckets",
    "logRetentionDays",
    "pageEmail",
    "informEmail",
    "chat",
    "answerLinks",
    "pagerDutySecret",
    "pagerDutyUrl",
    "webhookUrl",
    "webhookSecret",
    "docsUrl",
    "reportLinks",
    "sdkLayer",
    "policiesFolder",
    "powertoolsLayerArn",
    "supervisorConcurrency",
    "tags",
    "functionSubnets",
    "functionSecurityGroups",
    "forwardRunEvents",
    "orchestration",
)
ORGANIZATION = (
    "organizationId",
    "organizationalUnits",
    "organizationRegions",
    "organizationDelegated",
    "organizationView",
)
PAGERDUTY_URL = "https://events.pagerduty.com/v2/enqueue"
REPORT_LINKS = ("signed", "console")
# Lambda's limits of an event source's concurrency.
LEAST_CONCURRENCY, MOST_CONCURRENCY = 2, 1000
ADDRESS = re.compile(r"[^@\s,;]+@[^@\s,;]+")
URL = re.compile(r"https://[A-Za-z0-9.-]+(:\d+)?(/[^\s*]*)?")
SECRET = re.compile(r"[A-Za-z0-9/_+=.@!-]{1,512}")
ROUTING_KEY = re.compile(r"[0-9A-Za-z]{32}")
ROLE = re.compile(r"arn:[\w-]+:iam::(\d{12}|x):role/[\w+=,.@/-]+", re.ASCII)
_ACCOUNT = r"(\d{12}|x|[\d?]*[*?][\d*?]*)"
_KEY = (rf"arn:[\w*?-]+:kms:[\w*?-]+:{_ACCOUNT}:(key/[\w*?-]+|\*)", "arn:aws:kms:REGION:123456789012:key/ID")
# The form of each text, with "x" for a token, and an example. IAM also accepts texts that match nothing.
FORMS = {
    "trainingRoleArns": (
        rf"arn:[\w*?-]+:iam::{_ACCOUNT}:(role/[\w+=,.@/*?-]+|(role)?\*)",
        "arn:aws:iam::123456789012:role/NAME",
    ),
    "checkpointBuckets": (r"[\w*?][\w.*?-]*", "my-bucket, without s3:// and prefix"),
    "checkpointKeyArns": _KEY,
    "volumeKeyArns": _KEY,
    "functionSubnets": (r"subnet-\w+", "subnet-0123456789abcdef0"),
    "functionSecurityGroups": (r"sg-\w+", "sg-0123456789abcdef0"),
    "organizationalUnits": (r"ou-[a-z0-9]{4,32}-[a-z0-9]{8,32}|r-[a-z0-9]{4,32}", "ou-ab12-c3d4e5f6 or r-ab12"),
    "organizationId": (r"o-[a-z0-9]{10,32}", "o-a1b2c3d4e5"),
    "organizationRegions": (r"[a-z]{2}(-[a-z]+)+-\d", "eu-west-1"),
}
# Each folder costs some 400 of the 10,240 characters that the policies of a role may have.
MAX_FOLDERS = 10
# They are a variable of the function's environment, of which Lambda keeps 4 KB.
MAX_FOLDERS_BYTES = 3_000
# What the tags of every service may be. A resource has 50, of which AWS's services add some.
TAG_KEY, TAG_VALUE, MAX_TAGS = re.compile(r"[\w .:/=+@-]{1,128}"), re.compile(r"[\w .:/=+@-]{0,256}"), 40
LAYER = re.compile(r"arn:[a-z-]+:lambda:[a-z0-9-]+:\d{12}:layer:[A-Za-z0-9_-]+:\d+")
SECRET_ARN = re.compile(r"arn:[a-z-]+:secretsmanager:[a-z0-9-]+:\d{12}:secret:[A-Za-z0-9/_+=.@!-]+")


class BadOption(Exception):
    """A malformed context value; the message names it and the remedy."""


def refuse_misspelt(given: Iterable[str]) -> None:
    """Raise BadOption for a name that is nearly an option's, whose value would not be read."""
    for name in {*given} - {*NAMES, *ORGANIZATION}:
        if close := difflib.get_close_matches(name, (*NAMES, *ORGANIZATION), n=1, cutoff=0.8):
            raise BadOption(f"context {name!r:.100} is not an option; did you mean {close[0]!r}?")


@dataclass(frozen=True, slots=True, kw_only=True)
class DeploymentOptions:
    """The options of an account; the defaults are in cdk.json."""

    # Roles that relaunched jobs may be given (iam:PassRole), `*` allowed. There is no default.
    training_role_arns: tuple[str, ...]
    # Names of the buckets, `*` allowed, whose checkpoints are listed and whose manifests are read. There is no default.
    checkpoint_buckets: tuple[str, ...]
    # KMS keys of those buckets, if they have their own.
    checkpoint_key_arns: tuple[str, ...]
    # KMS keys that jobs name for their volumes (ResourceConfig.VolumeKmsKeyId): who creates such a job must be allowed
    # to grant the key to its machines.
    volume_key_arns: tuple[str, ...] = ()
    # By the ARN of a training role, the folders (`s3://bucket/prefix/`) in which the supervisor may move checkpoints to
    # quarantine that a script without an agent must not resume from, and copy files that it overwrites in place. For
    # other roles and elsewhere it does neither. The default is none: such a run is held instead.
    quarantine_folders: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    # How long the functions' log groups keep their events.
    log_retention: RetentionDays
    # The address that is subscribed to the topic `page`, if given; AWS asks its owner to confirm.
    page_email: str
    # The same for the topic `inform`.
    inform_email: str
    # Whether there are two more topics, for Amazon Q Developer in chat applications, which reads a format of its own.
    chat: bool = False
    # Whether pages that ask for an approval have a link to a page on the internet that takes the answer.
    answer_links: bool = False
    # Name or ARN of the secret in Secrets Manager whose text is the routing key of a PagerDuty integration
    # (Events API v2).
    pagerduty_secret: str = ""
    # Where the events go; accounts in the EU have another URL.
    pagerduty_url: str = PAGERDUTY_URL
    # Any HTTPS receiver; given together with the next one, or not at all.
    webhook_url: str = ""
    # Name or ARN of the secret that holds the value of the header `Authorization`.
    webhook_secret: str = ""
    # Where the built pages of docs/ are served, for links to runbooks.
    docs_url: str = ""
    # How a notice links a run's report: `signed` (readable by everyone who has the link) or `console`.
    report_links: str = REPORT_LINKS[0]
    # The Powertools layer where a partition or region does not publish its ARN as a parameter; "" takes that.
    powertools_layer_arn: str = ""
    # Whether the functions bring the AWS SDK that Rerail was tested with; otherwise they have that of the runtime.
    sdk_layer: bool = True
    # How many batches of signals are handled at once. A thousand simultaneous failures must not cause a thousand
    # CreateTrainingJob calls a second, and calls that wait for that throttle must leave others for the remaining runs.
    # Ten more of Rerail's functions may run beside them. A new account runs ten at once: set 2 here, and ask for more.
    supervisor_concurrency: int = 8
    # Tags of every resource, for accounts whose policies demand them and whose bills are split by them.
    tags: Mapping[str, str] = field(default_factory=dict)
    # The network of the functions, for accounts that allow none outside of a VPC; both, or neither.
    subnets: tuple[str, ...] = ()
    security_groups: tuple[str, ...] = ()
    # Whether the runs' events are also put on the account's default bus, where the rules of other teams are.
    forward_run_events: bool = False
    # Whether state machines and SageMaker Pipelines can wait for runs: a function, a queue for callback steps, and the
    # state machine TrainSupervised.
    orchestration: bool = False
    # The folder of the policies to deploy, relative to the repository.
    policies_folder: Path
    # Why Rerail may only observe; empty if it may act.
    observe_only: str = ""

    @classmethod
    def from_context(cls, node: Node) -> "DeploymentOptions":
        """Return the options. Raises BadOption if a value is malformed."""
        context = {name: node.try_get_context(name) for name in NAMES}
        options = cls(
            training_role_arns=_texts(context, "trainingRoleArns"),
            checkpoint_buckets=_texts(context, "checkpointBuckets"),
            checkpoint_key_arns=_texts(context, "checkpointKeyArns"),
            volume_key_arns=_texts(context, "volumeKeyArns"),
            quarantine_folders=_quarantine_folders(context),
            log_retention=_retention(context, "logRetentionDays"),
            page_email=_address(context, "pageEmail"),
            inform_email=_address(context, "informEmail"),
            chat=_yes_or_no(context, "chat"),
            answer_links=_yes_or_no(context, "answerLinks"),
            pagerduty_secret=_secret(context, "pagerDutySecret"),
            pagerduty_url=_url(context, "pagerDutyUrl") or PAGERDUTY_URL,
            **_webhook(context),
            docs_url=_url(context, "docsUrl").rstrip("/"),
            report_links=_one_of(context, "reportLinks", REPORT_LINKS),
            policies_folder=ROOT / _text(context, "policiesFolder"),
            powertools_layer_arn=_layer(context, "powertoolsLayerArn"),
            sdk_layer=context["sdkLayer"] is None or _yes_or_no(context, "sdkLayer"),
            supervisor_concurrency=_concurrency(context, "supervisorConcurrency"),
            tags=_tags(context, "tags"),
            subnets=_texts(context, "functionSubnets"),
            security_groups=_texts(context, "functionSecurityGroups"),
            forward_run_events=_yes_or_no(context, "forwardRunEvents"),
            orchestration=_yes_or_no(context, "orchestration"),
        )
        _require_both({"functionSubnets": options.subnets, "functionSecurityGroups": options.security_groups})
        # What an account has to choose itself: a default for all of them would allow too much.
        scope = {"trainingRoleArns": options.training_role_arns, "checkpointBuckets": options.checkpoint_buckets}
        missing = [name for name, chosen in scope.items() if not chosen]
        return options._as_observer(missing) if missing else options

    def _as_observer(self, missing: list[str]) -> "DeploymentOptions":
        """Return the options without all that lets Rerail act or read checkpoints."""
        return replace(
            self,
            training_role_arns=(),
            checkpoint_buckets=(),
            checkpoint_key_arns=(),
            volume_key_arns=(),
            quarantine_folders={},
            orchestration=False,
            observe_only=f"{' and '.join(missing)} {'is' if len(missing) == 1 else 'are'} not set",
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Organization:
    """Which accounts of an organization get Rerail too, in which regions; see stacks/organization_stack.py."""

    # The organization, such as o-a1b2c3d4e5; its accounts may read the functions' code.
    id: str
    # Organizational units or the root; each account that joins them is given a stack.
    units: tuple[str, ...]
    # The regions in which each account gets its stack.
    regions: tuple[str, ...]
    # Whether the hub is a delegated administrator of StackSets instead of the management account.
    is_delegated: bool = False
    # Whether the members forward their runs' events to the hub, for `rerail status --organization` and a dashboard.
    has_view: bool = False

    @classmethod
    def from_context(cls, node: Node) -> "Organization | None":
        """None where no unit is named, the default; raises BadOption where only a part is given."""
        context = {name: node.try_get_context(name) for name in ORGANIZATION}
        units = _texts(context, "organizationalUnits")
        if not units:
            return None
        ids = _texts(context, "organizationId")
        if len(ids) > 1:
            raise BadOption(f"context 'organizationId' names {len(ids)} organizations; give the id of one")
        id = next(iter(ids), "")
        regions = _texts(context, "organizationRegions")
        for name, given in (("organizationId", id), ("organizationRegions", regions)):
            if not given:
                raise BadOption(f"context 'organizationalUnits' is given without {name!r}; give both, or neither")
        if node.try_get_context("functionSubnets"):
            raise BadOption(
                "context 'functionSubnets' is given with 'organizationalUnits': no subnet is in all of their accounts;"
                " leave it out, or deploy each account by itself"
            )
        return cls(
            id=id,
            units=units,
            regions=regions,
            is_delegated=_yes_or_no(context, "organizationDelegated"),
            has_view=_yes_or_no(context, "organizationView"),
        )


def _text(context: Mapping[str, Any], name: str) -> str:
    value = context[name] or ""
    if not isinstance(value, str):
        raise BadOption(f"context {name!r} is {value!r:.200}; it must be text")
    return value


def _layer(context: Mapping[str, Any], name: str) -> str:
    value = _text(context, name)
    if value and not LAYER.fullmatch(value):
        raise BadOption(f"context {name!r} is {value!r:.200}; write the ARN of a layer with its version, or nothing")
    return value


def _concurrency(context: Mapping[str, Any], name: str) -> int:
    value = 8 if context[name] in (None, "") else context[name]
    number = int(value) if isinstance(value, str) and value.isdecimal() else value  # as `-c` hands it over
    if not isinstance(number, int) or isinstance(number, bool) or not LEAST_CONCURRENCY <= number <= MOST_CONCURRENCY:
        raise BadOption(
            f"context {name!r} is {value!r:.200}; it must be a whole number from {LEAST_CONCURRENCY} to"
            f" {MOST_CONCURRENCY}"
        )
    return number


def _address(context: Mapping[str, Any], name: str) -> str:
    value = _text(context, name)
    if value and not ADDRESS.fullmatch(value):
        raise BadOption(f"context {name!r} is {value!r:.200}; it must be one e-mail address, or empty")
    return value


def _yes_or_no(context: Mapping[str, Any], name: str) -> bool:
    value = context[name]
    written = {"true": True, "false": False, "": False}  # as `-c` hands it over
    if isinstance(value, bool) or value is None:
        return bool(value)
    if isinstance(value, str) and value in written:
        return written[value]
    raise BadOption(f"context {name!r} is {value!r:.200}; it must be true or false")


def _secret(context: Mapping[str, Any], name: str) -> str:
    value = _text(context, name)
    named = SECRET.fullmatch(value) or SECRET_ARN.fullmatch(value)
    if value and (not named or ROUTING_KEY.fullmatch(value)):  # which may be a secret: it is not shown
        raise BadOption(
            f"context {name!r} is not the name or the ARN of a secret in Secrets Manager; store the value there"
            " (aws secretsmanager create-secret) and give the secret's name"
        )
    return value


def _url(context: Mapping[str, Any], name: str) -> str:
    value = _text(context, name)
    if value and not URL.fullmatch(value):
        raise BadOption(f"context {name!r} is {value!r:.200}; it must be a URL that starts with https://, or empty")
    return value


def _webhook(context: Mapping[str, Any]) -> dict[str, str]:
    url, secret = _url(context, "webhookUrl"), _secret(context, "webhookSecret")
    _require_both({"webhookUrl": url, "webhookSecret": secret})
    return {"webhook_url": url, "webhook_secret": secret}


def _require_both(values: Mapping[str, Any]) -> None:
    given, missing = ([name for name, value in values.items() if bool(value) is there] for there in (True, False))
    if given and missing:
        raise BadOption(f"context {given[0]!r} is given without {missing[0]!r}; give both, or neither")


def _one_of(context: Mapping[str, Any], name: str, choices: tuple[str, ...]) -> str:
    value = _text(context, name) or choices[0]
    if value not in choices:
        raise BadOption(f"context {name!r} is {value!r:.200}; it must be one of {', '.join(choices)}")
    return value


def _texts(context: Mapping[str, Any], name: str) -> tuple[str, ...]:
    value = context[name] or []
    if isinstance(value, str):  # from the command line: -c checkpointBuckets=one,two
        value = [part.strip() for part in value.split(",")]
    form, example = FORMS[name]
    for text in value if isinstance(value, list) else [value]:
        if not isinstance(text, str) or not re.fullmatch(form, _plain(text), re.ASCII):
            raise BadOption(f"context {name!r} has {text!r:.200}; it must be a list of texts such as {example}")
    return tuple(_with_tokens(text) for text in value)


def _quarantine_folders(context: Mapping[str, Any]) -> dict[str, tuple[str, ...]]:
    name, former = "quarantineFolders", "asideBuckets"
    if context[former]:
        raise BadOption(
            f"context {former!r} is no longer read: it let every job move checkpoints; remove it, and list the folders "
            f'of each training role in {name!r}: {{"arn:...:role/NAME": ["s3://bucket/prefix/"]}}'
        )
    value = _table(context, name)
    is_table = isinstance(value, Mapping) and all(
        ROLE.fullmatch(_plain(role)) and isinstance(uris, list | tuple) and all(_is_folder(uri) for uri in uris)
        for role, uris in value.items()
    )
    is_small = is_table and sum(map(len, value.values())) <= MAX_FOLDERS and len(json.dumps(value)) <= MAX_FOLDERS_BYTES
    if not is_small:
        raise BadOption(
            f"context {name!r} is {value!r:.200}; it must map the ARN of each role, without wildcards, to a list of "
            f"folders such as s3://bucket/prefix/, at most {MAX_FOLDERS} in all, and {MAX_FOLDERS_BYTES} bytes of JSON"
        )
    return {
        _with_tokens(role): tuple(f"{_with_tokens(uri.removesuffix('/'))}/" for uri in uris)
        for role, uris in value.items()
    }


def _table(context: Mapping[str, Any], name: str) -> Any:
    """Return the value, parsed if it comes from the command line: -c 'quarantineFolders={"arn:...": ["s3://..."]}'."""
    value = context[name] or {}
    if not isinstance(value, str):
        return value
    try:
        return json.loads(value)
    except (ValueError, RecursionError) as error:
        raise BadOption(f"context {name!r} is {value!r:.200}; it must be JSON: {error}") from error


def _tags(context: Mapping[str, Any], name: str) -> dict[str, str]:
    value = _table(context, name)
    if not isinstance(value, Mapping) or len(value) > MAX_TAGS or not all(map(_is_tag, value.items())):
        raise BadOption(
            f"context {name!r} is {value!r:.200}; it must be a table of at most {MAX_TAGS} tags such as"
            ' {"team": "ml"}: texts of letters, digits, blanks and _.:/=+-@, at most 128 and 256 characters, and no'
            " name that begins with aws:"
        )
    return dict(value)


def _is_tag(pair: tuple[Any, Any]) -> bool:
    key, text = pair
    is_text = isinstance(key, str) and isinstance(text, str) and not key.lower().startswith("aws:")
    return is_text and bool(TAG_KEY.fullmatch(key) and TAG_VALUE.fullmatch(text))


def _is_folder(uri: Any) -> bool:
    """Return whether the text is one folder in S3, neither a pattern nor with a variable that IAM would replace."""
    text = _plain(uri) if isinstance(uri, str) else ""
    return bool(text) and is_below(text, text) and not set(text) & set("*?$")


def _retention(context: Mapping[str, Any], name: str) -> RetentionDays:
    value = str(context[name])
    if not re.fullmatch(r"[0-9]{1,5}", value) or int(value) not in RETENTIONS:
        raise BadOption(f"context {name!r} is {value!r:.200}; it must be one of {', '.join(map(str, RETENTIONS))}")
    return RETENTIONS[int(value)]


def _plain(text: str) -> str:
    """Return the text with "x" for each token."""
    for token in TOKENS:
        text = text.replace(token, "x")
    return text


def _with_tokens(text: str) -> str:
    for written, token in TOKENS.items():
        text = text.replace(written, token)
    return text
