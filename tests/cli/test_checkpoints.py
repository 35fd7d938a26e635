"""`rerail checkpoints`: what is saved, what is sound, and where a relaunch would carry on."""

import io
import json
from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest
import torch
import typer
import xxhash
from moto import mock_aws
from typer.testing import CliRunner

from cli import place, saves
from cli.checkpoints import checkpoints
from cli.place import Place
from rerail.aws.clients import client
from rerail.model.causes import Cause
from rerail.model.checkpoints import Health
from rerail.model.file_copies import FileCopy
from rerail.model.manifest_signature import make_signature
from rerail.model.run import Attempt, HealthLabel, Incident, Run, RunState, TimelineEntry
from tests.aws.places import TABLE, make_bucket, make_table
from tests.raising import raising

NOON = datetime(2026, 1, 31, 12, tzinfo=UTC)
BUCKET, PREFIX = "bucket", "runs/gpt/"
RUN = Run(
    id="gpt",
    policy="default",
    state=RunState.WATCHING,
    created_at=NOON,
    attempts=(Attempt(number=1, job_name="gpt"),),
    checkpoint_uri=f"s3://{BUCKET}/{PREFIX}",
)


@pytest.fixture
def s3(monkeypatch):
    """A deployment with one run, and an empty bucket."""
    with mock_aws():
        make_table(client("dynamodb"))
        s3 = make_bucket(BUCKET)
        monkeypatch.setattr(place, "find", lambda *, local: Place("stack Rerail", {"TableName": TABLE}))
        keep(RUN)
        yield s3


def keep(run: Run) -> None:
    entry = TimelineEntry(run.id, run.version + 1, NOON, run.state, run.state, "made")
    Place("", {"TableName": TABLE}).runs.save(replace(run, version=run.version + 1), entry, {})


def save(s3, step: int, *, folder: str = "", content: bytes = b"weights", **changes) -> None:
    """A whole checkpoint of one file."""
    folder = f"{PREFIX}{folder or f'step-{step:09d}'}"
    s3.put_object(Bucket=BUCKET, Key=f"{folder}/__0_0.distcp", Body=content)
    checksum = f"xxh3_64:{xxhash.xxh3_64(content).hexdigest()}"
    manifest = {
        "schema": 1,
        "run": "gpt",
        "attempt": 1,
        "step": step,
        "files": [{"name": "__0_0.distcp", "bytes": len(content), "checksum": checksum}],
        "saved_at": f"2026-01-31T03:{step % 60:02d}:00Z",
        "reason": "periodic",
        "health": "clean",
    }
    s3.put_object(Bucket=BUCKET, Key=f"{folder}/manifest.json", Body=json.dumps(manifest | changes))


def test_saves_of_a_script_without_manifests_are_known_by_their_layout(s3):
    """Newest first, with what the newest lacks, and the one that it would carry on from."""
    names = ("model.safetensors", "optimizer.pt", "scheduler.pt", "trainer_state.json")
    for step, files in ((100, names), (200, names), (300, names[:2])):
        for name in files:
            s3.put_object(Bucket=BUCKET, Key=f"{PREFIX}checkpoint-{step}/{name}", Body=b"x")
    found = facts()
    assert [(row["step"], row["whole"]) for row in found["checkpoints"]] == [(300, False), (200, True), (100, True)]
    assert "trainer_state.json" in found["checkpoints"][0]["passed_over"]
    assert found["resume_from"]["step"] == 200
    keep(replace(RUN, version=1, attempts=(replace(RUN.current, agent=True),)))
    assert facts()["resume_from"] is None, "an agent resumes from nothing without a manifest"


def test_a_save_after_a_rollback_is_shown_as_clean_and_of_its_own_attempt(s3):
    for name in ("model.safetensors", "optimizer.pt", "scheduler.pt", "trainer_state.json"):
        s3.put_object(Bucket=BUCKET, Key=f"{PREFIX}checkpoint-60/{name}", Body=b"x")
    incident = Incident(1, "divergence", 1, Cause.DIVERGED, "", "", NOON, NOON, step=60, resume_step=20, onset_step=40)
    attempts = tuple(Attempt(number, f"gpt-{number}", created_at=NOON) for number in (1, 2))
    keep(replace(RUN, version=1, attempts=attempts, incidents=(incident,)))
    row = facts()["checkpoints"][0]
    assert (row["attempt"], row["health"], row["why"], row["passed_over"]) == (2, "clean", "", "")


def rerail(*arguments: str, columns: int = 200):
    app = typer.Typer()
    app.command()(checkpoints)
    return CliRunner().invoke(app, list(arguments), env={"COLUMNS": str(columns), "NO_COLOR": "1"})


def facts(*arguments: str) -> dict:
    answer = rerail("gpt", "--json", *arguments)
    assert answer.exit_code in (0, 1), answer.output
    return json.loads(answer.stdout)


def test_what_is_saved_is_listed_newest_first_and_the_one_to_resume_from_is_named(s3):
    for step in (20, 100, 60):
        save(s3, step)
    answer = rerail("gpt")
    assert answer.exit_code == 0, answer.output
    rows = [line for line in answer.stdout.splitlines() if "step-0000" in line and "periodic" in line]
    assert [row.split()[1] for row in rows] == ["100", "60", "20"]
    assert "2026-01-31 03:40:00" in rows[0] and "clean" in rows[0]
    assert "resume from step 100" in answer.stdout
    assert "not from step" not in answer.stdout
    assert "…" not in rerail("gpt", columns=80).stdout, "a narrow terminal cuts nothing off"


def test_each_newer_checkpoint_is_listed_with_the_reason_it_is_passed_over(s3):
    """Suspect, torn, unfinished, foreign: a relaunch resumes from the newest that is whole and clean."""
    save(s3, 20)
    save(s3, 40, health="suspect")
    save(s3, 60)
    s3.delete_object(Bucket=BUCKET, Key=f"{PREFIX}step-000000060/__0_0.distcp")
    s3.put_object(Bucket=BUCKET, Key=f"{PREFIX}step-000000080/__0_0.distcp", Body=b"x")
    save(s3, 100, schema=9)
    save(s3, 5, folder="step-000000120")
    printed = facts()
    assert printed["resume_from"] == {"folder": "step-000000020", "step": 20}
    why = {row["step"]: row["passed_over"] for row in printed["checkpoints"]}
    assert why[20] == ""
    assert why[40] == "its health is suspect: there was trouble with the loss when it was saved"
    assert why[60] == "missing or of another size: __0_0.distcp"
    assert why[80].startswith("no manifest")
    assert "field 'schema' is 9" in why[100]
    assert why[120] == "its manifest is of step 5"
    shown = rerail("gpt").stdout
    assert "not from step 40: its health is suspect" in shown
    assert "resume from step 20" in shown


def test_an_unsigned_checkpoint_above_the_first_signed_one_is_passed_over(s3):
    """Whenever it was written; below that it may be from before the agent had the key."""
    key = "0" * 64
    signer = Attempt(1, "gpt", agent=True, training_started_at=datetime.now(UTC) + timedelta(hours=1))
    keep(replace(RUN, version=1, signing_key=key, attempts=(signer,)))
    save(s3, 20)
    save(s3, 60)
    save(s3, 40)
    written = json.loads(s3.get_object(Bucket=BUCKET, Key=f"{PREFIX}step-000000040/manifest.json")["Body"].read())
    save(s3, 40, signature=make_signature(written, key=key))
    printed = facts()
    why = {row["step"]: row["passed_over"] for row in printed["checkpoints"]}
    assert why == {20: "", 40: "", 60: "its manifest is not signed, and those from step 40 on are"}
    assert printed["resume_from"]["step"] == 40


def test_what_a_rollback_quarantined_is_listed_and_never_resumed_from(s3):
    """Nothing of it is deleted; it comes last, with the attempt that saved it."""
    save(s3, 20)
    save(s3, 60, folder="quarantine/a1-step-000000060")
    save(s3, 60, folder="quarantine/a1-step-000000060-2")
    printed = facts()
    assert [row["folder"] for row in printed["checkpoints"]] == [
        "step-000000020",
        "quarantine/a1-step-000000060",
        "quarantine/a1-step-000000060-2",
    ]
    assert [row["aside"] for row in printed["checkpoints"]] == [False, True, True]
    assert printed["checkpoints"][1]["passed_over"] == "quarantined by a rollback"
    assert printed["resume_from"]["step"] == 20


def test_what_was_learnt_of_a_save_is_shown_with_its_reason(s3):
    """Suspect since a warning, clean again since the loss has mended, quarantined since nobody could load it."""
    save(s3, 20)
    save(s3, 40, health="suspect")
    save(s3, 60)
    save(s3, 80)
    labels = (
        HealthLabel(40, 1, Health.CLEAN, "the loss had recovered by step 50", "loss_spike", until=50),
        HealthLabel(60, 1, Health.QUARANTINED, "it could not be loaded, twice: bad magic", "r1", until=60),
        HealthLabel(70, 1, Health.SUSPECT, "saved after the loss had gone wrong at step 70", "divergence"),
    )
    keep(replace(RUN, version=1, labels=labels))
    printed = facts()
    assert printed["resume_from"] == {"folder": "step-000000040", "step": 40}
    known = {row["step"]: (row["health"], row["why"]) for row in printed["checkpoints"]}
    assert known == {
        80: ("suspect", "saved after the loss had gone wrong at step 70"),
        60: ("quarantined", "it could not be loaded, twice: bad magic"),
        40: ("clean", "the loss had recovered by step 50"),
        20: ("clean", ""),
    }
    printed = " ".join(rerail("gpt").stdout.split())
    assert "not from step 60: it could not be loaded, twice: bad magic" in printed
    assert "step 40 is clean: the loss had recovered by step 50" in printed


def test_nothing_to_resume_from_is_reported(s3):
    assert "that Rerail recognizes as a checkpoint" in " ".join(rerail("gpt").stdout.split())
    save(s3, 20, health="quarantined")
    assert "from the beginning" in rerail("gpt").stdout
    assert facts()["resume_from"] is None


def test_verify_reads_every_file_and_reports_mismatches(s3):
    """A flipped bit is not seen in a listing; the exit status says that one is damaged, and it is passed over."""
    save(s3, 20)
    save(s3, 40)
    assert rerail("gpt", "--verify").exit_code == 0
    assert [row["verified"] for row in facts("--verify")["checkpoints"]] == [True, True]
    s3.put_object(Bucket=BUCKET, Key=f"{PREFIX}step-000000040/__0_0.distcp", Body=b"Weights")
    assert facts()["resume_from"]["step"] == 40
    answer = rerail("gpt", "--verify")
    assert answer.exit_code == 1
    assert "__0_0.distcp does not match its checksum" in answer.stdout
    assert facts("--verify")["resume_from"]["step"] == 20


def test_verify_opens_the_files_of_a_script_without_manifests(s3):
    """The supervisor does not read them: a relaunch would resume from the damaged one, and the answer says so."""
    archive = io.BytesIO()
    torch.save({"weights": torch.arange(1000.0)}, archive)
    whole = archive.getvalue()
    for step, content in ((20, whole), (40, whole[:-500])):
        for name in ("pytorch_model.bin", "optimizer.pt", "scheduler.pt"):
            s3.put_object(Bucket=BUCKET, Key=f"{PREFIX}checkpoint-{step}/{name}", Body=content)
        s3.put_object(Bucket=BUCKET, Key=f"{PREFIX}checkpoint-{step}/trainer_state.json", Body=b'{"global_step": 1}')
    assert rerail("gpt").exit_code == 0
    answer = rerail("gpt", "--verify")
    assert answer.exit_code == 1
    shown = " ".join(answer.stdout.split())
    assert (
        "would resume from step 40" in shown and "it is damaged: " in shown and "optimizer.pt cannot be read" in shown
    )
    assert "`rerail rollback gpt --to 20` has the run resume from step 20" in shown
    assert "chosen, though " in " ".join(rerail("gpt", "--verify", "--explain").stdout.split())
    assert [row["verified"] for row in facts("--verify")["checkpoints"]] == [False, True]


def test_what_could_not_be_checked_is_not_called_readable(s3, monkeypatch):
    """A pickle of an older PyTorch, and a file that its script writes while it is read."""
    for name in ("pytorch_model.bin", "optimizer.pt", "scheduler.pt"):
        s3.put_object(Bucket=BUCKET, Key=f"{PREFIX}checkpoint-20/{name}", Body=b"\x80\x02a pickle")
    s3.put_object(Bucket=BUCKET, Key=f"{PREFIX}checkpoint-20/trainer_state.json", Body=b'{"global_step": 20}')
    answer = rerail("gpt", "--verify")
    assert answer.exit_code == 0 and "1 of 4 files can be read" in " ".join(answer.stdout.split())
    opened = saves.open_object

    def write_meanwhile(s3, where, size, advance):
        s3.put_object(Bucket=BUCKET, Key=where["Key"], Body=b"{}")
        return opened(s3, where, size, advance)

    monkeypatch.setattr(saves, "open_object", write_meanwhile)
    answer = rerail("gpt", "--verify")
    assert answer.exit_code == 0 and "0 of 4 files can be read" in " ".join(answer.stdout.split())
    assert [row["verified"] for row in facts("--verify")["checkpoints"]] == [False]


def test_a_manifest_without_checksums_cannot_be_verified(s3):
    """Anybody may write manifests; what cannot be compared is not called sound."""
    save(s3, 20, files=[{"name": "__0_0.distcp", "bytes": 7}])
    answer = rerail("gpt", "--verify")
    assert answer.exit_code == 1
    assert "__0_0.distcp has no checksum to compare" in answer.stdout


@pytest.mark.parametrize(
    ("run", "problem", "remedy"),
    [
        ("nobody", "there is no run 'nobody'", "rerail status"),
        ("bare", "save nowhere that Rerail knows of", "CheckpointConfig"),
        ("elsewhere", "cannot read s3://no-such-bucket/x/", "it is gone"),
    ],
)
def test_an_error_names_the_problem_and_the_remedy(s3, run, problem, remedy):
    keep(replace(RUN, id="bare", checkpoint_uri=""))
    keep(replace(RUN, id="elsewhere", checkpoint_uri="s3://no-such-bucket/x/"))
    answer = rerail(run)
    assert answer.exit_code == 2
    assert problem in answer.stderr
    assert remedy in answer.stderr


def test_a_file_that_is_overwritten_in_place_is_shown_without_a_step(s3):
    """A relaunch resumes from wherever the script does, also if an agent runs in the job."""
    keep(replace(RUN, version=RUN.version + 1, attempts=(replace(RUN.current, agent=True),)))
    s3.put_object(Bucket=BUCKET, Key=f"{PREFIX}ckpt.pt", Body=b"weights")
    answer = rerail("gpt", "--explain")
    assert answer.exit_code == 0 and "ckpt.pt" in answer.stdout and "wherever the script does" in answer.stdout
    assert "the script may resume from it" in " ".join(answer.stdout.split()) and "under way" not in answer.stdout
    assert "S3 versioning" in " ".join(answer.stdout.split())
    printed = json.loads(rerail("gpt", "--json").stdout)
    (row,) = printed["checkpoints"]
    assert printed["copies"] == []
    assert (row["folder"], row["step"], row["bytes"], row["whole"]) == ("ckpt.pt", None, 7, False)


def put(s3, *names: str) -> None:
    for name in names:
        s3.put_object(Bucket=BUCKET, Key=f"{PREFIX}{name}", Body=b"x")


def test_each_checkpoint_of_a_script_is_explained(s3):
    """Layout, number, what its pointer says and why it was chosen; a complete one without a manifest is not
    unfinished."""
    shards = [f"actor/{kind}_world_size_2_rank_{rank}.pt" for kind in ("model", "optim") for rank in (0, 1)]
    put(s3, *(f"global_step_{step}/{name}" for step in (10, 20) for name in shards), f"global_step_30/{shards[0]}")
    s3.put_object(Bucket=BUCKET, Key=f"{PREFIX}latest_checkpointed_iteration.txt", Body=b"20")
    shown = " ".join(rerail("gpt", "--explain").stdout.split())
    pointer = "latest_checkpointed_iteration.txt names '20'"
    assert f"global_step_30 (verl, RLinf, step 30; {pointer}): not chosen: lacks the optimizer's state" in shown
    assert f"global_step_20 (verl, RLinf, step 20; {pointer}): chosen: the newest that is whole" in shown
    assert f"global_step_10 (verl, RLinf, step 10; {pointer}): not chosen: step 20 is newer" in shown
    assert "no manifest" in shown and "not finished" not in shown
    assert "not from step 30" not in shown and "not from step 30" in rerail("gpt").stdout
    assert [row["layout"] for row in facts()["checkpoints"]] == ["verl, RLinf"] * 3


def test_checkpoints_with_a_manifest_are_explained(s3):
    save(s3, 20)
    save(s3, 40)
    shown = " ".join(rerail("gpt", "--explain").stdout.split())
    assert "step-000000040 (manifest): chosen" in shown
    assert "step-000000020 (manifest): not chosen: step 40 is newer" in shown


def test_an_unfinished_checkpoint_is_listed_though_nothing_can_be_resumed_from(s3):
    put(s3, "checkpoint-500/mm_projector.bin", "checkpoint-500/config.json")
    shown = " ".join(rerail("gpt", "--explain").stdout.split())
    assert "checkpoint-500 (diffusers, accelerate, step 500): not chosen: lacks the optimizer's state" in shown
    assert "from the beginning" in shown


def test_an_unknown_layout_is_said_to_be_unknown(s3):
    """Not that its files are overwritten in place."""
    put(s3, "weights-at-500/net.pt", "weights-at-1000/net.pt")
    shown = " ".join(rerail("gpt").stdout.split())
    assert "are of no layout that Rerail knows: weights-at-" in shown
    assert "weights-at-500" in shown and "weights-at-1000" in shown and "save to names such as step_500/" in shown
    assert "overwritten in place" not in shown


def test_epochs_are_listed_with_their_number_but_give_no_step(s3, tmp_path):
    put(s3, "epoch_1.pth", "epoch_2.pth", "last_checkpoint")
    answer = rerail("gpt", "--explain")
    shown = " ".join(answer.stdout.split())
    assert "epoch 2" in shown and "count epochs or saves, not steps" in shown
    assert "epoch_2.pth (file with an epoch, epoch 2): not chosen by Rerail, since its step" in shown
    printed = facts("--download", str(tmp_path))
    assert printed["resume_from"] is None
    assert [row["step"] for row in printed["checkpoints"]] == [None, None]
    assert printed["downloaded"] == [str(tmp_path / "epoch_2.pth")]


def test_a_checkpoint_of_several_files_is_downloaded(s3, tmp_path):
    """Without those of other steps whose names begin alike."""
    put(s3, *(f"model.ckpt-{step}.{part}" for step in (100, 1000) for part in ("index", "data-00000-of-00001")))
    found = facts("--download", str(tmp_path), "--step", "100")
    assert sorted(found["downloaded"]) == [
        str(tmp_path / f"model.ckpt-100.{part}") for part in ("data-00000-of-00001", "index")
    ]


def test_copies_of_a_file_are_shown_with_time_and_step(s3):
    """And whether they may be restored: not those from after the onset of a rolled-back attempt."""
    s3.put_object(Bucket=BUCKET, Key=f"{PREFIX}ckpt.pt", Body=b"weights")
    times = [RUN.created_at + timedelta(hours=hours) for hours in (1, 2)]
    copies = tuple(
        FileCopy("ckpt.pt", f"rerail-versions/gpt/{number}/ckpt.pt", "e", 7, at, 1, step=number * 100)
        for number, at in enumerate(times, start=1)
    )
    attempts = (replace(RUN.attempts[0], onset_at=times[1]), *RUN.attempts[1:])
    keep(replace(RUN, id="copied", copies=copies, attempts=attempts))
    shown = " ".join(rerail("copied").stdout.split())
    assert "at about step 200, attempt 1, 7 bytes; not restored" in shown and "at about step 100" in shown
    assert shown.count("not restored: saved after the problem began") == 1
    newest, oldest = json.loads(rerail("copied", "--json").stdout)["copies"]
    assert (newest["step"], newest["restorable"], oldest["restorable"]) == (200, False, True)
    assert oldest["where"] == f"s3://{BUCKET}/rerail-versions/gpt/1/ckpt.pt"


def test_a_missing_permission_is_named(s3, monkeypatch):
    """Whoever may see the runs may not always see the weights."""
    denied = s3.exceptions.ClientError({"Error": {"Code": "AccessDenied", "Message": "no"}}, "ListObjectsV2")
    monkeypatch.setattr("cli.checkpoints.list_checkpoints", raising(denied))
    answer = rerail("gpt")
    assert answer.exit_code == 2
    assert "s3:ListBucket and s3:GetObject on s3://bucket/runs/gpt/*" in answer.stderr


@pytest.mark.threat("T39")
@pytest.mark.parametrize("name", ["optimizer.pt/part", "x" * 300])
def test_a_name_that_cannot_be_written_here_is_one_clear_error(s3, tmp_path, name):
    """Names in S3 come from everyone who may write into the folder."""
    put(s3, *(f"checkpoint-100/{file}" for file in ("model.safetensors", "optimizer.pt", "trainer_state.json", name)))
    answer = rerail("gpt", "--download", str(tmp_path / "here"), "--step", "100")
    assert answer.exit_code == 2 and "--download: cannot write what s3://bucket/runs/gpt/ has" in answer.stderr


def test_a_checkpoint_is_downloaded_with_all_its_files(s3, tmp_path):
    """The one that a relaunch would resume from, or a step; what is not whole is never fetched as one."""
    save(s3, 20, content=b"old")
    save(s3, 100, content=b"new")
    s3.put_object(Bucket=BUCKET, Key=f"{PREFIX}step-000000200/__0_0.distcp", Body=b"torn")
    found = facts("--download", str(tmp_path / "newest"))
    assert (tmp_path / "newest" / "step-000000100" / "__0_0.distcp").read_bytes() == b"new"
    assert sorted(found["downloaded"]) == sorted(
        str(tmp_path / "newest" / "step-000000100" / name) for name in ("__0_0.distcp", "manifest.json")
    )
    facts("--download", str(tmp_path / "old"), "--step", "20")
    assert (tmp_path / "old" / "step-000000020" / "__0_0.distcp").read_bytes() == b"old"
    torn = rerail("gpt", "--download", str(tmp_path / "torn"), "--step", "200")
    assert torn.exit_code == 2 and "no whole checkpoint" in torn.output and not (tmp_path / "torn").exists()
    assert facts()["downloaded"] is None
    alone = rerail("gpt", "--step", "20")
    assert alone.exit_code == 2 and "--download" in alone.output
