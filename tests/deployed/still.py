"""A deployment in which nothing moves by itself: a run trains there, and the functions heed nothing any more."""

from rerail.model.run import RunState
from tests.deployed.jobs import Account

RUN = "my-run"
# The pages name this step of the run.
STEP = 1000
TRUST = '{"Statement": [{"Effect": "Allow", "Principal": {"Service": "sagemaker.amazonaws.com"}}]}'


def set_still(account: Account) -> None:
    """Have a run train and be known, then switch the functions off."""
    account.set_up_for_tests()
    account.aws.client("iam").create_role(RoleName="TrainingRole", AssumeRolePolicyDocument=TRUST)
    # It soon comes to the step and waits: a run that went on saving would take more processor time than the commands.
    account.submit(RUN, steps=1_000_000, HALT_AT=str(STEP), SLOWDOWN="0.25")
    account.run_in(RUN, RunState.WATCHING)
    account.has_saved(RUN, steps=STEP)
    heed(account, False)


def heed(account: Account, heeds: bool) -> None:
    """Whether the functions take what lies in their queues; what was laid there meanwhile they never see."""
    functions, sqs = account.aws.client("lambda"), account.aws.client("sqs")
    for url in _queues(account):
        sqs.purge_queue(QueueUrl=url)
    for mapping in functions.list_event_source_mappings()["EventSourceMappings"]:
        functions.update_event_source_mapping(UUID=mapping["UUID"], Enabled=heeds)
    if heeds:
        _sweep(account)


def _sweep(account: Account) -> None:
    """Let the sweep go round now, for its next minute may be a while off; no alarm misses it any more."""
    account.aws.client("lambda").invoke(FunctionName=account.aws.outputs["SweepFunctionName"], Payload=b"{}")
    alarms = account.aws.client("cloudwatch")
    account.wait("no alarm", lambda: not alarms.describe_alarms(StateValue="ALARM")["MetricAlarms"])
    account.wait("empty queues", lambda: not any(map(account.lies_in, _queues(account))))


def _queues(account: Account) -> list[str]:
    """The queues of the stack, by their URLs."""
    urls: list[str] = account.aws.client("sqs").list_queues(QueueNamePrefix="Rerail")["QueueUrls"]
    return urls
