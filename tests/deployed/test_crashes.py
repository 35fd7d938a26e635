"""A run survives AWS calls that are refused, lost, killed or hang, one in each phase of its life."""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from local.pace import Pace
from tests.deployed.conftest import ASSEMBLIES
from tests.deployed.jobs import AGENT, BUCKET, Account, NotificationQueue, apart, patient

pytestmark = pytest.mark.slow
HOOK = Path(__file__).parent / "fault_hook"
SCALE = 300.0
# As the policy's durations: faster than that a busy machine passes for a stall.
SWEEPS = 60.0
# After that a message whose function has died comes back, at reference speed; on AWS it takes minutes.
VISIBLE_AGAIN_S = 6
RUN = "survivor"
# The call that fails in each phase, and how.
ADOPTION = ("supervise events:PutEvents", "InternalServerError")
HANDSHAKE = ("supervise sagemaker:StopTrainingJob", "answer lost")
RECOVERY = ("supervise sagemaker:CreateTrainingJob", "killed after")
COMPLETION = ("notify sns:Publish", "hangs")


class BrokenAws:
    """An account whose functions have the hook."""

    def __init__(self, account: Account, folder: Path) -> None:
        self.account, self.folder = account, folder
        folder.mkdir()
        self._shorten_waits()
        self._install_hook()

    def _shorten_waits(self) -> None:
        """Let messages return sooner: queues keep real time in the local AWS."""
        sqs, visible_again_s = self.account.aws.client("sqs"), round(self.account.pace.real(VISIBLE_AGAIN_S))
        for url in sqs.list_queues().get("QueueUrls", []):
            found = sqs.get_queue_attributes(QueueUrl=url, AttributeNames=["All"])["Attributes"]
            if "RedrivePolicy" in found:
                times = {"VisibilityTimeout": visible_again_s, "DelaySeconds": int(found["DelaySeconds"]) // 15}
                sqs.set_queue_attributes(QueueUrl=url, Attributes={name: str(value) for name, value in times.items()})

    def _install_hook(self) -> None:
        functions = self.account.aws.client("lambda")
        for function in functions.list_functions()["Functions"]:
            variables = function.get("Environment", {}).get("Variables", {})
            hook = {"PYTHONPATH": str(HOOK), "FAULT_FOLDER": str(self.folder), "FAULT_TIMEOUT": "2"}
            functions.update_function_configuration(
                FunctionName=function["FunctionName"], Environment={"Variables": variables | hook}
            )

    def break_call(self, call: str, how: str) -> None:
        """Let the next such call for the run fail."""
        partial = self.folder / f"{call.rpartition(':')[2]}.partial"
        partial.write_text(json.dumps({"call": call, "how": how, "run": RUN}))
        partial.rename(partial.with_suffix(".json"))

    def left_faults(self) -> list[str]:
        """Return the faults that no call has met."""
        return [path.stem for path in self.folder.glob("*.json")]


@pytest.fixture(scope="module")
def broken(tmp_path_factory: pytest.TempPathFactory, pace: Pace) -> Iterator[BrokenAws]:
    """A local AWS of its own: its workers are killed."""
    folder = tmp_path_factory.mktemp("crashes")
    scale, sweeps = SCALE / pace.slowdown, SWEEPS / pace.slowdown
    with apart(folder / "aws", scale=scale, schedule_scale=sweeps, assemblies=ASSEMBLIES) as aws:
        account = Account(aws, pace)
        account.set_up(lambda policy: patient(policy, pace))
        yield BrokenAws(account, folder / "faults")


def test_a_run_survives_a_broken_call_in_each_of_its_phases(broken: BrokenAws, tmp_path: Path):
    """It has the jobs of an undisturbed run, one at a time; no checkpoint is lost, and people are told."""
    account = broken.account
    notices = NotificationQueue(account, "people", "PageTopicArn", "InformTopicArn")
    broken.break_call(*ADOPTION)
    broken.break_call(*HANDSHAKE)
    places = {"MAILBOX": account.aws.outputs["MailboxBucket"], "BUCKET": BUCKET, "UNTIL": str(tmp_path / "enough")}
    account.submit(RUN, script=AGENT, steps=1, **places)
    await_attempt(account, 2)
    assert broken.left_faults() == []
    broken.break_call(*RECOVERY)
    account.inject("kill", TrainingJobName=f"{RUN}-a002")
    await_attempt(account, 3)
    assert broken.left_faults() == []
    broken.break_call(*COMPLETION)
    (tmp_path / "enough").touch()
    run = account.run_in(RUN, "completed")
    account.wait("the notices", lambda: notices.received("relaunching") and notices.received("completed"))
    assert broken.left_faults() == []
    assert account.jobs(RUN) == [RUN, f"{RUN}-a002", f"{RUN}-a003"]
    jobs = [account.sagemaker.describe_training_job(TrainingJobName=name) for name in account.jobs(RUN)]
    for before, after in zip(jobs, jobs[1:], strict=False):
        assert before["TrainingEndTime"] <= after["CreationTime"], "two jobs at once"
    # Only the emergency checkpoint was saved: both successors resume from it, and it is still there.
    step = run.current.resumed_from_step
    assert step > 0
    assert [job["Environment"].get("RERAIL_RESUME_STEP", "0") for job in jobs] == ["0", str(step), str(step)]
    account.has_saved(RUN, steps=step)
    assert account.dead_letters() == []


def await_attempt(account: Account, number: int) -> None:
    """Wait until this attempt is watched and has nothing pending."""

    def is_watched() -> bool:
        run = account.runs.load(RUN)
        assert run is None or run.state != "held", account.describe()
        return run is not None and (run.current.number, run.state, run.pending) == (number, "watching", ())

    account.wait(f"attempt {number}", is_watched)


def test_a_dead_letter_pages(broken: BrokenAws):
    account = broken.account
    pages = NotificationQueue(account, "letters", "PageTopicArn")
    sqs = account.aws.client("sqs")
    (url,) = [url for url in sqs.list_queues(QueueNamePrefix="Rerail-Signals")["QueueUrls"] if "DeadLetters" in url]
    sqs.send_message(QueueUrl=url, MessageBody="a letter")
    account.wait("the page", lambda: [page for page in pages.received("ALARM") if url.rpartition("/")[2] in str(page)])
    assert account.dead_letters() == [url.rpartition("/")[2]]
