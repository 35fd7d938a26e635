"""What is read inside a job: commands, settings, manifests, the failure of a script, and what it logs."""

import json
import tempfile
from collections.abc import Iterator
from dataclasses import replace
from datetime import UTC, datetime
from functools import cache
from pathlib import Path
from typing import Any

from rerail.diagnosis.classify import diagnose
from rerail.model.mailbox import SIZE_LIMIT, read_report, serialize
from rerail.model.metrics import make_definitions
from rerail.model.sample import Sample
from rerail.model.signatures import sign
from rerail.model.thresholds import Thresholds
from rerail_agent import exit_report, in_place_restarts, init_channel, telemetry
from rerail_agent.checkpoints import manifest as manifests
from rerail_agent.checkpoints.snapshot_label import DamagedShare, SnapshotLabel
from rerail_agent.commands import CommandState
from rerail_agent.detection import StepDetection
from rerail_agent.failure import LIMIT, Position, describe
from rerail_agent.identity import Identity
from rerail_agent.settings import AgentSettings
from rerail_agent.stderr_relay import StderrLine
from tests.bad_input.targets.parsers import clearly, table_of, text_of

NOON = datetime(2026, 1, 31, 12, tzinfo=UTC)
METADATA = {"name": ".metadata", "bytes": 3, "checksum": "xxh3_64:0"}
SELF = Identity(run="gpt", attempt=1, job="gpt", bucket="mailbox")


def command(data: bytes) -> None:
    """A command in the mailbox, as the agent in the script hears it; what it answers can be read by the supervisor."""
    accepted = CommandState(SELF).receive(data, at=NOON)
    if accepted.report is not None:
        text = serialize(accepted.report)
        assert len(text) <= SIZE_LIMIT, "an answer that the supervisor would not read"
        read_report(text, run="gpt", id=accepted.report.id)


def environment(data: bytes) -> None:
    """What the job's environment says of run, mailbox and detectors: what cannot be read is told, and done without."""
    said = {key: value for key, value in (table_of(data) or {}).items() if isinstance(value, str)}
    errors: list[str] = []
    Identity.from_environment(said, errors.append)
    AgentSettings.from_environment(said, errors.append)
    init_channel.read_seconds(said, "RERAIL_POLL_SECONDS", 5.0, least=0.05, below=86400)
    in_place_restarts.with_another_port(said)
    assert all(line.strip() for line in errors)


def machine(data: bytes) -> None:
    """The files that SageMaker and an earlier container have left on the machine."""
    base = _folder()
    for place in (base / "input" / "config" / "resourceconfig.json", in_place_restarts.make_restart_file_path(base)):
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_bytes(data)
    init_channel.read_host(base)
    assert init_channel.count_hosts(base) >= 1
    assert in_place_restarts.read_restart_file(base, "gpt", "", [].append) == {}, "nobody has signed it"
    file = in_place_restarts.make_restart_file_path(base)
    file.write_bytes(sign(data, name=f"{file.name}/gpt", key="ab" * 32))
    for name, value in in_place_restarts.read_restart_file(base, "gpt", "ab" * 32, [].append).items():
        assert name in in_place_restarts.RESTART_VARIABLES and isinstance(value, str)


def manifest(data: bytes) -> None:
    """A manifest and a label, as the agent reads them before it loads a checkpoint; also such as its writer sealed."""
    if (signed := table_of(data)) is not None:
        signed = {**signed, "files": [*_entries(signed), METADATA]}
        text = json.dumps({**signed, manifests.CHECKSUM_FIELD: manifests._compute_own_checksum(signed)})
        clearly(lambda _: manifests.parse(text.encode(), folder="step-000000010"), manifests.DamagedCheckpoint)(data)
    clearly(lambda text: manifests.parse(text, folder="step-000000010"), manifests.DamagedCheckpoint)(data)
    if (table := table_of(data)) is not None:
        clearly(lambda _: SnapshotLabel.parse(table), DamagedShare)(data)


def _entries(table: dict[str, Any]) -> list[Any]:
    files = table.get("files")
    return files if isinstance(files, list) else [files]


def learnt_samples() -> Iterator[bytes]:
    """What detectors leave that have seen some steps."""
    judgement = StepDetection(Thresholds())
    for step in range(40):
        judgement.evaluate(Sample(step=step, loss=2.5 - step / 100, grad_norm=1.0, step_time_s=1.0))
    yield judgement.dump_state().encode()


def failure(data: bytes) -> None:
    """A script dies with these words: the failure file is JSON of the length that SageMaker keeps, and is diagnosed."""
    words = text_of(data)
    for error in (RuntimeError(words), MemoryError(words), KeyError(words)):
        text = describe(error, Position(rank=0, step=3))
        _is_failure_file(text)
    lines = [StderrLine(2.0, line) for line in words.splitlines()[:200]]
    command, silent, testified = (exit_report.ProcessExit(0, status, 3.0) for status in (1, None, -9))
    testified = replace(testified, error_text=words)
    for ranks in ([], [silent], [testified, silent]):
        _is_failure_file(exit_report.make_report(command, ranks, lines, oom_killed=False).text())


def _is_failure_file(text: str) -> None:
    assert len(text) <= LIMIT and isinstance(json.loads(text), dict), text[:100]
    diagnose(text)


def logged(data: bytes) -> None:
    """Values that a script has logged: one metric line, which the metric definitions read or leave."""
    table = table_of(data) or {}
    number = table.get("loss")
    loss = float(number) if isinstance(number, int | float) and abs(number) < 1e300 else 1.0
    line = telemetry.format_line(step=3, loss=loss, grad_norm=None, lr=None, tokens_per_s=None, extra=table)
    assert "\n" not in line and "\r" not in line, line[:100]
    assert line.startswith("rerail step=3 loss=") and line.encode()
    assert len(make_definitions()) == 5


def learnt(data: bytes) -> None:
    """What the detectors of an earlier process have left beside a checkpoint; whatever it is, they go on."""
    judgement = StepDetection(Thresholds())
    try:
        judgement.restore(text_of(data))
    except Exception as error:  # whatever it is, the guard says so and begins afresh: see rerail_agent.guard
        assert type(error).__name__
    before = judgement.dump_state()
    judgement.evaluate(Sample(step=2, loss=1.0, grad_norm=1.0, step_time_s=1.0))
    assert before and judgement.dump_state()


@cache
def _folder() -> Path:
    return Path(tempfile.mkdtemp(prefix="rerail-fuzz-"))
