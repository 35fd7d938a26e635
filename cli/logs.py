"""`rerail logs`: what the jobs of a run have printed, one attempt or all, with the attempt before each line."""

import json
from collections.abc import Iterator
from contextlib import ExitStack
from datetime import datetime, timedelta
from pathlib import Path
from typing import Annotated, TextIO

import typer

from cli import place
from cli.console import Console, echo
from cli.durations import parse_seconds
from cli.logbook import JobLogLine, Logbook
from cli.names import RunName, find_run
from cli.place import AsJson, Local, Place
from cli.submit.following import Follower
from rerail.model.formatting import format_files
from rerail.model.run import Attempt, Run

COLOURS = ("cyan", "yellow", "magenta", "green", "blue")


def logs(
    run: RunName,
    attempt: Annotated[int | None, typer.Option("--attempt", "-a", help="Only this one; without it, all.")] = None,
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Go on until it has ended, or Ctrl-C.")] = False,
    since: Annotated[str, typer.Option(help="Only what arrived so long ago at most, such as 90s, 30m or 1h.")] = "",
    grep: Annotated[str, typer.Option(help="Only lines that contain this text.")] = "",
    save: Annotated[
        Path | None, typer.Option(help="Write FOLDER/JOB/HOST.log for each job and machine, and print nothing.")
    ] = None,
    local: Local = False,
    as_json: AsJson = False,
) -> None:
    """Print what the jobs of a run have printed, with the attempt before each line.

    `rerail follow` prints the same as it comes, together with what is decided, and fetches what the run leaves. With
    --json each line is a JSON object of its own.
    """
    where = place.find(local=local)
    record = find_run(where, run)
    chosen = _chosen(record, attempt)
    start = place.now() - timedelta(seconds=parse_seconds(since, "--since")) if since else None
    if follow:
        lines = _followed(where, record, start, one=chosen[0] if attempt else None)
    else:
        book = Logbook(where.client("logs"), start)
        lines = (line for attempt in chosen for line in book.read_lines(attempt.job_name))
    if save:
        if follow or as_json:
            place.fail("--save: it writes what there is into files", "leave out --follow and --json")
        _save(save, (line for line in lines if grep in line.text))
        return
    screen, numbers = (
        Console(soft_wrap=True),
        {attempt.job_name: attempt.number for attempt in record.attempts},
    )
    shown = 0
    try:
        for line in lines:
            if grep in line.text:
                shown += 1
                _show(screen, record, numbers, line, as_json=as_json)
    except KeyboardInterrupt:
        raise typer.Exit(130) from None
    if not shown and not follow:
        _say_why_nothing(record, chosen, since, grep)


def _save(folder: Path, lines: Iterator[JobLogLine]) -> None:
    """Write each line into the file of its job and machine; an earlier file is replaced."""
    with ExitStack() as stack:
        files: dict[Path, TextIO] = {}
        for line in lines:
            path = folder / line.job / f"{line.host}.log"
            if path not in files:
                path.parent.mkdir(parents=True, exist_ok=True)
                files[path] = stack.enter_context(path.open("w", encoding="utf-8"))
            files[path].write(f"{line.at.isoformat() if line.at else '-'} {line.text}\n")
    typer.echo(f"wrote {format_files(len(files))} into {folder}")


def _chosen(run: Run, number: int | None) -> list[Attempt]:
    """The attempts that were asked for; their jobs exist."""
    there = [attempt for attempt in run.attempts if attempt.exists or attempt.number == 1]
    if number is None:
        return there
    found = [attempt for attempt in there if attempt.number == number]
    if not found:
        place.fail(
            f"--attempt {number}: {run.id} has no such attempt", f"it has {', '.join(str(a.number) for a in there)}"
        )
    return found


def _followed(where: Place, run: Run, since: datetime | None, *, one: Attempt | None) -> Iterator[JobLogLine]:
    """As they come: of the run until it has ended, of one attempt until its job has."""
    follower = Follower(
        run_id=run.id,
        job=one.job_name if one else run.attempts[0].job_name,
        sagemaker=where.client("sagemaker"),
        logs=where.client("logs"),
        runs=None if one else where.runs,
        pause_s=0.5 if where.is_local else 5.0,
        since=since,
    )
    return (news.line for news in follower.read_news() if news.line)


def _show(screen: Console, run: Run, numbers: dict[str, int], line: JobLogLine, *, as_json: bool) -> None:
    number = numbers.get(line.job) or _number(line.job)
    if as_json:
        facts = {"run": run.id, "attempt": number, "job": line.job, "host": line.host}
        at = line.at.isoformat() if line.at else None
        typer.echo(json.dumps({"at": at, **facts, "text": line.text}))
        return
    source = f"{line.at:%m-%d %H:%M:%SZ} {number}/{line.host}" if line.at else f"{number}/{line.host}"
    if not screen.is_terminal:
        echo(f"{source} | {line.shown}")  # a file may be long, and wants no colours
        return
    screen.print(f"{source} | ", style=COLOURS[number % len(COLOURS)], end="", markup=False)
    screen.print(line.shown, markup=False)


def _number(job: str) -> int:
    """Of an attempt that began after we had looked, by its job's name."""
    digits = job.rpartition("-a")[2]
    return int(digits) if digits.isdigit() else 1


def _say_why_nothing(run: Run, chosen: list[Attempt], since: str, grep: str) -> None:
    asked = [f"since {since} ago"] * bool(since) + [f"with {grep!r}"] * bool(grep)
    jobs = chosen[0].job_name if len(chosen) == 1 else f"the {len(chosen)} jobs of {run.id}"
    Console(stderr=True).print(f"nothing printed by {jobs} {' '.join(asked)}".rstrip(), markup=False)
