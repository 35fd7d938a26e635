"""Can Rerail watch this job, and bring it back? One question a function, in the order in which they are answered."""

import re
from datetime import timedelta

from cli.doctor.check import Check, Question, broken, ok, warn
from cli.doctor.subject import DAY, Subject
from cli.place import now
from cli.training_logs.expressions import REMEDY, compile_expression, find_flaw_in_time
from rerail.messages.messages import JOB_NAME
from rerail.model.errors import PolicyError
from rerail.model.formatting import format_duration
from rerail.model.mailbox import make_command_key
from rerail.model.metrics import select_names
from rerail.model.policy import MaxRuntime, Mode
from rerail.model.run import make_run_id
from rerail.requests.relaunch import ATTEMPT_TAG, ENVIRONMENT_LIMIT, OURS, POLICY_TAG, RUN_TAG, TAG_LIMIT, find_refusal

LOG_GROUP = "/aws/sagemaker/TrainingJobs"
FRESH = timedelta(minutes=5)
# What a successor is told: its run, its number, and the orders.
LONGEST_VALUE = 512
LONGEST_RUNTIME_S = 28 * DAY
WARMEST_S = 3600
FEW_DAYS_OF_LOGS = 14
MOST_RETRIES = 3
# With more machines a start fails more often, by a bad one or by a lack of them: the maximum is usual.
MANY_MACHINES, MANY_RETRIES = 8, 30


def supervision(subject: Subject) -> Check:
    """Rerail takes the job on."""
    if reason := find_refusal(subject.request):
        return broken(f"Rerail cannot relaunch it: {reason}", "start it as an ordinary training job")
    if POLICY_TAG not in subject.tags:
        tag = f"Key={POLICY_TAG},Value=default"
        return broken(
            f"it has no tag {POLICY_TAG}: it is not supervised",
            f"add it to the request, or to the running job: `aws sagemaker add-tags --tags {tag} --resource-arn ARN`,"
            f" then `rerail adopt {subject.name}`",
        )
    run = subject.tags.get(RUN_TAG)
    if run and not (subject.run and any(a.job_name == subject.name for a in subject.run.attempts)):
        return broken(
            f"its tag {RUN_TAG} names the run {run}, which did not launch it",
            f"remove the tag {RUN_TAG}: Rerail alone sets it",
        )
    if subject.exists and subject.run is None:
        return warn("it is tagged, and no run has taken it up yet", f"`rerail adopt {subject.name}`")
    return ok(f"as the run {subject.run_name}" + (f", which is {subject.run.state}" if subject.run else ""))


def name(subject: Subject) -> Check:
    """SageMaker takes the name, and what Rerail adds to it for the jobs after."""
    if not JOB_NAME.fullmatch(subject.name):
        return broken(
            f"{subject.name!r} is not a valid training job name",
            "use 1-63 letters, digits or hyphens; it cannot end with a hyphen",
        )
    if make_run_id(subject.name) != subject.name and not subject.run:
        return warn(f"it is long: its run will be called {make_run_id(subject.name)}", "give at most 58 characters")
    return ok(f"{len(subject.name)} characters")


def policy(subject: Subject) -> Check | None:
    """The one that the tag names is deployed, and acts."""
    from rerail.aws.ssm import SsmPolicies

    asked = subject.tags.get(POLICY_TAG)
    if asked is None:
        return None
    try:
        found = SsmPolicies(subject.deployment.output("PolicyPrefix"), now).get(asked)
    except PolicyError as error:
        return broken(f"{error}: the run would only be observed", "`rerail policy list` names those that are deployed")
    if found.mode in (Mode.OBSERVE, Mode.PAUSE):
        return warn(f"{asked} says mode = {found.mode.value}: nothing is stopped or relaunched", "name another then")
    return ok(f"{asked}, mode = {found.mode.value}")


def metrics(subject: Subject) -> Check:
    """The loss and the step can be read from its log."""
    definitions = {definition["Name"]: definition["Regex"] for definition in subject.metric_definitions}
    for metric, expression in definitions.items():
        if problem := _flaw(metric, expression):
            return broken(f"the expression of {metric} {problem}", REMEDY)
    wanted = subject.policy.metrics
    found = select_names(wanted, definitions)
    if found is None:
        said = f"neither {wanted.step or 'a step'} nor {wanted.loss or 'a loss'} is among its MetricDefinitions"
        if subject.has_agent:
            return ok(f"{said}; its agent reports both")
        return warn(f"{said}: its loss and its pace are not watched", "name both: see `rerail metrics --log FILE`")
    for metric in filter(None, (found.loss, found.grad_norm)):
        if flaw := find_flaw_in_time(definitions[metric]):
            text = f"the expression of {metric} {flaw.text}"
            return broken(text, REMEDY) if flaw.is_certain else warn(text, REMEDY)
    lacking = [key for key in ("step", "loss", "nonfinite") if getattr(wanted, key) and not getattr(found, key)]
    if lacking and not subject.has_agent:
        consequences = {
            "step": "a relaunch's replayed steps are judged twice",
            "loss": "the loss is not watched",
            "nonfinite": "CloudWatch does not accept NaN, so that one shows only as missing data",
        }
        return warn(
            f"it has no {' and no '.join(lacking)}: {'; '.join(consequences[key] for key in lacking)}",
            "add what `rerail metrics` prints, and print the metric line",
        )
    return ok(", ".join(definitions))


def agent(subject: Subject) -> Check | None:
    """An agent answers in the container, so that a stop loses nothing."""
    from rerail.aws.mailbox import S3Mailbox

    if subject.request.get("EnableNetworkIsolation"):
        return warn(
            "EnableNetworkIsolation keeps the agent from the mailbox: a stop loses the steps since the last checkpoint",
            "leave it out if you may, or save often",
        )
    if not subject.exists:
        return ok("its command runs the agent's init") if subject.has_agent else None
    bucket, run = subject.deployment.output("MailboxBucket"), subject.run_name
    beats = S3Mailbox(bucket).heartbeats([run])
    if why := beats.unread.get(run):
        return warn(f"its heartbeat cannot be read: {why}", "look at it in the mailbox bucket")
    heartbeat = beats.received.get(run)
    if heartbeat and now() - heartbeat.at <= FRESH:
        return ok(f"its heart beat {format_duration(now() - heartbeat.at)} ago, at step {heartbeat.heartbeat.step}")
    if heartbeat:
        return warn(
            f"its heart has not beaten for {format_duration(now() - heartbeat.at)}",
            "nothing, if the job has ended; else look at its log",
        )
    reports = subject.client("s3").list_objects_v2(Bucket=bucket, Prefix=f"runs/{run}/reports/", MaxKeys=1)
    if reports.get("KeyCount"):
        return ok("it has reported, and has no heartbeat yet")
    return warn(
        "no agent has reported from the container: a stop loses the steps since the last checkpoint",
        f"use the agent (docs/agent.md), and let the role read {make_command_key(run)} in {bucket}",
    )


def checkpoints(subject: Subject) -> Check:
    """There is something to come back to."""
    if not subject.uri:
        folder = (subject.request.get("Environment") or {}).get("RERAIL_CHECKPOINTS", "")
        if folder:
            return warn(
                f"it saves to {folder}, where Rerail cannot look", "name an S3 folder, if you want its saves judged"
            )
        return broken(
            "it has no CheckpointConfig and no RERAIL_CHECKPOINTS: every relaunch begins at step 0",
            "give it CheckpointConfig with an S3Uri, and save to /opt/ml/checkpoints",
        )
    return ok(subject.uri)


def checkpoint_slash(subject: Subject) -> Check | None:
    """S3Uri is a bare prefix: without a slash it takes the neighbours' checkpoints too."""
    uri = str((subject.request.get("CheckpointConfig") or {}).get("S3Uri", ""))
    if not uri:
        return None
    if uri.endswith("/"):
        return ok("it ends with a slash")
    bucket, _, prefix = uri.removeprefix("s3://").partition("/")
    listed = subject.client("s3").list_objects_v2(Bucket=bucket, Prefix=prefix, Delimiter="/")
    own = f"{prefix}/"
    others = [folder["Prefix"] for folder in listed.get("CommonPrefixes", []) if folder["Prefix"] != own]
    others += [item["Key"] for item in listed.get("Contents", [])]
    if others:
        return broken(
            f"{uri} has no slash at its end, and SageMaker restores {others[0]} with it", f"write {uri}/ in S3Uri"
        )
    return warn(f"{uri} has no slash at its end: it also takes what begins so", f"write {uri}/ in S3Uri")


def logs(subject: Subject) -> Check:
    """They are kept long enough for a later analysis."""
    group = next(
        (
            log_group
            for page in subject.client("logs")
            .get_paginator("describe_log_groups")
            .paginate(logGroupNamePrefix=LOG_GROUP)
            for log_group in page["logGroups"]
            if log_group["logGroupName"] == LOG_GROUP
        ),
        None,
    )
    if group is None:
        if subject.exists:
            return warn(f"there is no log group {LOG_GROUP}", "let the job's role write logs: logs:CreateLogStream ...")
        return ok(f"{LOG_GROUP} will be made by the first job")
    days = group.get("retentionInDays")
    if days is None:
        return ok(f"{LOG_GROUP} never expires")
    if days < FEW_DAYS_OF_LOGS:
        return warn(f"{LOG_GROUP} is kept for {days} days", f"keep it for {FEW_DAYS_OF_LOGS} or more")
    return ok(f"{LOG_GROUP} is kept for {days} days")


def retries(subject: Subject) -> Check:
    """SageMaker's own restarts and Rerail's do not multiply."""
    count = (subject.request.get("RetryStrategy") or {}).get("MaximumRetryAttempts", 0)
    has_many_machines = subject.instance_count > MANY_MACHINES
    if has_many_machines and count < MANY_RETRIES:
        return warn(
            f"RetryStrategy has SageMaker itself restart {subject.instance_count} machines {count} times",
            f"set MaximumRetryAttempts to {MANY_RETRIES}: errors before the start then cost no relaunch",
        )
    if not has_many_machines and count > MOST_RETRIES:
        return warn(
            f"RetryStrategy has SageMaker itself restart it {count} times, all within one MaxRuntimeInSeconds",
            f"leave it at {MOST_RETRIES} or less: Rerail relaunches after that",
        )
    if count:
        return ok(f"SageMaker itself restarts it {count} times after an internal error, then Rerail relaunches")
    return ok("Rerail alone relaunches")


def max_runtime(subject: Subject) -> Check:
    """The job, and the run with its relaunches, have time to end."""
    seconds, policy = subject.max_runtime_s, subject.policy
    if seconds is None:
        return warn("it has no MaxRuntimeInSeconds: SageMaker stops it after a day", "say how long it may run")
    if seconds > LONGEST_RUNTIME_S:
        return broken(f"MaxRuntimeInSeconds is {seconds}", "give at most 28 days (2419200)")
    said = format_duration(timedelta(seconds=seconds))
    if timedelta(seconds=seconds) < policy.limits.least_runtime:
        least = format_duration(policy.limits.least_runtime)
        return broken(f"{said} is less than the policy relaunches for (limits.least_runtime {least})", "give it more")
    if policy.max_runtime is MaxRuntime.PER_RUN:
        return ok(f"{said} for the run with all its relaunches")
    return ok(f"{said} for each attempt")


def keep_alive(subject: Subject) -> Check | None:
    """A warm pool that SageMaker accepts."""
    seconds = subject.resources.get("KeepAlivePeriodInSeconds", 0)
    if not seconds:
        return None
    if subject.is_spot:
        return broken("KeepAlivePeriodInSeconds with spot machines: SageMaker refuses it", "leave out one of the two")
    if subject.resources.get("InstanceGroups"):
        return broken("KeepAlivePeriodInSeconds with InstanceGroups: SageMaker refuses it", "leave out one of the two")
    if seconds > WARMEST_S:
        return warn(f"KeepAlivePeriodInSeconds is {seconds}: the guide says at most {WARMEST_S}", f"give {WARMEST_S}")
    return ok(f"machines are kept for {format_duration(timedelta(seconds=seconds))}")


def room(subject: Subject) -> Check:
    """Environment and tags have room for what Rerail adds."""
    environment = subject.request.get("Environment") or {}
    after, tags = len(environment.keys() | set(OURS)), len(subject.tags.keys() | {RUN_TAG, ATTEMPT_TAG})
    if after > ENVIRONMENT_LIMIT:
        return broken(
            f"Environment has {len(environment)} variables, {after} with ours: at most {ENVIRONMENT_LIMIT} are allowed",
            f"remove {after - ENVIRONMENT_LIMIT}, or no job can be relaunched",
        )
    if tags > TAG_LIMIT:
        return broken(f"it has {len(subject.tags)} tags: SageMaker takes {TAG_LIMIT}", f"remove {tags - TAG_LIMIT}")
    if long := [key for key, value in environment.items() if max(len(key), len(str(value))) > LONGEST_VALUE]:
        return broken(f"Environment: {long[0]} is longer than {LONGEST_VALUE} characters", "shorten it")
    return ok(f"{len(environment)} of {ENVIRONMENT_LIMIT} variables, {len(subject.tags)} of {TAG_LIMIT} tags")


QUESTIONS: tuple[Question[Subject], ...] = (
    supervision,
    name,
    policy,
    metrics,
    agent,
    checkpoints,
    checkpoint_slash,
    logs,
    retries,
    max_runtime,
    keep_alive,
    room,
)


def _flaw(metric: str, expression: str) -> str:
    try:
        groups = compile_expression(expression).groups
    except re.error as error:
        return f"does not compile: {error}"
    return "" if groups else "captures nothing: it has no ( ) around the number"
