"""Is the deployment ready? One question a function, in the order in which they are answered."""

import fnmatch
import json
import zipfile
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime, timedelta
from typing import Any
from urllib.parse import unquote

from cli import policies
from cli.doctor.check import Check, Question, broken, ok, unknown, warn
from cli.doctor.delivery import check_delivery
from cli.doctor.deployment import OUTPUTS, Deployment
from cli.place import now
from cli.project import CHOICES
from rerail.supervisor.pause import parse_pause

LOOK_BACK = timedelta(minutes=10)
YOUNG = timedelta(minutes=5)
NEEDED_SERVICES = ("sagemaker", "lambda", "events", "scheduler", "dynamodb", "sqs", "sns", "s3", "cloudwatch", "ssm")
SAGEMAKER = "sagemaker.amazonaws.com"
NAMED = 3
# Functions that no queue feeds.
UNQUEUED = ("sweep", "notify")
CONCURRENCY_QUOTA = "L-B99A9384"
WAITING = "ApproximateNumberOfMessages"


def stack(deployment: Deployment) -> Check:
    """Deployed, complete, and with what this command line reads of it."""
    status = str(deployment.stack["StackStatus"])
    if missing := [name for name in OUTPUTS if not deployment.output(name)]:
        return broken(f"it is older than this command line: it has no {', '.join(missing)}", "deploy it: `make deploy`")
    if status.endswith("_FAILED") or status in ("ROLLBACK_COMPLETE", "DELETE_COMPLETE"):
        return broken(f"it is {status}", "look at its events in CloudFormation, fix their cause, and deploy again")
    if status.endswith("_IN_PROGRESS"):
        return warn(f"it is being changed: {status}", "ask again when the deployment has ended")
    if "ROLLBACK" in status:
        return warn(f"the last deployment was rolled back: {status}", "look at its events, and deploy again")
    return ok(f"{deployment.where.name}: {status}")


def functions_code(deployment: Deployment) -> Check:
    """The functions run the code of this checkout."""
    try:
        differing = deployment.differing_files
    except (OSError, ValueError, zipfile.BadZipFile) as error:
        return unknown(f"cannot tell: the code cannot be fetched: {error}", "look at the version in the Lambda console")
    if not differing:
        return ok("what is deployed is what this command line was made with")
    named = ", ".join(differing[:NAMED]) + (f" and {len(differing) - NAMED} more" if len(differing) > NAMED else "")
    return warn(
        f"it is another version than this command line's: {named}", "deploy this one, or use the one that is deployed"
    )


def delivery(deployment: Deployment) -> Check:
    """An event reaches the supervisor through bus, rule, queue and key."""
    try:
        differing = deployment.differing_files
    except (OSError, ValueError, zipfile.BadZipFile):
        differing = ["unknown"]
    if differing:  # a version that does not know the event would take it for a bad message, and page
        return unknown("not tried: the functions run another version", "deploy this one, then ask again")
    return check_delivery(deployment.client, deployment.where.outputs)


def deployed_policies(deployment: Deployment) -> Check:
    """They are those of `policies/`, and each can be read."""
    found = policies.compare_policies(deployment.where)
    if bad := [policy for policy in found if policy.problem]:
        return broken(
            f"{bad[0].name}: {bad[0].problem}", "correct its file and deploy it: runs under it are only observed"
        )
    if differing := [policy for policy in found if policy.stands != policies.Stands.SAME]:
        names = ", ".join(f"{policy.name} ({policy.stands})" for policy in differing)
        return warn(f"not as in policies/: {names}", "`rerail policy list` tells more; `make deploy` deploys the files")
    return ok(", ".join(policy.name for policy in found))


def table(deployment: Deployment) -> Check:
    """The runs can be read, and the deployment has been completed: its second step protects them."""
    name = deployment.output("TableName")
    described = deployment.client("dynamodb").describe_table(TableName=name)["Table"]
    if (status := described["TableStatus"]) != "ACTIVE":
        return broken(f"{name} is {status}", "look at it in the DynamoDB console")
    if not described.get("DeletionProtectionEnabled"):
        return warn(
            f"{name} is not protected, and missing sweeps page nobody: the first deployment was interrupted",
            "`rerail deploy` completes it",
        )
    return ok(name)


def bus(deployment: Deployment) -> Check:
    """Commands and notices have their way."""
    name = deployment.output("BusName")
    deployment.client("events").describe_event_bus(Name=name)
    return ok(name)


def mailbox(deployment: Deployment) -> Check:
    """The agents' bucket is there."""
    name = deployment.output("MailboxBucket")
    deployment.client("s3").head_bucket(Bucket=name)
    return ok(name)


def rules(deployment: Deployment) -> Check:
    """Every rule that brings signals is switched on."""
    all_of_them = {_last(physical, "|") for physical in deployment.list_resources("AWS::Events::Rule").values()}
    states = dict(_rules(deployment))
    if lacking := sorted(all_of_them - states.keys()):
        return broken(f"gone: {', '.join(lacking)}", "they were deleted: deploy again, `make deploy`")
    off = sorted(name for name in all_of_them if states[name] == "DISABLED")
    if off:
        return broken(f"switched off: {', '.join(off)}", f"`aws events enable-rule --name {off[0]}`, once you know why")
    return ok(f"{len(all_of_them)} rules are on")


def schedule(deployment: Deployment) -> Check:
    """The minute's round is called."""
    for physical in deployment.list_resources("AWS::Scheduler::Schedule").values():
        name = _last(physical, "|", "/")
        found = deployment.client("scheduler").get_schedule(Name=name)
        if found.get("State") == "DISABLED":
            return broken(f"{name} is disabled: runs are not monitored", "switch it on in the EventBridge console")
    return ok("the sweep is called every minute")


def sweep(deployment: Deployment) -> Check:
    """It has run lately, and not failed."""
    name = deployment.output("SweepFunctionName")
    ran, failed = _count(deployment, name, "Invocations"), _count(deployment, name, "Errors")
    if not ran and now() - _as_of(deployment.stack) < YOUNG:
        return warn("no sweep yet, and the stack is young", "ask again in a few minutes")
    if not ran:
        return broken(
            f"no sweep in the last {LOOK_BACK.seconds // 60} minutes: runs are not watched",
            f"look at the log of {name} and at its schedule; docs/runbooks/no-sweep.md",
        )
    if failed >= ran:
        return broken(f"all {failed:.0f} sweeps of the last minutes have failed", f"`aws logs tail /aws/lambda/{name}`")
    if failed:
        return warn(f"{failed:.0f} of {ran:.0f} sweeps have failed", f"`aws logs tail /aws/lambda/{name}`")
    return ok(f"{ran:.0f} rounds in the last {LOOK_BACK.seconds // 60} minutes")


def supervise(deployment: Deployment) -> Check:
    """It takes signals from its queues, and none waits for long."""
    name = deployment.output("SuperviseFunctionName")
    states = [mapping.get("State", "Enabled") for mapping in _list_mappings(deployment, name)]
    if not states or any(state in ("Disabled", "Disabling") for state in states):
        return broken(f"{name} takes no signals from its queue", "switch its trigger on in the Lambda console")
    urls = filter(None, map(deployment.output, ("SignalsQueueUrl", "CommandQueueUrl", "FiledReportsQueueUrl")))
    waiting = sum(int(_attributes(deployment, url)[WAITING]) for url in urls)
    failed = _count(deployment, name, "Errors")
    if failed:
        return warn(f"it has failed {failed:.0f} times in the last minutes", f"`aws logs tail /aws/lambda/{name}`")
    return ok(f"{waiting} signals wait")


def concurrency(deployment: Deployment) -> Check:
    """Lambda runs as many functions at once as Rerail's may need; a new account has ten."""
    names = filter(None, map(deployment.output, ("SuperviseFunctionName", "ReportFunctionName")))
    mappings = [mapping for name in names for mapping in _list_mappings(deployment, name)]
    needed = len(UNQUEUED) + sum(int(m.get("ScalingConfig", {}).get("MaximumConcurrency", 1)) for m in mappings)
    there = int(deployment.client("lambda").get_account_settings()["AccountLimit"]["UnreservedConcurrentExecutions"])
    if there < needed:
        return warn(
            f"Lambda runs at most {there} functions at once here, and Rerail's may be {needed}: when many runs fail "
            "together, the sweep is throttled, which pages",
            "deploy with -c supervisorConcurrency=2, and ask for more: `aws service-quotas "
            f"request-service-quota-increase --service-code lambda --quota-code {CONCURRENCY_QUOTA} --desired-value "
            "1000`",
        )
    return ok(f"{needed} functions at most run at once, of {there} that may")


def dead_letters(deployment: Deployment) -> Check:
    """Nothing was given up."""
    counts = {}
    for queue in deployment.list_resources("AWS::SQS::Queue").values():
        attributes = _attributes(deployment, _url(deployment, queue))
        # A queue that redrives its messages to another one is worked on, so messages may wait there.
        if "RedrivePolicy" not in attributes:
            counts[_queue(queue)] = int(attributes[WAITING])
    full = {name: count for name, count in counts.items() if count}
    if full:
        listed = ", ".join(f"{count} in {name}" for name, count in full.items())
        return broken(
            f"messages were given up: {listed}", "read them, then redrive them; docs/runbooks/dead-letters.md"
        )
    return ok(f"{len(counts)} dead-letter queues are empty")


def pause(deployment: Deployment) -> Check:
    """Rerail is not paused: jobs may be stopped and launched."""
    name = deployment.output("PauseParameter")
    text = deployment.client("ssm").get_parameter(Name=name)["Parameter"]["Value"]
    match parse_pause(text):
        case True:
            return warn(
                "Rerail is paused for this account: no job is stopped or launched", "`rerail resume` lifts the pause"
            )
        case False:
            return ok("active")
        case _:
            return broken(f"{name} holds {text!r}, which is not valid", "`rerail resume`, or `rerail pause`")


def people(deployment: Deployment) -> Check:
    """A page reaches a confirmed subscriber."""
    pending, reached = [], 0
    for name in ("PageTopicArn", "InformTopicArn"):
        for subscription in _subscriptions(deployment, deployment.output(name)):
            if subscription["SubscriptionArn"] == "PendingConfirmation":
                pending.append(subscription.get("Endpoint", "?"))
            elif name == "PageTopicArn":
                reached += 1
    if pending:
        names = ", ".join(dict.fromkeys(pending))
        return warn(f"not confirmed yet: {names}", "the person must follow the link in SNS's e-mail")
    if not reached and deployment.where.is_local:
        return ok("the local AWS sends no mails: `rerail show RUN` has each decision")
    if not reached and not deployment.list_resources("AWS::Events::ApiDestination"):
        return warn(
            "pages reach no one: the topic has no subscriber",
            f"set pageEmail, chat, pagerDutySecret or webhookUrl in {CHOICES.name} and deploy",
        )
    return ok(f"{reached} subscribers are paged")


def receivers(deployment: Deployment) -> Check | None:
    """Pager and webhook are let in with the secrets that they were given."""
    names = [_last(physical, "/", "|") for physical in deployment.list_resources("AWS::Events::Connection").values()]
    if not names:
        return None
    for name in names:
        state = deployment.client("events").describe_connection(Name=name)["ConnectionState"]
        if state != "AUTHORIZED":
            return broken(
                f"the connection {name} is {state}: its notices are not delivered",
                f"look at its secret (pagerDutySecret, webhookSecret in {CHOICES.name}), and deploy again",
            )
    return ok(f"{', '.join(names)} may be used")


def alarms(deployment: Deployment) -> Check:
    """None of Rerail's own alarms has gone off."""
    ours = sorted(deployment.list_resources("AWS::CloudWatch::Alarm").values())
    off: list[str] = []
    for first in range(0, len(ours), 100):
        answer = deployment.client("cloudwatch").describe_alarms(AlarmNames=ours[first : first + 100])
        off += [alarm["AlarmName"] for alarm in answer["MetricAlarms"] if alarm["StateValue"] == "ALARM"]
    if off:
        return broken(f"{', '.join(off)} went off", "its description in the CloudWatch console says what to do")
    return ok(f"{len(ours)} alarms are quiet")


def training_roles(deployment: Deployment) -> Check:
    """At least one role that SageMaker takes on may be handed to it by Rerail."""
    if deployment.where.is_local:
        return ok("the local AWS asks for no role")
    allowed = sorted(_passable(deployment))
    roles = [role for role in _roles(deployment) if SAGEMAKER in _trust(role)]
    matching = [role["RoleName"] for role in roles if any(fnmatch.fnmatchcase(role["Arn"], arn) for arn in allowed)]
    if not roles:
        return warn("the account has no role that SageMaker may take on", "make one for training; docs/submit.md")
    if not matching:
        return broken(
            f"none of the account's {len(roles)} SageMaker roles matches {' or '.join(allowed)}",
            f"add the training roles to trainingRoleArns in {CHOICES.name} and deploy: else no job is relaunched",
        )
    more = f" and {len(matching) - NAMED} more" if len(matching) > NAMED else ""
    return ok(f"{', '.join(matching[:NAMED])}{more} may be handed to SageMaker")


def region(deployment: Deployment) -> Check:
    """All that Rerail is made of exists in this region, as far as this SDK knows."""
    import boto3

    session, here = boto3.Session(), deployment.region
    known = set(session.get_available_regions("ec2", partition_name=session.get_partition_for_region(here)))
    if here not in known:
        return warn(f"this SDK does not know the region {here}", "update it: pip install -U boto3")
    partition = session.get_partition_for_region(here)
    lacking = [name for name in NEEDED_SERVICES if here not in session.get_available_regions(name, partition)]
    if lacking:
        return broken(f"{here} has no {', '.join(lacking)}", "deploy into a region that has them")
    return ok(here)


QUESTIONS: tuple[Question[Deployment], ...] = (
    stack,
    region,
    functions_code,
    deployed_policies,
    table,
    bus,
    mailbox,
    rules,
    schedule,
    sweep,
    supervise,
    delivery,
    concurrency,
    dead_letters,
    alarms,
    pause,
    people,
    receivers,
    training_roles,
)


def _list_mappings(deployment: Deployment, function: str) -> list[Mapping[str, Any]]:
    """Return the queues that feed a function."""
    pages = deployment.client("lambda").get_paginator("list_event_source_mappings").paginate(FunctionName=function)
    return [mapping for page in pages for mapping in page["EventSourceMappings"]]


def _count(deployment: Deployment, function: str, metric: str) -> float:
    end = now()
    answer = deployment.client("cloudwatch").get_metric_statistics(
        Namespace="AWS/Lambda",
        MetricName=metric,
        Dimensions=[{"Name": "FunctionName", "Value": function}],
        StartTime=end - LOOK_BACK,
        EndTime=end + timedelta(minutes=1),
        Period=60,
        Statistics=["Sum"],
    )
    return sum(float(point["Sum"]) for point in answer["Datapoints"])


def _rules(deployment: Deployment) -> Iterator[tuple[str, str]]:
    """Name and state of the rules on AWS's own bus and on ours."""
    for where in ("default", deployment.output("BusName")):
        for page in deployment.client("events").get_paginator("list_rules").paginate(EventBusName=where):
            yield from ((rule["Name"], rule.get("State", "")) for rule in page["Rules"])


def _as_of(stack: Mapping[str, Any]) -> datetime:
    changed: datetime = stack.get("LastUpdatedTime") or stack["CreationTime"]
    return changed if changed.tzinfo else changed.replace(tzinfo=UTC)


def _last(text: str, *separators: str) -> str:
    for separator in separators:
        text = text.rpartition(separator)[2]
    return text


def _attributes(deployment: Deployment, url: str) -> Mapping[str, str]:
    answer = deployment.client("sqs").get_queue_attributes(QueueUrl=url, AttributeNames=[WAITING, "RedrivePolicy"])
    attributes: Mapping[str, str] = answer["Attributes"]
    return attributes


def _queue(url: str) -> str:
    return _last(url, "/", ":")


def _url(deployment: Deployment, physical: str) -> str:
    """CloudFormation knows a queue by its URL, a stand-in perhaps by its name."""
    if physical.startswith("http"):
        return physical
    return str(deployment.client("sqs").get_queue_url(QueueName=_queue(physical))["QueueUrl"])


def _subscriptions(deployment: Deployment, topic: str) -> Iterator[Mapping[str, Any]]:
    pages = deployment.client("sns").get_paginator("list_subscriptions_by_topic").paginate(TopicArn=topic)
    for page in pages:
        yield from page["Subscriptions"]


def _roles(deployment: Deployment) -> list[Mapping[str, Any]]:
    pages = deployment.client("iam").get_paginator("list_roles").paginate()
    return [role for page in pages for role in page["Roles"]]


def _trust(role: Mapping[str, Any]) -> str:
    """Who may take it on, as text."""
    document = role.get("AssumeRolePolicyDocument", {})
    return unquote(document) if isinstance(document, str) else json.dumps(document)


def _passable(deployment: Deployment) -> Iterator[str]:
    """What the supervisor's own role may hand to SageMaker, from its policies."""
    iam, role = deployment.client("iam"), deployment.supervisor_role.rpartition("/")[2]
    for name in iam.list_role_policies(RoleName=role)["PolicyNames"]:
        document = iam.get_role_policy(RoleName=role, PolicyName=name)["PolicyDocument"]
        read = json.loads(unquote(document)) if isinstance(document, str) else document
        for statement in _many(read.get("Statement", [])):
            if statement.get("Effect") == "Allow" and "iam:PassRole" in _many(statement.get("Action", [])):
                yield from _many(statement.get("Resource", []))


def _many(value: Any) -> list[Any]:
    return value if isinstance(value, list) else [value]
