"""`rerail checkpoints`: what a run has saved, whether it is sound, and where a relaunch would carry on."""

import json
from collections.abc import Sequence
from dataclasses import replace
from operator import attrgetter
from pathlib import Path
from typing import Annotated, Any

import typer
from botocore.exceptions import BotoCoreError, ClientError
from rich.filesize import decimal
from rich.markup import escape
from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TransferSpeedColumn
from rich.table import Table

from cli import place
from cli.console import Console
from cli.names import RunName, find_run
from cli.place import AsJson, Local
from cli.saves import (
    StoredCheckpoint,
    explain_passed_over,
    find_resume_point,
    list_checkpoints,
    verify_checksums,
    verify_readable,
)
from cli.trouble import get_code, is_denied
from rerail.decisions.checkpoint_health import assess_health
from rerail.decisions.decision import find_manifest_key, with_attempt_number
from rerail.decisions.file_copies import is_rejected
from rerail.model.checkpoint_layouts import list_unknown_names
from rerail.model.checkpoints import Health, split_uri
from rerail.model.formatting import format_files
from rerail.model.run import Run

Verify = Annotated[
    bool,
    typer.Option("--verify", help="Read every file, compare its checksum or open it; exit status 1 if one is damaged."),
]
SINGLE_FILES = (
    "overwritten in place, with no step in its name: a relaunch resumes from wherever the script does. Rerail takes a "
    "change as a save: docs/without-agent.md#what-is-recognised. A kill can tear the file while it is written: "
)
COPIED = "a damaged file is replaced by its newest copy, and a rollback goes back to one"
NO_STEP = (
    "their numbers count epochs or saves, not steps: a relaunch resumes from wherever the script does, and Rerail "
    "cannot roll back to a step: docs/without-agent.md#what-is-recognised"
)
UNKNOWN = (
    "the names of these folders are of no layout that Rerail knows: {names}. A relaunch resumes from wherever the "
    "script does; to be rolled back, save to names such as step_500/: docs/without-agent.md#what-is-recognised"
)
NOTHING = (
    "nothing is saved under {uri} yet that Rerail recognizes as a checkpoint: docs/without-agent.md#what-is-recognised"
)
MAX_NAMES = 5
SAVED_AT = attrgetter("saved_at")
NOT_COPIED = (
    "no copy of it was made yet, and only S3 versioning would keep an earlier one. Rerail makes copies if "
    "quarantineFolders lists the folder: docs/without-agent.md#copies-of-one-file"
)
Download = Annotated[
    Path | None, typer.Option(help="Fetch the one that a relaunch would resume from, or --step, into this folder.")
]
Step = Annotated[int | None, typer.Option(help="With --download: the step of the checkpoint to fetch.")]
Explain = Annotated[bool, typer.Option("--explain", help="Say of each why a relaunch would resume from it, or not.")]
STYLES = {Health.CLEAN: "green", Health.SUSPECT: "yellow", Health.QUARANTINED: "red"}


def checkpoints(
    run: RunName,
    verify: Verify = False,
    download: Download = None,
    step: Step = None,
    explain: Explain = False,
    local: Local = False,
    as_json: AsJson = False,
) -> None:
    """What a run has saved, newest first, and which one a relaunch would resume from."""
    if step is not None and download is None:
        place.fail("--step: it names the checkpoint that --download fetches", "add --download FOLDER")
    where = place.find(local=local)
    record = find_run(where, run)
    if not record.checkpoint_uri:
        place.fail(f"the jobs of {run} save nowhere that Rerail knows of", "give the next one a CheckpointConfig")
    s3, uri = where.client("s3"), record.checkpoint_uri
    try:
        saves = [
            replace(save, checkpoint=save.checkpoint and with_attempt_number(record, save.checkpoint))
            for save in list_checkpoints(s3, uri, signing_key=find_manifest_key(record))
        ]
        if verify:
            saves = _verified(s3, uri, saves)
        downloaded = _download(s3, uri, _choose(record, saves, step), download) if download else None
    except (ClientError, BotoCoreError) as error:
        place.fail(f"cannot read {uri}: {error}", _remedy(error, uri))
    if as_json:
        typer.echo(json.dumps(_plain(record, saves, downloaded), indent=2))
    elif downloaded is not None:
        typer.echo(f"downloaded {format_files(len(downloaded))} to {download}")
    else:
        _print(record, saves, explain=explain)
    if verify and any(save.damage for save in saves):
        raise typer.Exit(1)


def _verified(s3: Any, uri: str, saves: Sequence[StoredCheckpoint]) -> list[StoredCheckpoint]:
    """Compare the checksums of a manifest; open the files of a script without manifests."""
    whole = [save for save in saves if save.is_whole]
    columns = (TextColumn("reading checkpoints"), BarColumn(), DownloadColumn(), TransferSpeedColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as progress:
        task = progress.add_task("", total=sum(file.bytes for save in whole for file in save.files))
        verified = {
            save.folder: (verify_checksums if save.has_manifest else verify_readable)(
                s3, uri, save, lambda size: progress.advance(task, size)
            )
            for save in whole
        }
    return [verified.get(save.folder, save) for save in saves]


def _choose(run: Run, saves: Sequence[StoredCheckpoint], step: int | None) -> Sequence[StoredCheckpoint]:
    """Return the checkpoint to fetch: the newest epoch, or all files that a script overwrites in place."""
    if step is not None:
        chosen = [save for save in saves if save.step == step and save.is_whole and not save.is_quarantined]
    else:
        chosen = [save for save in saves if save is find_resume_point(run, saves)]
        without_step = [save for save in saves if save.is_single_file]
        chosen = chosen or [save for save in without_step if save.layout and not save.damage][:1] or without_step
    if not chosen:
        named = f"--step {step}: {run.id} has no whole checkpoint of that step" if step is not None else ""
        place.fail(
            named or f"{run.id} has no checkpoint that a relaunch would resume from",
            f"`rerail checkpoints {run.id}` lists what there is",
        )
    return chosen[:1] if step is not None else chosen


def _download(s3: Any, uri: str, chosen: Sequence[StoredCheckpoint], folder: Path) -> list[Path]:
    """Return the files that were fetched, as they lie below the folder."""
    bucket, prefix = split_uri(uri)
    files = []
    for save in chosen:
        start = f"{prefix}{save.folder}/" if save.is_folder and not save.is_single_file else f"{prefix}{save.folder}"
        for page in s3.get_paginator("list_objects_v2").paginate(Bucket=bucket, Prefix=start):
            for item in page.get("Contents", []):
                if save.keys and item["Key"].removeprefix(prefix) not in save.keys:
                    continue
                path = folder / item["Key"].removeprefix(prefix)
                try:
                    if not path.resolve().is_relative_to(folder.resolve()):
                        raise ValueError(f"{item['Key']} would be written outside of {folder}")
                    path.parent.mkdir(parents=True, exist_ok=True)
                    s3.download_file(bucket, item["Key"], str(path))
                except (OSError, ValueError) as error:  # others choose the names
                    place.fail(
                        f"--download: cannot write what {uri} has: {error}", "name another folder, or fetch it by hand"
                    )
                files.append(path)
    return files


def _remedy(error: Exception, uri: str) -> str:
    if is_denied(error):
        return f"ask for s3:ListBucket and s3:GetObject on {uri.rstrip('/')}/*, and kms:Decrypt if it has a key"
    if get_code(error) == "NoSuchBucket":
        return "check the bucket of the job's CheckpointConfig: it is gone"
    return "check your credentials and region, or try again"


def _plain(run: Run, saves: Sequence[StoredCheckpoint], downloaded: Sequence[Path] | None) -> dict[str, Any]:
    chosen = find_resume_point(run, saves)
    return {
        "downloaded": None if downloaded is None else [str(path) for path in downloaded],
        "run": run.id,
        "where": run.checkpoint_uri,
        "resume_from": chosen and {"folder": chosen.folder, "step": chosen.step},
        "checkpoints": [_row(run, save, saves) for save in saves],
        "copies": [
            {
                "file": copy.name,
                "where": f"s3://{split_uri(run.checkpoint_uri)[0]}/{copy.key}",
                "saved_at": copy.saved_at.isoformat(),
                "step": copy.step,
                "attempt": copy.attempt,
                "bytes": copy.bytes,
                "restorable": not is_rejected(run, copy),
            }
            for copy in sorted(run.copies, key=SAVED_AT, reverse=True)
        ],
    }


def _row(run: Run, save: StoredCheckpoint, saves: Sequence[StoredCheckpoint]) -> dict[str, Any]:
    known = save.checkpoint
    return {
        "folder": save.folder,
        "step": save.step if save.has_step else None,
        "layout": save.layout or None,
        "attempt": known.attempt if known else None,
        "saved_at": known.saved_at.isoformat() if known else None,
        "reason": known.reason if known else "",
        "health": _health(run, save),
        "why": assess_health(run, known)[1] if known and not save.is_quarantined else "",
        "bytes": save.bytes,
        "whole": save.is_whole,
        "finished": save.has_manifest,
        "aside": save.is_quarantined,
        "verified": save.is_verified and not save.damage,
        "damage": save.damage,
        "passed_over": explain_passed_over(run, save, saves),
    }


def _print(run: Run, saves: Sequence[StoredCheckpoint], *, explain: bool) -> None:
    console = Console()
    chosen = find_resume_point(run, saves)
    if not saves:
        console.print(NOTHING.format(uri=escape(run.checkpoint_uri)))
        return
    console.print(f"[bold]{run.id}[/] in {escape(run.checkpoint_uri)}")
    console.print(_table(run, saves, chosen))
    if explain:
        for save in saves:
            console.print(f"  {_explain(run, save, saves, chosen)}")
    if chosen is None and any(save.is_single_file for save in saves):
        _print_without_step(run, saves, console)
        return
    if chosen is None:
        console.print("a relaunch would start [red]from the beginning[/]: nothing here can be resumed from")
        return
    console.print(f"a relaunch would resume from [green]step {chosen.step}[/] ({escape(chosen.folder)})")
    if chosen.damage:
        console.print(f"  it is damaged: {escape(chosen.damage)}; {_find_remedy(run, saves, chosen)}")
    for save in (save for save in saves if not save.is_quarantined and not explain):
        if save is not chosen and (why := explain_passed_over(run, save, saves)):
            console.print(f"  not from step {save.step}: {escape(why)}")
        elif save.checkpoint and (why := assess_health(run, save.checkpoint)[1]):
            health = _health(run, save)
            console.print(f"  step {save.step} is {health}: {escape(why)}")


def _find_remedy(run: Run, saves: Sequence[StoredCheckpoint], damaged: StoredCheckpoint) -> str:
    """Return what to do about damaged files of the checkpoint from which a relaunch would resume."""
    older = find_resume_point(run, [save for save in saves if save.step < damaged.step and not save.damage])
    if older is None:
        return "replace the damaged files; no older checkpoint is known to be sound"
    return f"`rerail rollback {run.id} --to {older.step}` has the run resume from step {older.step}"


def _explain(
    run: Run, save: StoredCheckpoint, saves: Sequence[StoredCheckpoint], chosen: StoredCheckpoint | None
) -> str:
    """Return what a checkpoint is by its layout, and why a relaunch would resume from it or not."""
    layout = f"{save.layout}, {save.number}" if save.layout else "no manifest" if not save.has_manifest else "manifest"
    if save is chosen:
        why = (
            f"chosen, though {save.damage}"
            if save.damage
            else "chosen: the newest that is whole and may be resumed from"
        )
    elif not save.has_step and not save.damage and not save.is_quarantined:
        why = "not chosen by Rerail, since its step is not known; the script may resume from it"
    elif why := explain_passed_over(run, save, saves):
        why = f"not chosen: {why}"
    else:
        why = f"not chosen: step {chosen.step} is newer" if chosen else "not chosen"
    pointer = f"; {save.pointer}" if save.pointer else ""
    return escape(f"{save.folder} ({layout}{pointer}): {why}")


def _print_without_step(run: Run, saves: Sequence[StoredCheckpoint], console: Console) -> None:
    """Say what it means that no checkpoint has a step: an unknown layout, another number, or files without any."""
    if any(save.layout for save in saves):
        console.print(NO_STEP)
    elif unknown := list_unknown_names([save.folder for save in saves]):
        more = f" and {len(unknown) - MAX_NAMES} more" if len(unknown) > MAX_NAMES else ""
        console.print(escape(UNKNOWN.format(names=f"{', '.join(unknown[:MAX_NAMES])}{more}")))
    else:
        _print_copies(run, console)


def _print_copies(run: Run, console: Console) -> None:
    """Say what a file without a step means, and list its copies."""
    reason = f"not copied: {run.current.copy_problem}" if run.current.copy_problem else NOT_COPIED
    console.print(f"{SINGLE_FILES}{COPIED if run.copies else escape(reason)}")
    for copy in sorted(run.copies, key=SAVED_AT, reverse=True):
        step = "step not known" if copy.step is None else f"at about step {copy.step}"
        note = "; [red]not restored: saved after the problem began[/]" if is_rejected(run, copy) else ""
        saved = f"{copy.saved_at:%Y-%m-%d %H:%M:%S}, {step}, attempt {copy.attempt}, {decimal(copy.bytes)}"
        console.print(f"  copy of {escape(copy.name)}: {saved}{note}")


def _health(run: Run, save: StoredCheckpoint) -> Health | None:
    """As it is known now; of what lies aside, as its manifest says."""
    if save.checkpoint is None:
        return None
    return save.checkpoint.health if save.is_quarantined else assess_health(run, save.checkpoint)[0]


def _table(run: Run, saves: Sequence[StoredCheckpoint], chosen: StoredCheckpoint | None) -> Table:
    table = Table()
    for head in ("step", "attempt", "saved at", "reason", "health", "size", "whole", "where"):
        table.add_column(head, overflow="fold")
    for save in saves:
        known, health = save.checkpoint, _health(run, save)
        step = str(save.step) if save.has_step else save.number or "-"
        table.add_row(
            f"[bold green]{step}[/]" if save is chosen else step,
            str(known.attempt) if known else "",
            f"{known.saved_at:%Y-%m-%d %H:%M:%S}" if known else "",
            escape(known.reason) if known else "",
            f"[{STYLES[health]}]{health}[/]" if health else "",
            decimal(save.bytes),
            _soundness(save),
            escape(save.folder),
        )
    return table


def _soundness(save: StoredCheckpoint) -> str:
    if save.damage:
        return f"[red]{escape(save.damage)}[/]"
    if save.readable is not None:
        counted = f"{save.readable} of {format_files(len(save.files))}"
        return "[green]yes, its files can be read[/]" if save.is_verified else f"[dim]{counted} can be read[/]"
    if save.is_single_file and not save.layout:
        return "[dim]not known[/]"
    if not save.has_manifest:
        return "[dim]no manifest[/]" if save.checkpoint else "[dim]not finished[/]"
    return "[green]yes, checksums compared[/]" if save.is_verified else "yes"
