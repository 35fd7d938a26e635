"""`--start-from RUN`: the newest good checkpoint of another run as a channel, from which a new run begins."""

from botocore.exceptions import BotoCoreError, ClientError

from cli.names import find_run
from cli.place import Place
from cli.saves import StoredCheckpoint, find_resume_point, list_checkpoints
from cli.submit.problem import Problem
from cli.trouble import explain
from rerail.decisions.decision import find_manifest_key

# The script finds the checkpoint's files in /opt/ml/input/data/start (SM_CHANNEL_START).
START_CHANNEL = "start"


def find_start(where: Place | None, given: str) -> str:
    """Return the S3 address of the checkpoint that `RUN`, `RUN:STEP` or an S3 folder names; raise Problem."""
    if not given or given.startswith("s3://"):
        return given
    run, _, step = given.partition(":")
    if step and not step.isdigit():
        raise Problem(f"--start-from {given}: {step!r} is not a step", "write RUN:STEP with a number")
    if where is None:
        raise Problem(
            f"--start-from {given}: Rerail is not deployed here, so its runs are not known",
            "give the checkpoint's S3 folder",
        )
    record = find_run(where, run)
    if not record.checkpoint_uri:
        raise Problem(f"--start-from {run}: its jobs save nowhere that Rerail knows of", "give an S3 folder")
    try:
        saves = list_checkpoints(where.client("s3"), record.checkpoint_uri, signing_key=find_manifest_key(record))
    except (ClientError, BotoCoreError) as error:
        raise Problem(f"--start-from {run}: {explain(error).what}", explain(error).remedy) from error
    good = [save for save in saves if save.is_whole and not save.is_quarantined]
    of_step = [save for save in good if step and save.step == int(step) and not save.is_single_file]
    chosen = next(iter(of_step), None) if step else find_resume_point(record, saves) or _find_file(saves)
    if chosen is None:
        known = ", ".join(str(save.step) for save in good) or "none"
        raise Problem(
            f"--start-from {given}: it has no such checkpoint that is whole and good (whole: {known})",
            f"`rerail checkpoints {run}` lists them; name one by its step or its S3 folder",
        )
    folder = f"{record.checkpoint_uri.rstrip('/')}/{chosen.folder}"
    return f"{folder}/" if chosen.is_folder and not chosen.is_single_file else folder


def _find_file(saves: list[StoredCheckpoint]) -> StoredCheckpoint | None:
    """Return the one file that a script overwrites in place; None if there are several, which may belong together."""
    files = [save for save in saves if save.is_single_file]
    return files[0] if len(files) == 1 else None
