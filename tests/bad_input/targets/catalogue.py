"""The parsers that meet the outside: which function reads what, from which samples, and how many inputs each gets."""

import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any

from tests.bad_input.targets.changes import Change, json_changed, text_changed, toml_changed

ROOT = Path(__file__).resolve().parents[3]
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
REPORT = {**MAIL, "type": "Report", "id": "r1", "kind": "hello", "step": 3, "command": "", "abilities": ["skip"]}
FOUND = {**REPORT, "kind": "findings", "findings": [FINDING], "restart": 1}
HEARTBEAT = {**MAIL, "type": "Heartbeat", "phase": "step", "step": 3, "loss": 0.5, "step_seconds": 1.5}
CALLBACK = {"token": "AbCdE12345", "arguments": {"job": "gpt", "on_hold": "wait"}, "status": "Executing"}
CALLBACK |= {"pipelineExecutionArn": "arn:aws:sagemaker:eu-west-1:1:pipeline/nightly/execution/abc"}
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
    "RERAIL_DETECTION": '{"patience_rows": 40, "planned": [{"step": 20000, "what": "longer"}]}',
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
    """A parser under test: `reader` is module:function in this folder, `inputs` the number of a full run, `longest` the
    bytes of its longest input."""

    name: str
    reader: str
    samples: Callable[[], Iterator[bytes]]
    inputs: int
    wrapper: str = ""
    change: Change = json_changed
    longest: int = 20_000

    def load(self) -> Callable[[bytes], None]:
        """The function that reads; it raises what is a defect."""
        module, _, name = self.reader.partition(":")
        read: Callable[[bytes], None] = getattr(import_module(f"tests.bad_input.targets.{module}"), name)
        if self.wrapper:
            place, _, wrapper = self.wrapper.partition(":")
            made: Callable[[bytes], None] = getattr(import_module(f"tests.bad_input.targets.{place}"), wrapper)(read)
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
    from tests.bad_input.targets.healthy import samples

    yield from (json.dumps(sample).encode() for sample in samples())


def _lines() -> Iterator[bytes]:
    from tests.bad_input.targets.commands import samples

    yield from (json.dumps(sample).encode() for sample in samples())


def _learnt() -> Iterator[bytes]:
    from tests.bad_input.targets.agents import learnt_samples

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


CLEARLY, VALUE, REMEDY = "parsers:clearly", "parsers:value", "files:with_remedy"
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
    Target("event of SageMaker", "parsers:message", _files(EVENTS, "training_*", "other_p*"), 80000, CLEARLY),
    Target("event of an alarm", "parsers:message", _files(EVENTS, "*alarm*"), 80000, CLEARLY),
    Target("event of the mailbox", "parsers:message", _files(EVENTS, "report_*"), 80000, CLEARLY),
    Target(
        "wake-up of the sweep",
        "parsers:message",
        _texts(
            {"source": "rerail.sweep", "detail": {"run": "gpt", "job": "gpt", "findings": [FINDING]}},
            {"source": "rerail.sweep", "detail": {"run": "gpt"}},
        ),
        100000,
        CLEARLY,
    ),
    Target("operator's command", "parsers:message", _files(EVENTS, "operator_*"), 80000, CLEARLY),
    Target(
        "event of HyperPod, told", "parsers:cluster_event", _files(EVENTS, "hyperpod_*", "other_h*"), 30000, CLEARLY
    ),
    Target("callback of a pipeline", "parsers:callback", _texts(CALLBACK), 20000, CLEARLY),
    Target("report", "parsers:report", _texts(REPORT, FOUND), 150000, CLEARLY, longest=80000),
    Target("heartbeat", "parsers:heartbeat", _texts(HEARTBEAT), 120000, CLEARLY),
    Target("command", "parsers:command", _texts(COMMAND), 80000, CLEARLY),
    Target("manifest", "parsers:manifest", _texts(MANIFEST), 120000, CLEARLY),
    Target("policy", "parsers:policy", _files(ROOT / "policies", "*.toml"), 40000, CLEARLY, change=toml_changed),
    Target("pause", "parsers:pause", _texts("on", "off"), 5000, CLEARLY, change=text_changed),
    Target(
        "fall-back",
        "parsers:fallback",
        _texts("ml.p4d.24xlarge ml.p5.48xlarge subnet-1"),
        20000,
        VALUE,
        change=text_changed,
    ),
    Target("ranges of samples", "parsers:ranges", _texts("0-99,200-300"), 20000, VALUE, change=text_changed),
    Target("tags and enrolment", "parsers:tags", _texts({"Tags": TAGS}, {"Tags": OURS}), 80000),
    Target("record of a run", "parsers:stored_run", _records, 40000, CLEARLY),
    Target("records of detectors", "parsers:stored_memory", _records, 10000),
    Target("failure reason", "parsers:failure", _failures, 20000, change=text_changed),
    Target("metric line", "parsers:metric_line", _texts(LINE, f"{LINE} {LINE}"), 80000, change=text_changed),
    Target("notice, in all its forms", "parsers:notice", _texts(NIGHT), 20000, CLEARLY),
)
AGENTS = (
    Target("command, in a job", "agents:command", _texts(COMMAND), 80000),
    Target("environment of a job", "agents:environment", _texts(SETTINGS), 40000),
    Target("files of a machine", "agents:machine", _texts(MACHINE), 20000),
    Target("manifest, in a job", "agents:manifest", _texts(SAVED), 40000),
    Target("last words of a script", "agents:failure", _failures, 6000, change=text_changed),
    Target("values that a script logs", "agents:logged", _texts({"loss": 2.5, "accuracy": 0.5, "note": "a b"}), 40000),
    Target("saved state of detectors", "agents:learnt", _learnt, 5000),
)
FILES = (
    Target("CSV to backtest", "files:table", _texts(TABLE), 10000, REMEDY, change=text_changed),
    Target("gzipped CSV", "files:zipped", _texts(TABLE), 5000, REMEDY, change=text_changed),
    Target("trainer_state.json", "files:trainer_state", _files(LOGS, "trainer_state.json"), 5000, REMEDY),
    Target("corpus of logs", "files:corpus", _texts(CORPUS), 10000, REMEDY, change=text_changed),
    Target(
        "TensorBoard events",
        "files:events",
        _texts("\x01\x00\x00\x00\x00\x00\x00\x00abcd"),
        2000,
        REMEDY,
        change=text_changed,
    ),
    Target("policy's file", "files:policy_file", _files(ROOT / "policies", "*.toml"), 5000, change=toml_changed),
    Target("rerail.toml", "files:defaults", _texts(DEFAULTS), 20000, REMEDY, change=toml_changed),
    Target("request for the doctor", "files:request", _files(RECORDS, "describe_*.json"), 10000),
    Target("lines of a job's log", "files:log_lines", _texts(LINE, "step 3 loss: 2.5"), 50000, change=text_changed),
    Target(
        "arguments of a script",
        "files:arguments",
        _texts("--lr\n1e-3\n-n\n4", "--a=b\n--c\n007"),
        20000,
        REMEDY,
        change=text_changed,
    ),
)
ANSWERS = (
    Target("DescribeTrainingJob", "answers:described", _files(RECORDS, "describe_*.json"), 15000),
    Target("ListTags", "answers:tagged", _texts({"Tags": [{"Key": k, "Value": v} for k, v in TAGS.items()]}), 10000),
    Target("ListTrainingJobs", "answers:listed", _texts({"TrainingJobSummaries": [SUMMARY, SUMMARY]}), 8000),
    Target(
        "refusals of SageMaker",
        "answers:refused",
        _texts({"__type": "ValidationException", "message": "no"}, {"__type": "ResourceLimitExceeded", "message": "x"}),
        8000,
    ),
    Target("GetMetricData", "answers:metrics", _texts({"MetricDataResults": [POINTS, {**POINTS, "Id": "q1"}]}), 10000),
    Target(
        "logs of jobs",
        "answers:logs",
        _texts(f"{json.dumps(STREAMS)}\n\n{json.dumps(EVENTS_READ)}"),
        8000,
        change=text_changed,
    ),
    Target("GetParameter", "answers:parameters", _texts({"Parameter": {"Name": "n", "Value": 'mode = "act"'}}), 10000),
    Target("runs in the table", "answers:stored", _items, 8000),
    Target("memories in the table", "answers:remembered", _memories, 8000),
    Target(
        "checkpoint folder in S3",
        "answers:folder",
        _texts(OURS_SAVED, HF_SAVED, MEGATRON_SAVED, LIGHTNING_SAVED),
        15000,
        change=text_changed,
    ),
    Target("mailbox in S3", "answers:mail", _texts(REPORT, HEARTBEAT), 8000),
    Target(
        "answers to what is sent",
        "answers:taken",
        _texts({"FailedEntryCount": 1, "Entries": [{"ErrorCode": "x", "ErrorMessage": "y"}], "Failed": [{"Id": "0"}]}),
        8000,
    ),
)
LOOP = (Target("messages about a healthy job", "healthy:batch", _batches, 25000),)
COMMANDS = (Target("command line", "commands:line", _lines, 12000),)
TARGETS = {target.name: target for target in (*LOOP, *COMMANDS, *ANSWERS, *PARSERS, *AGENTS, *FILES)}
