"""All that can happen to runs, in a local AWS with every choice made: what the proof of the permissions looks at."""

import json
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeVar

from bench.noted import STACK, instrument, read_calls
from cli import place
from cli.demo.stage import hasty
from local import deploy
from local.emulator import ACCOUNT, REGION
from local.stack import ROOT, LocalAws
from rerail.decisions.quarantine import PLACE
from rerail.model.policy import parse_policy, to_toml
from rerail.requests.relaunch import CLUSTER_TAG
from rerail.sweep.shards import ENOUGH
from tests.deployed.jobs import AGENT, BUCKET, LOSSES, Account

SCRIPT = Path(__file__).parent / "plain_job.py"
CRASHING = ROOT / "tests" / "deployed" / "crashing_script.py"
EVENTS = ROOT / "tests" / "events"
SCALE, SWEEPS = 60.0, 60.0
PATIENCE_S = 60.0
# Scripts of other people: how each names a save, what it calls the last one, and its text where that is a pointer.
LAYOUTS = {
    "of-deepspeed": ("global_step{}/mp_rank_00_model_states.pt", "latest", "global_step120"),
    "of-megatron": ("iter_{:07d}/model_optim_rng.pt", "latest_checkpointed_iteration.txt", "120"),
    "of-lightning": ("step={}.ckpt", "last.ckpt", ""),
}
# Of another type than the rest, so that nobody else takes the machines over.
OTHER_KEPT = {"KeepAlivePeriodInSeconds": 3600, "InstanceType": "ml.m5.xlarge"}
KEY = f"arn:aws:kms:{REGION}:{ACCOUNT}:key/of-the-checkpoints"
# Every choice of cdk.json that adds a permission. Nobody outside of this machine is told: see `Stage.__init__`.
CHOICES: Mapping[str, Any] = {
    "asideBuckets": [BUCKET],
    "checkpointKeyArns": [KEY],
    "chat": True,
    "pagerDutySecret": "rerail/pagerduty",
    "webhookUrl": "https://hooks.example.com/hook",
    "webhookSecret": "rerail/webhook",
    "reportLinks": "signed",
}
T = TypeVar("T")


class Stage:
    """A local AWS with every choice made, and runs to which things happen."""

    def __init__(self, aws: LocalAws, folder: Path) -> None:
        self.aws, self.calls = aws, folder / "calls.jsonl"
        for name in ("rerail/pagerduty", "rerail/webhook"):
            aws.client("secretsmanager").create_secret(Name=name, SecretString=f"made up for {name}")
        assembly = deploy.synthesize(ROOT, place.SYNTHESES, context=CHOICES)
        aws.redeployed(deploy.deploy(assembly, STACK, aws.client))
        events, bus = aws.client("events"), aws.outputs["BusName"]
        for rule in events.list_rules(EventBusName=bus)["Rules"]:
            targets = events.list_targets_by_rule(Rule=rule["Name"], EventBusName=bus)["Targets"]
            if any(":api-destination/" in target["Arn"] for target in targets):
                events.disable_rule(Name=rule["Name"], EventBusName=bus)  # it would leave this machine
        self.account = Account(aws)
        self.account.set_up()
        self.runs, self.s3, self.ssm = self.account.runs, aws.client("s3"), aws.client("ssm")
        self._tell_policies()
        instrument(aws, self.calls)

    def _tell_policies(self) -> None:
        """Besides the one of the suite: one that asks first, one that restarts in place, one with a brake."""
        prefix = self.aws.outputs["PolicyPrefix"]
        default = parse_policy(self._parameter(f"{prefix}/default"), name="default")
        asking = to_toml(default).replace('mode = "act"', 'mode = "approve"')
        act = self._parameter(f"{prefix}/observe").replace('"observe"', '"act"')
        in_place = hasty(parse_policy(act, name="in-place"), SCALE)
        in_place = replace(in_place, restart=replace(in_place.restart, in_place=True))
        for name, text in {"asking": asking, "in-place": to_toml(in_place)}.items():
            self.ssm.put_parameter(Name=f"{prefix}/{name}", Value=text, Type="String", Overwrite=True)

    def _parameter(self, name: str) -> str:
        return str(self.ssm.get_parameter(Name=name)["Parameter"]["Value"])

    def say(self, run: str, verb: str, **more: Any) -> None:
        """As an operator's command says it."""
        detail = {"run": run, "verb": verb, "who": "bench", "why": "to see which calls it makes", **more}
        entry = {"Source": "rerail.operator", "DetailType": "Rerail Command", "Detail": json.dumps(detail)}
        self.aws.client("events").put_events(Entries=[{**entry, "EventBusName": self.aws.outputs["BusName"]}])

    def begin(self) -> None:
        """All jobs at once: most of what happens to them is waiting."""
        submit, mailbox = self.account.submit, self.aws.outputs["MailboxBucket"]
        plain: dict[str, Any] = {"script": SCRIPT, "steps": 100_000}
        submit("crashed", steps=1000, machines={"KeepAlivePeriodInSeconds": 3600})
        submit("broken", script=SCRIPT, steps=60, BREAKS_AT="20", machines=OTHER_KEPT)
        submit("asked", script=AGENT, steps=120, DURABILITY="remote", MAILBOX=mailbox, BUCKET=BUCKET)
        submit("diverged", script=LOSSES, steps=700, FAULT="nan", FAULT_STEP="120")
        submit("held", BUG_AT="30")
        submit("mistyped", policy="defualt", BUG_AT="30")
        submit("not-ours", policy=None, steps=50)
        submit("asking", policy="asking", steps=100_000)
        submit("needs-a-pod", tags={CLUSTER_TAG: "pod"}, **plain)
        submit("alarmed", **plain)
        mine: dict[str, Any] = {"RERAIL_MAILBOX": f"s3://{mailbox}", "RERAIL_POLL_SECONDS": "1"}
        submit("in-place", policy="in-place", script=CRASHING, steps=120, **mine)
        for run in LAYOUTS:
            self._lay_saves(run)
            submit(run, **plain)

    def _lay_saves(self, run: str) -> None:
        """What a script of somebody else's leaves: three saves, uploaded in parts, and what names or is the last one;
        and uploads that an earlier turn has begun and not ended."""
        name, pointer, text = LAYOUTS[run]
        for step in (40, 80, 120):
            key = f"{run}/{name.format(step)}"
            self._put_in_a_part(key, str(step).zfill(4).encode() * 250)
        self._begin_upload(f"{PLACE}{run}/a001/{name.format(120)}")
        if text:
            self.s3.put_object(Bucket=BUCKET, Key=f"{run}/{pointer}", Body=text.encode())
        else:  # the last save once more
            self._put_in_a_part(f"{run}/{pointer}", b"0120" * 250)
            self._begin_upload(f"{run}/{pointer}")

    def _begin_upload(self, key: str) -> str:
        return str(self.s3.create_multipart_upload(Bucket=BUCKET, Key=key)["UploadId"])

    def _put_in_a_part(self, key: str, body: bytes) -> None:
        where = {"Bucket": BUCKET, "Key": key, "UploadId": self._begin_upload(key)}
        parts = [{"PartNumber": 1, "ETag": self.s3.upload_part(**where, PartNumber=1, Body=body)["ETag"]}]
        self.s3.complete_multipart_upload(**where, MultipartUpload={"Parts": parts})

    @property
    def acts(self) -> Sequence[tuple[str, Callable[[], Any]]]:
        """What happens, and how."""
        return (
            ("a job is killed and followed in its warm pool", self._crash),
            ("HyperPod speaks of a node", self._hyperpod),
            ("an alarm of the user's goes off", self._alarm),
            ("an operator rolls back a script without an agent", self._roll_back),
            ("a relaunch is approved", self._approve),
            ("a bug holds a run, and it is released", self._hold_and_release),
            ("a bad machine is given back", lambda: self._at_rest("broken")),
            ("a slow job saves for an emergency", lambda: self._at_rest("asked")),
            ("a crash is mended in place", lambda: self._at_rest("in-place")),
            ("a loss that is no number is rolled back", lambda: self._at_rest("diverged")),
            ("a mistyped policy observes", lambda: self._in("mistyped", "held")),
            ("every event is lost", self._lose_events),
            ("the account is paused and resumed", self._pause_and_resume),
            ("the report of a run that ended is drawn", self._report),
            ("the fleet is too large for one invocation", self._crowd),
        )

    def _crash(self) -> None:
        self.account.has_saved("crashed", steps=20)
        self.account.inject("kill", TrainingJobName="crashed")
        self._at_rest("crashed")

    def _hyperpod(self) -> None:
        self._watching("needs-a-pod")
        for name in ("node_unhealthy", "node_healthy"):
            event = json.loads((EVENTS / f"hyperpod_{name}.json").read_text().replace("sample-cluster", "pod"))
            told = {"DetailType": event["detail-type"], "Detail": event["detail"], "Resources": event["resources"]}
            self.account.inject("event", **told)
        self._until("the page", lambda: self._made("hyperpod.keep") >= 2)
        self._stop("needs-a-pod")

    def _alarm(self) -> None:
        self._watching("alarmed")
        cloudwatch = self.aws.client("cloudwatch")
        cloudwatch.put_metric_alarm(
            AlarmName="loss-too-high",
            Namespace="/aws/sagemaker/TrainingJobs",
            MetricName="loss",
            Dimensions=[{"Name": "TrainingJobName", "Value": "alarmed"}],
            Statistic="Maximum",
            Period=60,
            EvaluationPeriods=1,
            Threshold=1e9,
            ComparisonOperator="GreaterThanThreshold",
            TreatMissingData="ignore",
        )
        cloudwatch.set_alarm_state(AlarmName="loss-too-high", StateValue="ALARM", StateReason="it is")
        self._until("the alarm", lambda: [e for e in self.runs.timeline("alarmed") if e.finding == "alarm"])
        self._stop("alarmed")

    def _roll_back(self) -> None:
        """To the first save: two go aside, one into an upload that was begun, one into a new one."""
        for run in LAYOUTS:
            self._watching(run)
            self.say(run, "rollback", step=40)
        for run in LAYOUTS:
            self._at_attempt(run, 2)
            self._watching(run)
            self._stop(run)

    def _approve(self) -> None:
        self.account.has_saved("asking", steps=20)
        self.account.inject("kill", TrainingJobName="asking")
        asked: Any = self._until("the question", lambda: (run := self.runs.load("asking")) and run.proposal)
        self.say("asking", "approve", proposal=asked.id)
        self._at_attempt("asking", 2)
        self._watching("asking")
        self._stop("asking")

    def _hold_and_release(self) -> None:
        self._in("held", "held")
        self.say("held", "release")
        self._at_attempt("held", 3)
        self._in("held", "held")
        self.say("held", "stop")
        self._in("held", "stopped")

    def _lose_events(self) -> None:
        self.account.inject("events", Loss=1)
        try:
            self.account.submit("unheard-of", steps=60)
            self._watching("unheard-of")
            self.account.inject("internal_error", TrainingJobName="unheard-of")
            self._at_rest("unheard-of")
        finally:
            self.account.inject("events", Loss=0)

    def _pause_and_resume(self) -> None:
        self.ssm.put_parameter(Name="/rerail/switch", Value="off", Type="String", Overwrite=True)
        self.account.submit("paused", steps=100)
        self._watching("paused")
        self._stop("paused")
        self.ssm.put_parameter(Name="/rerail/switch", Value="on", Type="String", Overwrite=True)

    def _report(self) -> None:
        self._until("a page with its log", lambda: self._made("logs._call") >= 4 and self._made("report_pages.keep"))

    def _crowd(self) -> None:
        """More open runs than one invocation takes, in one part of the index; of a version that nobody can read, so
        that nothing else is asked about them."""
        dynamodb, table = self.aws.client("dynamodb"), self.aws.outputs["TableName"]
        filler = {"sk": {"S": "run"}, "doc": {"S": "{}"}, "version": {"N": "1"}, "state": {"S": "watching"}}
        for start in range(0, ENOUGH, 25):
            items = [
                {"pk": {"S": f"run#filler-{number}"}, **filler, "open": {"S": "open#0"}}
                for number in range(start, start + 25)
            ]
            dynamodb.batch_write_item(RequestItems={table: [{"PutRequest": {"Item": item}} for item in items]})
        self._until("a share that was handed on", lambda: self._made("shards.hand_on"))
        self._until("what a share has seen", lambda: self._made("shards.keep") and self._made("shards._items"))

    def _made(self, site: str) -> int:
        return sum(call.site == site for call in read_calls(self.calls))

    def _at_attempt(self, name: str, number: int) -> None:
        """Its job of this attempt is there."""
        begun = lambda: (run := self.runs.load(name)) and run.current.number == number and run.current.exists  # noqa: E731
        self._until(f"attempt {number} of {name}", begun)

    def _watching(self, name: str) -> None:
        self._in(name, "watching")

    def _in(self, name: str, *states: str) -> None:
        self._until(f"{name} in {states}", lambda: (run := self.runs.load(name)) and run.state in states)

    def _at_rest(self, name: str) -> None:
        self._until(
            f"the end of {name}", lambda: (run := self.runs.load(name)) and run.state.is_end and not run.pending
        )

    def _stop(self, name: str) -> None:
        run = self.runs.load(name)
        assert run
        self.account.sagemaker.stop_training_job(TrainingJobName=run.current.job_name)
        self._at_rest(name)

    def _until(self, what: str, look: Callable[[], T | None]) -> T:
        end = time.monotonic() + PATIENCE_S
        while time.monotonic() < end:
            if found := look():
                return found
            time.sleep(0.2)
        raise TimeoutError(f"{what} did not come within {PATIENCE_S:g} s; {self.account.story()}")
