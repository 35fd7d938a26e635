"""`rerail tensorboard`: prepare a folder with a sub-folder for each attempt of runs, and start TensorBoard on it."""

import importlib.util
import json
import signal
import socket
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any

import typer
from botocore.exceptions import BotoCoreError, ClientError

from cli import place
from cli.console import Console
from cli.names import complete_runs, find_run
from cli.place import AsJson, Local, Place
from cli.tensorboard import events
from cli.tensorboard.curves import Curves, make_curves
from cli.tensorboard.events import find_folder, list_launched
from cli.trouble import explain
from rerail.model.errors import RerailError
from rerail.model.run import Run

HOST, USUAL_PORT = "127.0.0.1", 6006
PACKAGE = "tensorboard==2.21.0"
REFRESHED_EVERY_S, RELOADED_EVERY_S, GRACE_S, MOST_PROBLEMS = 30.0, 5, 5.0, 5
SOURCES = {"events": "the event files of its jobs", "metrics": "its metric lines and CloudWatch metrics"}
# Of the name of a folder for several runs; file systems allow 255.
MOST_CHARS = 200


@dataclass
class Board:
    """What is drawn of a run: its own event files, or curves of its metrics where it had written none at first."""

    where: Place
    run: str
    kept: Path
    source: str = ""
    files: Counter[int] = field(default_factory=Counter)
    points: dict[int, int] = field(default_factory=dict)
    curves: Curves | None = None

    @property
    def folder(self) -> Path:
        """Each source has its own, so that one is never drawn over the other."""
        return self.kept / self.source

    def fill(self, record: Run) -> None:
        """Download what is new; the sources are those that were found first."""
        s3 = self.where.client("s3")
        places = events.find_places(record) if self.source != "metrics" else []
        problems = list[str]()
        found = list(events.list_event_files(s3, record, places, problems))
        self.source = self.source or ("events" if found else "metrics")
        self.folder.mkdir(parents=True, exist_ok=True)
        if self.source == "events":
            for problem in [*problems, *events.bring(s3, found, self.folder)][:MOST_PROBLEMS]:
                Console(stderr=True, markup=False).print(problem, style="yellow")
            self.files = Counter(file.attempt for file in found)
            return
        self.curves = self.curves or Curves(record, self.folder, make_curves(local=self.where.is_local))
        self.points = self.curves.write(record)

    def refresh(self) -> None:
        """Download what is new since then; a network error is ignored."""
        try:
            if record := self.where.runs.load(self.run):
                self.fill(record)
        except (ClientError, BotoCoreError, RerailError) as error:
            cause = error if isinstance(error, ClientError | BotoCoreError) else error.__cause__ or error
            what = explain(cause).what if isinstance(cause, Exception) else str(error)
            Console(stderr=True, markup=False).print(f"not refreshed: {what}", style="yellow")

    def to_plain(self, record: Run, logdir: Path) -> dict[str, Any]:
        """Return the board as JSON types, with the folders of its attempts below `logdir`."""
        attempts = [
            {
                "attempt": attempt.number,
                "job": attempt.job_name,
                "folder": str((self.folder / find_folder(attempt.number)).relative_to(logdir)),
                "files": self.files.get(attempt.number, 0),
                "points": self.points.get(attempt.number, 0),
            }
            for attempt in list_launched(record)
        ]
        return {"run": self.run, "source": self.source, "attempts": attempts}


def tensorboard(
    runs: Annotated[
        list[str],
        typer.Argument(
            help="Runs to compare, as `rerail status` names them.", autocompletion=complete_runs, metavar="RUN"
        ),
    ],
    port: Annotated[int, typer.Option(help="Where TensorBoard listens on this machine (6006, or any free one).")] = 0,
    logdir: Annotated[Path | None, typer.Option(help="Keep the files in this folder.")] = None,
    logdir_only: Annotated[
        bool, typer.Option("--logdir-only", help="Prepare the folder and print it; start nothing.")
    ] = False,
    local: Local = False,
    as_json: AsJson = False,
) -> None:
    """Open TensorBoard on all attempts of runs, and keep it fresh until Ctrl-C."""
    if importlib.util.find_spec("tensorboard") is None:
        place.fail("TensorBoard is not installed here", f"pip install {PACKAGE}")
    where = place.find(local=local)
    names = list(dict.fromkeys(runs))
    records = [find_run(where, name) for name in names]
    for record in records:
        if not list_launched(record):
            place.fail(f"the run {record.id} has no job yet ({record.state})", f"`rerail show {record.id}` tells why")
    folder = (logdir or place.LOCAL_STATE / "tensorboard" / "+".join(names)[:MOST_CHARS]).expanduser().resolve()
    boards = [Board(where, name, folder / name if len(names) > 1 else folder) for name in names]
    for board, record in zip(boards, records, strict=True):
        board.fill(record)
        if not board.files and not any(board.points.values()):
            place.fail(
                f"the run {board.run} has left no event file, no metric line and no metric",
                "give it TensorBoardOutputConfig, or print lines like `rerail step=1 loss=2.5`",
            )
    shown = folder if len(boards) > 1 else boards[0].folder
    port = 0 if logdir_only else find_port(port)
    url = None if logdir_only else f"http://{HOST}:{port}/"
    if as_json:
        first, *others = [board.to_plain(record, shown) for board, record in zip(boards, records, strict=True)]
        typer.echo(json.dumps({"logdir": str(shown), "url": url, **first, "others": others}, indent=2))
    else:
        _say(boards, records)
        typer.echo(url or shown)
    if port and (status := serve(shown, port, [board.refresh for board in boards])):
        place.fail(f"tensorboard ended with {status}", f"start it on {shown} yourself, with its --logdir")


def find_port(asked: int) -> int:
    """Return the port that was asked for, or else TensorBoard's default or any free one."""
    for port in (asked or USUAL_PORT, 0):
        try:
            with socket.create_server((HOST, port)) as tried:
                return int(tried.getsockname()[1])
        except OSError as error:
            if asked:
                place.fail(f"the port {asked} is taken: {error.strerror}", "give another --port")
    raise AssertionError("a system has a free port")


def serve(folder: Path, port: int, refreshes: Sequence[Callable[[], None]]) -> int:
    """Run TensorBoard until Ctrl-C, SIGTERM or its own end, and return its exit status."""
    command = [sys.executable, "-m", "tensorboard.main", "--logdir", str(folder), "--host", HOST]
    command += ["--port", str(port), "--reload_interval", str(RELOADED_EVERY_S)]
    # A script's background jobs ignore Ctrl-C.
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.default_int_handler)
    with subprocess.Popen([*command, "--reload_multifile", "true"]) as child:
        try:
            while True:
                try:
                    return child.wait(REFRESHED_EVERY_S)
                except subprocess.TimeoutExpired:
                    for refresh in refreshes:
                        refresh()
        except KeyboardInterrupt:
            return 0
        finally:
            child.terminate()
            try:
                child.wait(GRACE_S)
            except subprocess.TimeoutExpired:
                child.kill()


def _say(boards: Sequence[Board], records: Sequence[Run]) -> None:
    console = Console(stderr=True, markup=False, soft_wrap=True)
    for board, record in zip(boards, records, strict=True):
        drawn, unit = (board.files, "event files") if board.files else (board.points, "points")
        for attempt in list_launched(record):
            folder = f"{board.source}/{find_folder(attempt.number)}"
            console.print(f"{folder}  {attempt.job_name}: {drawn.get(attempt.number, 0)} {unit}")
        console.print(f"{board.run} is drawn from {SOURCES[board.source]}", style="dim")
