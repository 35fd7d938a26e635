"""Run AWS in one process: `python -m local.emulator --state DIR [--port P] [--scale 60]`.

MiniStack is started in-process and repaired where it differs from AWS in what Rerail relies on (`local/repairs`). A
SageMaker training API (`local/sagemaker`) is served at the same endpoint. `DIR/ready.json` exists once it listens.
SIGTERM and SIGINT end it within about three seconds, with the function workers and training processes that it started.
"""

import argparse
import asyncio
import importlib.metadata
import json
import logging
import os
import shutil
import signal
import socket
import sys
import tempfile
import threading
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

from local import processes
from local.stack import ACCOUNT, KEPT_VARIABLES, REGION

MINISTACK_VERSION = "1.5.33"
FORCED_EXIT_AFTER_S = 2.5
# Enough that a slow call holds up no other, on a machine with two cores.
WORKERS = 3

logger = logging.getLogger("local.emulator")
Handler = Callable[[str, str, dict[str, str], bytes, dict[str, Any]], Awaitable[tuple[int, dict[str, str], bytes]]]


def environment(port: int, state: Path) -> dict[str, str]:
    """Return the whole environment of the emulator, and so of every function it runs."""
    kept = {name: os.environ[name] for name in KEPT_VARIABLES if name in os.environ}
    return kept | {
        "TMPDIR": str(state / "tmp"),
        "STATE_DIR": str(state / "ministack"),
        "GATEWAY_PORT": str(port),
        # MiniStack listens on every interface by default, and opens an MQTT port besides.
        "BIND_HOST": "127.0.0.1",
        "IOT_MTLS_ENABLED": "0",
        "SFTP_ENABLED": "0",
        "MINISTACK_HOST": "127.0.0.1",
        "MINISTACK_REGION": REGION,
        "MINISTACK_ACCOUNT_ID": ACCOUNT,
        "DOCKER_HOST": "unix:///nonexistent/docker.sock",
        # Functions have the credentials of their roles, and each call is checked.
        "AUTH": "true",
        "AWS_CONFIG_FILE": os.devnull,
        "AWS_SHARED_CREDENTIALS_FILE": os.devnull,
        "AWS_EC2_METADATA_DISABLED": "true",
        "AWS_ACCESS_KEY_ID": ACCOUNT,
        "AWS_SECRET_ACCESS_KEY": "local",
        "AWS_REGION": REGION,
        "AWS_DEFAULT_REGION": REGION,
        "AWS_ENDPOINT_URL": f"http://127.0.0.1:{port}",
    }


def enter(port: int, state: Path) -> None:
    """Take on the environment above. MiniStack reads it when it is imported, so this comes first."""
    fresh = environment(port, state)
    Path(fresh["TMPDIR"]).mkdir(parents=True, exist_ok=True)
    os.environ.clear()
    os.environ.update(fresh)
    tempfile.tempdir = None


def listen(port: int) -> socket.socket:
    """Return the listening socket itself, so that a free port cannot be taken before it is used."""
    listener = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    try:
        listener.bind(("127.0.0.1", port))
        listener.listen(256)
    except OSError as error:
        raise SystemExit(f"--port {port}: {error.strerror}; leave it out to have a free one chosen") from error
    return listener


def check_version() -> None:
    """Refuse any other version of MiniStack, because the repairs patch its internals."""
    found = importlib.metadata.version("ministack")
    if found != MINISTACK_VERSION:
        raise SystemExit(f"ministack {found} is installed; run: pip install ministack=={MINISTACK_VERSION}")


def emit_event(entry: dict[str, Any]) -> None:
    """Put an `aws.*` event on the default bus, as only AWS's own services may."""
    from ministack.core.responses import request_scope
    from ministack.services import eventbridge

    with request_scope(ACCOUNT, REGION):
        eventbridge._put_events({"Entries": [entry]}, allow_aws_source=True)


def plug_in(name: str, target_prefix: str, handler: Handler) -> None:
    """Serve one more JSON service at the endpoint, for clients and for Step Functions."""
    import ministack.app
    from ministack.core import router
    from ministack.services import stepfunctions

    router.SERVICE_PATTERNS[name] = {"target_prefixes": [f"{target_prefix}."]}
    ministack.app.SERVICE_HANDLERS[name] = handler
    stepfunctions._AWS_SDK_SERVICE_MAP[name] = {"target_prefix": target_prefix, "protocol": "json"}


def training_service(endpoint_url: str, state: Path, scale: float) -> Any:
    """Return the SageMaker training API, whose processes and files are below the state folder."""
    from local.sagemaker import TrainingService

    return TrainingService(endpoint_url, state / "sagemaker", emit_event, scale=scale)


async def serve(
    listener: socket.socket, state: Path, scale: float, schedule_scale: float, workers: int, until: asyncio.Event
) -> None:
    """Serve until the event is set, then end what was started."""
    import ministack.app
    from hypercorn.asyncio import serve as hypercorn_serve
    from hypercorn.config import Config
    from ministack.core import hypercorn_compat, lambda_runtime

    from local import permissions, public_parameters, repairs

    endpoint_url = f"http://127.0.0.1:{listener.getsockname()[1]}"
    hypercorn_compat.install()
    repairs.apply(retry_scale=scale, schedule_scale=schedule_scale, workers=workers)
    public_parameters.publish()
    training = training_service(endpoint_url, state, scale)
    plug_in("sagemaker", "SageMaker", training.handle)
    permissions.apply(ACCOUNT, REGION, training.tags_of)

    async def shutdown() -> None:
        await until.wait()
        lambda_runtime.Worker._spawn = _refuse_to_spawn
        await training.close()
        await asyncio.to_thread(lambda_runtime.reset)

    config = Config()
    config.bind = [f"fd://{listener.fileno()}"]
    config.keep_alive_timeout = 75
    config.graceful_timeout = 0.5
    config.loglevel = "WARNING"
    announcement = asyncio.create_task(announce(endpoint_url, state))
    try:
        await hypercorn_serve(ministack.app.app, config, shutdown_trigger=shutdown)
    finally:
        announcement.cancel()


def _refuse_to_spawn(worker: Any) -> None:
    raise RuntimeError("the emulator is ending")


async def announce(endpoint_url: str, state: Path) -> None:
    """Write `ready.json` once a request is answered."""
    host, _, port = endpoint_url.removeprefix("http://").partition(":")
    while True:
        try:
            reader, writer = await asyncio.open_connection(host, int(port))
            writer.write(b"GET /_ministack/health HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")
            answer = await asyncio.wait_for(reader.readline(), 2)
            writer.close()
        except (OSError, TimeoutError):
            answer = b""
        if b" 200" in answer:
            break
        await asyncio.sleep(0.02)
    ready = {"pid": os.getpid(), "port": int(port), "endpoint": endpoint_url, "ministack": MINISTACK_VERSION}
    partial = state / "ready.json.partial"
    partial.write_text(json.dumps(ready))
    partial.rename(state / "ready.json")


def exit_now(state: Path, code: int) -> None:
    """Leave at once, with no child process and no temporary folder behind; never returns.

    Not all of MiniStack's own threads (a worker that is being waited for) are daemons: they would hold a normal exit.
    """
    while family := processes.descendants(os.getpid()):
        processes.end_all(family, grace_s=0)
    for folder in ("tmp", "ministack", "sagemaker"):
        shutil.rmtree(state / folder, ignore_errors=True)
    (state / "ready.json").unlink(missing_ok=True)
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


async def run(options: argparse.Namespace, listener: socket.socket, state: Path) -> None:
    """Serve until a signal, or until the parent ended if asked to follow it."""
    loop = asyncio.get_running_loop()
    until = asyncio.Event()

    def end() -> None:
        if not until.is_set():
            until.set()
            forced = threading.Timer(FORCED_EXIT_AFTER_S, exit_now, (state, 0))
            forced.daemon = True
            forced.start()

    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, end)
    parent = asyncio.create_task(_follow_parent(end)) if options.with_parent else None
    await serve(listener, state, options.scale, options.schedule_scale, options.workers, until)
    if parent:
        parent.cancel()


async def _follow_parent(end: Callable[[], None]) -> None:
    parent = os.getppid()
    while os.getppid() == parent:
        await asyncio.sleep(0.5)
    end()


def parse(arguments: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m local.emulator", description="AWS in one process, for this machine."
    )
    parser.add_argument("--state", type=Path, required=True, help="folder for everything it writes; created if missing")
    parser.add_argument("--port", type=int, default=0, help="port on 127.0.0.1; a free one by default")
    parser.add_argument(
        "--scale", type=float, default=60.0, help="how many times faster jobs start and calls are retried"
    )
    parser.add_argument("--schedule-scale", type=float, default=1.0, help="how many times faster rate() schedules fire")
    parser.add_argument("--workers", type=int, default=WORKERS, help="how many events a function handles at once")
    parser.add_argument("--with-parent", action="store_true", help="end when the process that started this one ends")
    return parser.parse_args(arguments)


def main(arguments: list[str] | None = None) -> None:
    """Start the emulator and run until a signal ends it."""
    options = parse(arguments)
    check_version()
    state = options.state.resolve()
    state.mkdir(parents=True, exist_ok=True)
    listener = listen(options.port)
    enter(listener.getsockname()[1], state)
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(name)s %(levelname)s %(message)s")
    code = 1
    try:
        asyncio.new_event_loop().run_until_complete(run(options, listener, state))
        code = 0
    except Exception:
        logger.exception("the emulator failed")
    finally:
        exit_now(state, code)


if __name__ == "__main__":
    main()
