"""`rerail tensorboard`: prepares a folder with a sub-folder for each attempt, and serves it on this machine."""

import json
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any

import typer
from botocore.exceptions import BotoCoreError, ClientError

from cli import place
from cli.console import Console
from cli.names import RunName, find_run
from cli.place import AsJson, Local, Place
from cli.tensorboard import events
from cli.tensorboard.curves import Curves, make_curves
from cli.tensorboard.events import find_folder, list_launched
from cli.tensorboard.server import PACKAGE, NotServed, Server, find_free_port, is_installed, wait_until_ended
from cli.trouble import explain
from rerail.model.errors import RerailError
from rerail.model.run import Run

REFRESHED_EVERY_S = 30.0
SOURCES = {"events": "the event files of its jobs", "metrics": "its metric lines and CloudWatch metrics"}


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
        found = (
            list(events.list_event_files(s3, record, events.find_places(record))) if self.source != "metrics" else []
        )
        self.source = self.source or ("events" if found else "metrics")
        self.folder.mkdir(parents=True, exist_ok=True)
        if self.source == "events":
            events.bring(s3, found, self.folder)
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

    def to_plain(self, record: Run, url: str | None) -> dict[str, Any]:
        """Return the board as JSON types."""
        attempts = [
            {
                "attempt": attempt.number,
                "job": attempt.job_name,
                "folder": find_folder(attempt.number),
                "files": self.files.get(attempt.number, 0),
                "points": self.points.get(attempt.number, 0),
            }
            for attempt in list_launched(record)
        ]
        return {"run": self.run, "logdir": str(self.folder), "source": self.source, "url": url, "attempts": attempts}


def tensorboard(
    run: RunName,
    port: Annotated[int, typer.Option(help="Where TensorBoard listens on this machine (6006, or any free one).")] = 0,
    logdir: Annotated[Path | None, typer.Option(help="Keep the files in this folder.")] = None,
    logdir_only: Annotated[
        bool, typer.Option("--logdir-only", help="Prepare the folder and print it; start nothing.")
    ] = False,
    local: Local = False,
    as_json: AsJson = False,
) -> None:
    """Open TensorBoard on all attempts of a run, and keep it fresh until Ctrl-C."""
    if not is_installed():
        place.fail("TensorBoard is not installed here", f"pip install {PACKAGE}")
    where = place.find(local=local)
    record = find_run(where, run)
    if not list_launched(record):
        place.fail(f"the run {run} has no job yet ({record.state})", f"`rerail show {run}` tells why")
    board = Board(where, run, (logdir or place.LOCAL_STATE / "tensorboard" / run).expanduser().resolve())
    board.fill(record)
    if not board.files and not any(board.points.values()):
        place.fail(
            f"the run {run} has left no event file, no metric line and no metric",
            "give it TensorBoardOutputConfig, or print lines like `rerail step=1 loss=2.5`",
        )
    if logdir_only:
        _say(board, record, None, as_json)
        return
    try:
        with Server(board.folder, find_free_port(port)) as server:
            _say(board, record, server.url, as_json)
            wait_until_ended(server, board.refresh, every_s=REFRESHED_EVERY_S)
    except NotServed as error:
        place.fail(str(error), f"give another --port, or --logdir-only and start tensorboard on {board.folder}")


def _say(board: Board, record: Run, url: str | None, as_json: bool) -> None:
    if as_json:
        typer.echo(json.dumps(board.to_plain(record, url), indent=2))
        return
    console = Console(stderr=True, highlight=False, markup=False, soft_wrap=True)
    drawn = board.files or board.points
    for attempt in list_launched(record):
        unit = "event files" if board.files else "points"
        console.print(f"{find_folder(attempt.number)}  {attempt.job_name}: {drawn.get(attempt.number, 0)} {unit}")
    console.print(f"drawn from {SOURCES[board.source]}", style="dim")
    typer.echo(url or str(board.folder))
    if url:
        console.print("Ctrl-C ends it", style="dim")
