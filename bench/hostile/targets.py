"""The parsers that meet the outside: which function reads what, from which samples, and how many inputs each gets."""

import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any

from bench.hostile.changes import Change, json_changed, text_changed, toml_changed

ROOT = Path(__file__).resolve().parent.parent.parent
EVENTS = ROOT / "tests" / "events"
RECORDS = ROOT / "tests" / "core" / "data"
LOGS = ROOT / "tests" / "backtest" / "data"

MAIL = {"schema": 1, "run": "gpt", "attempt": 1, "job": "gpt", "at": "2026-01-01T00:00:00+00:00"}
FINDING = {
    "type": "Finding",
    "kind": "loss_spike",
    "level": "warn",
    "step": 3,
    "onset_step": 2,
    "evidence": "a spike",
    "at": MAIL["at"],
    "onset_at": MAIL["at"],
}
REPORT = {**MAIL, "type": "Report", "id": "r1", "told": "hello", "step": 3, "command": "", "abilities": ["skip"]}
FOUND = {**REPORT, "told": "findings", "findings": [FINDING], "restart": 1}
HEARTBEAT = {**MAIL, "type": "Heartbeat", "phase": "step", "step": 3, "loss": 0.5, "step_seconds": 1.5}
COMMAND = {**MAIL, "type": "Command", "id": "c1", "wish": "checkpoint", "asked_at": MAIL["at"]}
COMMAND |= {"deadline": "2026-02-01T00:00:00+00:00"}
MANIFEST = {
    "schema": 1,
    "attempt": 1,
    "step": 10,
    "saved_at": "2026-01-01T00:00:00Z",
    "reason": "periodic",
    "loss": 1.5,
    "files": [{"name": "model.pt", "bytes": 100, "xxh3": "0" * 16}, {"name": "optimizer.pt", "bytes": 200}],
}
LINE = "[1,0]<stdout>:rerail step=60 loss=2.34567891 grad_norm=1.2 lr=0.0003 tokens_per_s=12345 nonfinite=0"
TAGS = {"rerail:policy": "default", "rerail:cluster": "my-cluster", "team": "llm", "aws:x": "y"}
OURS = {**TAGS, "rerail:run": "gpt", "rerail:attempt": "2"}
SETTINGS = {
    "TRAINING_JOB_NAME": "gpt",
    "TRAINING_JOB_ARN": "arn:aws:sagemaker:eu-west-1:111122223333:training-job/gpt",
    "RERAIL_RUN": "gpt",
    "RERAIL_ATTEMPT": "2",
    "RERAIL_RESTART": "1",
    "RERAIL_MAILBOX": "s3://mailbox",
    "RERAIL_POLL_SECONDS": "5",
    "RERAIL_HANG_SECONDS": "300",
    "RERAIL_DETECTION": '{"patience_rows": 40}',
    "RANK": "0",
    "WORLD_SIZE": "8",
    "MASTER_PORT": "29500",
    "AWS_REGION": "eu-west-1",
}
SAVED = {
    **MANIFEST,
    "run": "gpt",
    "consumed_samples": 3,
    "world_size": 8,
    "restart": 0,
    "files": [{"name": "__0_0.distcp", "bytes": 100, "checksum": "xxh3_64:0"}],
}
MACHINE = {"current_host": "algo-2", "hosts": ["algo-1", "algo-2"], "job": "gpt", "told": {"RERAIL_RESTART": "1"}}
TRACEBACK = (
    "[rank1]: Traceback (most recent call last):\n[rank1]:   File 'train.py', line 3\n[rank1]: RuntimeError: CUDA\n"
    "Root Cause (first observed failure):\n  rank : 1 exitcode : 1\n"
    "process rank 1 with PID 7 on node a exited on signal 9"
)
ERROR_FILE = (
    '{"message": {"message": "RuntimeError: no", "extraInfo": {"timestamp": "1700000000", "py_callstack": "a"}}}'
)
TABLE = "step,loss,lr,grad_norm,time\n1,2.5,0.001,1.0,2026-01-01T00:00:00\n2,2.4,0.001,nan,2026-01-01T00:00:05\n3,,,,\n"
CORPUS = (
    "id,group,n_points\none,g,2\n\nrun_id,kind,onset_row,end_row,score,recovered\none,loss_spike,1,2,yes,yes\n\n"
    "step,loss,step_time_s,grad_norm,lr\n1,2.5,1.0,1.0,0.001\n2,nan,,inf,1e-3\n"
)
DEFAULTS = '[submit]\nrole = "Training"\ncount = 2\nspot = true\nexclude = ["*.bin"]\n[submit.tags]\nteam = "llm"\n'
NIGHT = '{"run": "gpt", "severity": "page", "title": "held", "body": "it died", "key": "gpt/1", "type": "Notice"}'


@dataclass(frozen=True, slots=True)
class Target:
    """What is fuzzed: `reader` is module:function, `inputs` its share of a full run, `watched` the modules whose
    branches guide the fuzzer; `longest` are the bytes of its longest input."""

    name: str
    reader: str
    samples: Callable[[], Iterator[bytes]]
    change: Change
    inputs: int
    watched: tuple[str, ...]
    wrapper: str = ""
    longest: int = 20_000

    def load(self) -> Callable[[bytes], None]:
        """The function that reads; it raises what is a defect."""
        module, _, name = self.reader.partition(":")
        read: Callable[[bytes], None] = getattr(import_module(f"bench.hostile.{module}"), name)
        if self.wrapper:
            place, _, wrapper = self.wrapper.partition(":")
            made: Callable[[bytes], None] = getattr(import_module(f"bench.hostile.{place}"), wrapper)(read)
            return made
        return read


def _texts(*texts: str | dict[str, Any]) -> Callable[[], Iterator[bytes]]:
    return lambda: (text.encode() if isinstance(text, str) else json.dumps(text).encode() for text in texts)


def _files(folder: Path, *patterns: str) -> Callable[[], Iterator[bytes]]:
    return lambda: (path.read_bytes() for pattern in patterns for path in sorted(folder.glob(pattern)))


def _failures() -> Iterator[bytes]:
    for line in (RECORDS / "failures_written.jsonl").read_text().splitlines():
        yield json.loads(line)["text"].encode()
    yield json.dumps({"rerail": 1, "cause": "data", "error": "no file", "step": 3, "exit_code": 1}).encode()
    yield from (TRACEBACK.encode(), ERROR_FILE.encode())


def _batches() -> Iterator[bytes]:
    from bench.hostile.healthy import samples

    yield from (json.dumps(each).encode() for each in samples())


def _lines() -> Iterator[bytes]:
    from bench.hostile.commands import samples

    yield from (json.dumps(each).encode() for each in samples())


def _learnt() -> Iterator[bytes]:
    from bench.hostile.agents import learnt_samples

    yield from learnt_samples()


def _records() -> Iterator[bytes]:
    yield from (path.read_bytes() for path in sorted(RECORDS.glob("run-*.json")))


def _items() -> Iterator[bytes]:
    """Answers of the table, with records that a change of the answer changes too."""
    for record in _records():
        row = {"pk": {"S": "run#gpt"}, "sk": {"S": "run"}, "version": {"N": "3"}, "doc": {"S": json.loads(record)}}
        yield json.dumps({"Items": [row], "Item": row}).encode()


def _memories() -> Iterator[bytes]:
    watch = {"type": "Watch", "pulse": {"type": "Pulse", "phase": "step", "since": MAIL["at"], "step": 3}}
    memory = {"schema": 1, "type": "Memory", "run": "gpt", "cursor": {"type": "Cursor", "job": "gpt"}, "watch": watch}
    row = {"pk": {"S": "watch#gpt"}, "sk": {"S": "watch"}, "version": {"N": "3"}, "doc": {"B": memory}}
    cluster = {"schema": 1, "type": "ClusterRecord", "cluster": "cluster", "version": 3, "parts": {}}
    yield json.dumps({"Responses": {"Runs": [row]}, "UnprocessedKeys": {}}).encode()
    yield json.dumps({"Items": [{**row, "doc": {"S": cluster}}], "Item": {**row, "doc": {"S": cluster}}}).encode()


def _target(name: str, reader: str, samples: Any, change: Change, inputs: int, *watched: str, **more: Any) -> Target:
    return Target(name, reader, samples, change, inputs, watched, **more)


MESSAGE = ("rerail.messages.messages", "rerail.model.codec", "rerail.model.mailbox", "rerail.model.finding")
CLEARLY, VALUE, TOLD = "parsers:clearly", "parsers:value", "files:told"
STREAMS = {"logStreams": [{"logStreamName": "gpt/algo-1-1700000000"}, {"logStreamName": "gpt/algo-2-1700000000"}]}
EVENTS_READ = {"events": [{"timestamp": 1700000000000, "message": LINE}], "nextForwardToken": "f/1"}
POINTS = {"Id": "q0", "StatusCode": "Complete", "Timestamps": [1769860620, 1769860680], "Values": [1.0, 2.0]}
SUMMARY = {"TrainingJobName": "gpt", "TrainingJobArn": "arn", "CreationTime": 1769860620, "TrainingJobStatus": "Failed"}
LISTING = (
    '<?xml version="1.0"?><ListBucketResult><IsTruncated>false</IsTruncated>'
    + "".join(
        f"<Contents><Key>gpt/{key}</Key><LastModified>2026-01-31T12:00:00.000Z</LastModified><ETag>&quot;e&quot;</ETag>"
        f"<Size>{size}</Size></Contents>"
        for key, size in (("KEYS", 100),)
    )
    + "</ListBucketResult>"
)


def _listing(*keys: str, text: str = "") -> str:
    """An S3 listing of these objects, and what is in those that are read."""
    row = LISTING[LISTING.index("<Contents>") : LISTING.index("</ListBucketResult>")]
    rows = "".join(row.replace("KEYS", key) for key in keys)
    return f"{LISTING.replace(row, rows)}\n\n{text}"


OURS_SAVED = _listing("step-000000010/model.pt", "step-000000010/manifest.json", text=json.dumps(MANIFEST))
HF_SAVED = _listing("checkpoint-10/model.safetensors", "checkpoint-10/trainer_state.json", "checkpoint-20/optimizer.pt")
MEGATRON_SAVED = _listing("iter_0000010/a.pt", "iter_0000020/a.pt", "latest_checkpointed_iteration.txt", text="20")
LIGHTNING_SAVED = _listing("epoch=1-step=10.ckpt", "epoch=1-step=20.ckpt", "last.ckpt")

PARSERS = (
    _target(
        "event of SageMaker",
        "parsers:message",
        _files(EVENTS, "training_*", "other_p*"),
        json_changed,
        80_000,
        *MESSAGE,
        wrapper=CLEARLY,
    ),
    _target(
        "event of an alarm",
        "parsers:message",
        _files(EVENTS, "*alarm*"),
        json_changed,
        80_000,
        *MESSAGE,
        wrapper=CLEARLY,
    ),
    _target(
        "event of the mailbox",
        "parsers:message",
        _files(EVENTS, "report_*"),
        json_changed,
        80_000,
        *MESSAGE,
        wrapper=CLEARLY,
    ),
    _target(
        "wake-up of the sweep",
        "parsers:message",
        _texts(
            {"source": "rerail.sweep", "detail": {"run": "gpt", "job": "gpt", "findings": [FINDING]}},
            {"source": "rerail.sweep", "detail": {"run": "gpt"}},
        ),
        json_changed,
        100_000,
        *MESSAGE,
        wrapper=CLEARLY,
    ),
    _target(
        "operator's command",
        "parsers:message",
        _files(EVENTS, "operator_*"),
        json_changed,
        80_000,
        *MESSAGE,
        wrapper=CLEARLY,
    ),
    _target(
        "event of HyperPod, told",
        "parsers:cluster_event",
        _files(EVENTS, "hyperpod_*", "other_h*"),
        json_changed,
        30_000,
        "rerail.messages.cluster_events",
        "rerail.hyperpod.clusters",
        "rerail.notices.notice",
        wrapper=CLEARLY,
    ),
    _target(
        "report",
        "parsers:report",
        _texts(REPORT, FOUND),
        json_changed,
        150_000,
        *MESSAGE,
        wrapper=CLEARLY,
        longest=80_000,
    ),
    _target("heartbeat", "parsers:heartbeat", _texts(HEARTBEAT), json_changed, 120_000, *MESSAGE, wrapper=CLEARLY),
    _target("command", "parsers:command", _texts(COMMAND), json_changed, 80_000, *MESSAGE, wrapper=CLEARLY),
    _target(
        "manifest",
        "parsers:manifest",
        _texts(MANIFEST),
        json_changed,
        120_000,
        "rerail.model.checkpoints",
        wrapper=CLEARLY,
    ),
    _target(
        "policy",
        "parsers:policy",
        _files(ROOT / "policies", "*.toml"),
        toml_changed,
        40_000,
        "rerail.model.policy",
        wrapper=CLEARLY,
    ),
    _target(
        "pause", "parsers:pause", _texts("on", "off"), text_changed, 5_000, "rerail.supervisor.pause", wrapper=CLEARLY
    ),
    _target(
        "fall-back",
        "parsers:fallback",
        _texts("ml.p4d.24xlarge ml.p5.48xlarge subnet-1"),
        text_changed,
        20_000,
        "rerail.model.machines",
        wrapper=VALUE,
    ),
    _target(
        "ranges of samples",
        "parsers:ranges",
        _texts("0-99,200-300"),
        text_changed,
        20_000,
        "rerail.model.skipped_samples",
        wrapper=VALUE,
    ),
    _target(
        "tags and enrolment",
        "parsers:tags",
        _texts({"Tags": TAGS}, {"Tags": OURS}),
        json_changed,
        80_000,
        "rerail.decisions.adoption",
        "rerail.decisions.reconcile",
        "rerail.requests.relaunch",
    ),
    _target(
        "record of a run", "parsers:stored_run", _records, json_changed, 40_000, "rerail.model.codec", wrapper=CLEARLY
    ),
    _target("records of detectors", "parsers:stored_memory", _records, json_changed, 10_000, "rerail.model.codec"),
    _target("failure reason", "parsers:failure", _failures, text_changed, 20_000, "rerail.diagnosis.classify"),
    _target(
        "metric line",
        "parsers:metric_line",
        _texts(LINE, f"{LINE} {LINE}"),
        text_changed,
        80_000,
        "rerail.model.metrics",
    ),
    _target(
        "notice, in all its forms",
        "parsers:notice",
        _texts(NIGHT),
        json_changed,
        20_000,
        "rerail.notices.notice",
        "rerail.notices.notifiers",
        wrapper=CLEARLY,
    ),
)
AGENTS = (
    _target(
        "command, in a job",
        "agents:command",
        _texts(COMMAND),
        json_changed,
        80_000,
        "rerail_agent.commands",
        "rerail.model.mailbox",
        "rerail.model.codec",
    ),
    _target(
        "environment of a job",
        "agents:environment",
        _texts(SETTINGS),
        json_changed,
        40_000,
        "rerail_agent.identity",
        "rerail_agent.settings",
    ),
    _target(
        "files of a machine",
        "agents:machine",
        _texts(MACHINE),
        json_changed,
        20_000,
        "rerail_agent.init_channel",
        "rerail_agent.in_place_restarts",
    ),
    _target(
        "manifest, in a job",
        "agents:manifest",
        _texts(SAVED),
        json_changed,
        40_000,
        "rerail_agent.checkpoints.manifest",
        "rerail_agent.checkpoints.snapshot_label",
    ),
    _target(
        "last words of a script",
        "agents:failure",
        _failures,
        text_changed,
        6_000,
        "rerail_agent.exit_report",
        "rerail_agent.failure",
    ),
    _target(
        "values that a script logs",
        "agents:logged",
        _texts({"loss": 2.5, "accuracy": 0.5, "note": "a b"}),
        json_changed,
        40_000,
        "rerail_agent.telemetry",
    ),
    _target("saved state of detectors", "agents:learnt", _learnt, json_changed, 5_000, "rerail_agent.detection"),
)
FILES = (
    _target(
        "CSV to backtest",
        "files:table",
        _texts(TABLE),
        text_changed,
        10_000,
        "cli.backtest.tables",
        "cli.backtest.series",
        wrapper=TOLD,
    ),
    _target("gzipped CSV", "files:zipped", _texts(TABLE), text_changed, 5_000, "cli.backtest.tables", wrapper=TOLD),
    _target(
        "trainer_state.json",
        "files:trainer_state",
        _files(LOGS, "trainer_state.json"),
        json_changed,
        5_000,
        "cli.backtest.trainer",
        wrapper=TOLD,
    ),
    _target("corpus of logs", "files:corpus", _texts(CORPUS), text_changed, 10_000, "bench.logs", wrapper=TOLD),
    _target(
        "TensorBoard events",
        "files:events",
        _texts("\x01\x00\x00\x00\x00\x00\x00\x00abcd"),
        text_changed,
        2_000,
        "cli.backtest.tensorboards",
        wrapper=TOLD,
    ),
    _target(
        "policy's file", "files:policy_file", _files(ROOT / "policies", "*.toml"), toml_changed, 5_000, "cli.policies"
    ),
    _target(
        "rerail.toml", "files:defaults", _texts(DEFAULTS), toml_changed, 20_000, "cli.submit.defaults", wrapper=TOLD
    ),
    _target(
        "request for the doctor",
        "files:request",
        _files(RECORDS, "describe_*.json"),
        json_changed,
        10_000,
        "cli.doctor.subject",
    ),
    _target(
        "lines of a job's log",
        "files:log_lines",
        _texts(LINE, "step 3 loss: 2.5"),
        text_changed,
        50_000,
        "cli.losses",
        "cli.logbook",
        "cli.backtest.jobs",
    ),
    _target(
        "arguments of a script",
        "files:arguments",
        _texts("--lr\n1e-3\n-n\n4", "--a=b\n--c\n007"),
        text_changed,
        20_000,
        "cli.submit.arguments",
        wrapper=TOLD,
    ),
)
ANSWERS = (
    _target(
        "DescribeTrainingJob",
        "answers:described",
        _files(RECORDS, "describe_*.json"),
        json_changed,
        15_000,
        "rerail.aws.sagemaker",
        "rerail.model.machines",
        "rerail.model.self_repairs",
        "rerail.requests.relaunch",
    ),
    _target(
        "ListTags",
        "answers:tagged",
        _texts({"Tags": [{"Key": k, "Value": v} for k, v in TAGS.items()]}),
        json_changed,
        10_000,
        "rerail.aws.sagemaker",
        "rerail.decisions.adoption",
    ),
    _target(
        "ListTrainingJobs",
        "answers:listed",
        _texts({"TrainingJobSummaries": [SUMMARY, SUMMARY]}),
        json_changed,
        8_000,
        "rerail.aws.sagemaker",
    ),
    _target(
        "refusals of SageMaker",
        "answers:refused",
        _texts({"__type": "ValidationException", "message": "no"}, {"__type": "ResourceLimitExceeded", "message": "x"}),
        json_changed,
        8_000,
        "rerail.aws.sagemaker",
    ),
    _target(
        "GetMetricData",
        "answers:metrics",
        _texts({"MetricDataResults": [POINTS, {**POINTS, "Id": "q1"}]}),
        json_changed,
        10_000,
        "rerail.aws.cloudwatch",
    ),
    _target(
        "logs of jobs",
        "answers:logs",
        _texts(f"{json.dumps(STREAMS)}\n\n{json.dumps(EVENTS_READ)}"),
        text_changed,
        8_000,
        "rerail.aws.logs",
    ),
    _target(
        "GetParameter",
        "answers:parameters",
        _texts({"Parameter": {"Name": "n", "Value": 'mode = "act"'}}),
        json_changed,
        10_000,
        "rerail.aws.ssm",
    ),
    _target(
        "runs in the table",
        "answers:stored",
        _items,
        json_changed,
        8_000,
        "rerail.aws.dynamodb",
        "rerail.aws.records",
        "rerail.sweep.sweep",
    ),
    _target(
        "memories in the table",
        "answers:remembered",
        _memories,
        json_changed,
        8_000,
        "rerail.aws.detector_states",
        "rerail.aws.records",
        "rerail.aws.hyperpod",
        "rerail.aws.rate_limit",
    ),
    _target(
        "checkpoint folder in S3",
        "answers:folder",
        _texts(OURS_SAVED, HF_SAVED, MEGATRON_SAVED, LIGHTNING_SAVED),
        text_changed,
        15_000,
        "rerail.aws.s3",
        "rerail.model.checkpoint_layouts",
        "rerail.decisions.quarantine",
    ),
    _target("mailbox in S3", "answers:mail", _texts(REPORT, HEARTBEAT), json_changed, 8_000, "rerail.aws.mailbox"),
    _target(
        "answers to what is sent",
        "answers:taken",
        _texts({"FailedEntryCount": 1, "Entries": [{"ErrorCode": "x", "ErrorMessage": "y"}], "Failed": [{"Id": "0"}]}),
        json_changed,
        8_000,
        "rerail.aws.eventbridge",
        "rerail.aws.sqs",
        "rerail.aws.sns",
    ),
)
LOOP = (
    _target(
        "messages about a healthy job",
        "healthy:batch",
        _batches,
        json_changed,
        25_000,
        "rerail.supervisor.supervisor",
        "rerail.decisions.on_report",
        "rerail.decisions.on_finding",
        "rerail.detection.evaluate",
        "rerail.detection.heartbeats",
    ),
)
COMMANDS = (
    _target(
        "command line",
        "commands:line",
        _lines,
        json_changed,
        12_000,
        "cli.names",
        "cli.runs",
        "cli.operators",
        "cli.submit",
    ),
)
TARGETS = {each.name: each for each in (*LOOP, *COMMANDS, *ANSWERS, *PARSERS, *AGENTS, *FILES)}
