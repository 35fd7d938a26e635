"""Training jobs for the tests: their environment, commands for them, and ranks in processes of their own."""

import multiprocessing
import os
import socket
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from rerail.model.mailbox import Command, CommandKind, ReportKind
from tests.agent.fake_s3 import HANG_S, Bucket

RUN = "night"
SCRUBBED = ("PATH", "HOME", "LANG", "TMPDIR")


def environment_of(bucket: Bucket | None, *, base: Path, **variables: str) -> dict[str, str]:
    """What SageMaker gives a job; nothing of it without a bucket."""
    if bucket is None:
        return {"SAGEMAKER_BASE_DIR": str(base), **variables}
    return {
        "TRAINING_JOB_NAME": RUN,
        "TRAINING_JOB_ARN": f"arn:aws:sagemaker:us-east-1:000000000000:training-job/{RUN}",
        "SAGEMAKER_BASE_DIR": str(base),
        "AWS_ENDPOINT_URL": bucket.url,
        "AWS_REGION": "us-east-1",
        "AWS_ACCESS_KEY_ID": "test",
        "AWS_SECRET_ACCESS_KEY": "test",
        "RERAIL_POLL_SECONDS": "0.05",
        "RERAIL_HEARTBEAT_SECONDS": "0.1",
        **variables,
    }


def command(
    id: str = "c1", *, attempt: int = 1, kind: CommandKind = CommandKind.CHECKPOINT, left_s: float = 60, **fields: Any
) -> Command:
    """A command of now, with so many seconds until its deadline."""
    now = datetime.now(UTC)
    values = {"run": RUN, "asked_at": now, "deadline": now + timedelta(seconds=left_s), **fields}
    return Command(id=id, attempt=attempt, kind=kind, **values)


def ask_for_checkpoint(bucket: Bucket) -> None:
    """Command a checkpoint, and return once the agent has received the command."""
    bucket.command(command("c1"))
    bucket.wait_for_report(ReportKind.ACKNOWLEDGED)


def fence(bucket: Bucket) -> None:
    """Let a later attempt take over the run, and return once the agent knows it."""
    bucket.command(command("c2", attempt=2, kind=CommandKind.TRAIN))
    bucket.wait_for_report(ReportKind.REFUSED)


def announced(bucket: Bucket, abilities: tuple[str, ...], *, attempt: int = 1) -> bool:
    """Whether the newest hello of an attempt has these abilities."""
    hello = bucket.reports().get(f"a{attempt:03d}-hello")
    return hello is not None and hello.abilities == abilities


_server = multiprocessing.get_context("forkserver")
# Each optimizer imports the compiler, which takes as long as torch itself.
_server.set_forkserver_preload(
    ["torch", "torch.distributed", "torch._dynamo", "rerail_agent.guard", "boto3", "tests.agent.loops"]
)


class Ranks:
    """Processes that run `loop(rank, **arguments)` with a gloo group between them, and what each gave back."""

    def __init__(
        self, loop: Callable[..., Any], size: int, *, environment: dict[str, str] | None = None, **arguments: Any
    ) -> None:
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            port = probe.getsockname()[1]
        self._pipes, self.processes = [], []
        for rank in range(size):
            here, there = _server.Pipe()
            launched = {**(environment or {}), "RANK": str(rank), "WORLD_SIZE": str(size)}
            launched |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
            process = _server.Process(target=_become, args=(loop, rank, launched, there, arguments), daemon=True)
            process.start()
            there.close()
            self._pipes.append(here)
            self.processes.append(process)

    def kill(self) -> None:
        for process in self.processes:
            process.kill()

    def answers(self, within_s: float = HANG_S) -> list[Any]:
        """What the loops returned, by rank; raises what one of them raised."""
        try:
            return [self._answer(pipe, within_s) for pipe in self._pipes]
        finally:
            self.kill()

    def said(self, rank: int, within_s: float = HANG_S) -> Any:
        """The next thing that a loop sent on its own."""
        return self._answer(self._pipes[rank], within_s)

    def _answer(self, pipe: Any, within_s: float) -> Any:
        if not pipe.poll(within_s):
            raise AssertionError("a rank has not answered in time")
        kind, value = pipe.recv()
        if kind == "error":
            raise AssertionError(value)
        return value


def _become(
    loop: Callable[..., Any], rank: int, environment: dict[str, str], pipe: Any, arguments: dict[str, Any]
) -> None:
    import traceback

    import torch
    from torch import distributed as dist

    for name in set(os.environ) - set(SCRUBBED):
        del os.environ[name]
    os.environ.update(environment)
    torch.set_num_threads(1)
    try:
        if int(environment["WORLD_SIZE"]) > 1:
            dist.init_process_group("gloo", timeout=timedelta(seconds=HANG_S))
        pipe.send(("answer", loop(rank, say=lambda value: pipe.send(("answer", value)), **arguments)))
    except BaseException:
        pipe.send(("error", traceback.format_exc()))
    os._exit(0)
