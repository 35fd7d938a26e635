"""The moves that are planned for a checkpoint folder, object by object, and what forbids them."""

from dataclasses import replace
from datetime import datetime, timedelta
from typing import Any

import pytest

from rerail.decisions.quarantine import (
    BY_HAND,
    CLOCK_MARGIN,
    QuarantineMove,
    check_folder,
    has_claim,
    is_below,
    may_share,
    plan_moves,
)
from rerail.model.actions import CopyCheckpoint, QuarantineCheckpoints
from rerail.model.checkpoint_layouts import LATEST, TRACKER, StoredObject
from rerail.model.errors import QuarantineFailed
from rerail.model.file_copies import FileCopy
from rerail.model.run import Attempt, JobStatus, Run, RunState
from tests.fakes import MIDNIGHT

URI, FOLDER = "s3://bucket/team/gpt", "team/gpt/"
TARGET = "rerail-quarantine/gpt/a002/"
SECOND, HOUR = timedelta(seconds=1), timedelta(hours=1)
START, END = MIDNIGHT, MIDNIGHT + HOUR
ROLE = "arn:aws:iam::111122223333:role/Training"
FULL = 1 << 20


def stored(key: str, at: datetime = START, size: int = FULL, etag: str = "") -> StoredObject:
    return StoredObject(key, size, at, etag or f'"{key}"')


def action(resume: int | None = 100, **facts: Any) -> QuarantineCheckpoints:
    return QuarantineCheckpoints("gpt", 2, URI, resume, END, **{"saved_after": START} | facts)


def full(move: QuarantineMove) -> tuple[str, str, str, str]:
    return move.source.key, move.target, move.text, move.copy_key


def moved(objects: list[StoredObject], plan: QuarantineCheckpoints, **pointers: str) -> list[tuple[str, str, str]]:
    """Return each moved object below the folder, with the text or the object that takes its place."""
    moves = plan_moves(objects, pointers, plan)
    assert all(move.target == f"{TARGET}{move.source.key.removeprefix(FOLDER)}" for move in moves)
    assert all(move.source.key.startswith(FOLDER) for move in moves)
    return [(move.source.key.removeprefix(FOLDER), move.text, move.copy_key) for move in moves]


def steps(*numbers: int, at: datetime = START) -> list[StoredObject]:
    return [stored(f"step-{number}/model.pt", at) for number in numbers]


# Checkpoints with a step


def test_each_object_of_a_newer_checkpoint_moves_under_its_whole_name():
    objects = [*steps(100, 200), stored("step-200/optim.pt")]
    assert [full(move) for move in plan_moves(objects, {}, action())] == [
        (f"{FOLDER}step-200/{name}", f"{TARGET}step-200/{name}", "", "") for name in ("model.pt", "optim.pt")
    ]
    (first, _) = plan_moves(objects, {}, action())
    assert first == QuarantineMove(objects[1]._replace(key=f"{FOLDER}step-200/model.pt"), f"{TARGET}step-200/model.pt")


@pytest.mark.parametrize(
    ("resume", "expected"), [(99, [200, 101, 100]), (100, [200, 101]), (101, [200]), (200, []), (None, [200, 101, 100])]
)
def test_only_what_is_newer_than_the_step_to_resume_from_moves(resume: int | None, expected: list[int]):
    names = [name for name, _, _ in moved(steps(100, 101, 200), action(resume))]
    assert names == [f"step-{step}/model.pt" for step in expected]


def test_what_was_saved_after_the_jobs_end_stays():
    """A checkpoint's time is that of its newest file."""
    assert moved(steps(200, at=END), action()) == [("step-200/model.pt", "", "")]
    assert moved(steps(200, at=END + SECOND), action()) == []
    assert moved([*steps(200, at=START), stored("step-200/late.pt", END + SECOND)], action()) == []


# Pointers and copies


def test_a_pointer_to_a_newer_checkpoint_is_rewritten_for_the_one_to_resume_from():
    deepspeed = [stored(f"global_step{n}/mp_rank_00_model_states.pt") for n in (100, 200)]
    optimizer = [stored(f"global_step{n}/zero_pp_rank_0_mp_rank_00_optim_states.pt") for n in (100, 200)]
    objects = [*deepspeed, *optimizer, stored(LATEST, size=14)]
    found = moved(objects, action(), latest="global_step200")
    assert found[0] == (LATEST, "global_step100", "")
    assert {name for name, _, _ in found[1:]} == {item.key for item in (deepspeed[1], optimizer[1])}
    assert moved(objects, action(50), latest="global_step200")[0] == (LATEST, "", "")
    assert moved(objects, action(200), latest="global_step200") == []
    for pointers in ({"latest": "who knows"}, {"latest": "global_step99"}, {}):
        assert moved(objects, action(), **pointers)[0][0] != LATEST
    late = [*objects[:-1], stored(LATEST, END + SECOND, size=14)]
    assert LATEST not in [name for name, _, _ in moved(late, action(), latest="global_step200")]
    last = [*objects[:-1], stored(LATEST, END, size=14)]
    assert moved(last, action(), latest="global_step200")[0] == (LATEST, "global_step100", "")


def test_a_pointer_leads_only_to_a_whole_checkpoint_of_its_own_folder():
    def megatron(folder: str, step: int, *names: str) -> list[StoredObject]:
        return [stored(f"{folder}iter_{step:07d}/mp_rank_00/{name}") for name in names or ("model_optim_rng.pt",)]

    objects = [*megatron("a/", 100), *megatron("a/", 200), *megatron("b/", 200), stored(f"b/{TRACKER}", size=3)]
    pointers = {f"b/{TRACKER}": "200"}
    texts = {move.source.key: move.text for move in plan_moves(objects, pointers, action())}
    assert texts[f"{FOLDER}b/{TRACKER}"] == ""
    own = [*objects, *megatron("b/", 100)]
    deep = [item._replace(key=f"runs/{item.key}") for item in own]
    texts = {move.source.key: move.text for move in plan_moves(deep, {f"runs/b/{TRACKER}": "200"}, action())}
    assert texts[f"{FOLDER}runs/b/{TRACKER}"] == "100"
    texts = {move.source.key: move.text for move in plan_moves(own, pointers, action())}
    assert texts[f"{FOLDER}b/{TRACKER}"] == "100"


def lightning(step: int, at: datetime = START, size: int = FULL, etag: str = "") -> StoredObject:
    return stored(f"epoch=0-step={step}.ckpt", at, size, etag)


def test_a_copy_of_the_last_checkpoint_becomes_one_of_that_to_resume_from():
    """Unless it is one already, by ETag and size."""
    clean, tainted = lightning(100), lightning(200)
    last = stored("last.ckpt", etag=tainted.etag)
    assert moved([clean, tainted, last], action()) == [("last.ckpt", "", f"{FOLDER}{clean.key}"), (tainted.key, "", "")]
    same = stored("last.ckpt", etag=clean.etag)
    assert moved([clean, tainted, same], action()) == [(tainted.key, "", "")]
    shorter = stored("last.ckpt", size=FULL - 1, etag=clean.etag)
    assert moved([clean, tainted, shorter], action())[0] == ("last.ckpt", "", f"{FOLDER}{clean.key}")
    assert moved([tainted, last], action()) == [("last.ckpt", "", ""), (tainted.key, "", "")]
    assert moved([clean, tainted, stored("last.ckpt", END)], action())[0][0] == "last.ckpt"
    assert moved([clean, tainted, stored("last.ckpt", END + SECOND)], action()) == [(tainted.key, "", "")]


def test_a_copy_of_a_checkpoint_of_several_files_is_moved_and_replaced_by_nothing():
    sharded = [
        stored(f"epoch=0-step={n}.ckpt/{name}")
        for n in (100, 200)
        for name in ("__0_0.distcp", "__1_0.distcp", ".metadata")
    ]
    assert ("last.ckpt", "", "") in moved([*sharded, stored("last.ckpt")], action())


def test_pointers_of_other_layouts_are_rewritten_in_their_own_form():
    files = [stored(f"model.ckpt-{n}.{part}") for n in (100, 200) for part in ("index", "data-00000-of-00001")]
    text = 'model_checkpoint_path: "model.ckpt-200"'
    found = moved([*files, stored("checkpoint", size=40)], action(), checkpoint=text)
    assert found[0] == ("checkpoint", 'model_checkpoint_path: "model.ckpt-100"', "")
    assert [name for name, _, _ in found[1:]] == [item.key for item in files[2:]]
    tagged = [stored(f"step-{n}/{name}") for n in (100, 200) for name in ("model_states.pt", "optim_states.pt")]
    assert moved([*tagged, stored(LATEST, size=9)], action(), latest="step-200")[0] == (LATEST, "step-100", "")
    iterations = [stored(f"iter_{n}.pth") for n in (100, 200)]
    found = moved([*iterations, stored("last_checkpoint", size=30)], action(), last_checkpoint="/ckpt/iter_200.pth")
    assert found == [("last_checkpoint", "/ckpt/iter_100.pth", ""), ("iter_200.pth", "", "")]


def test_a_copy_beside_files_with_a_step_becomes_one_of_that_to_resume_from():
    files = [stored(f"checkpoint_1_{n}.pt") for n in (100, 200)]
    found = moved([*files, stored("checkpoint_last.pt", etag='"new"')], action())
    assert found == [("checkpoint_last.pt", "", f"{FOLDER}checkpoint_1_100.pt"), ("checkpoint_1_200.pt", "", "")]


def test_epochs_beside_files_with_a_step_move_if_they_were_saved_later():
    """fairseq saves at the end of each epoch and each so many updates."""
    files = [stored("checkpoint_1_100.pt", START + SECOND), stored("checkpoint_2_200.pt", START + HOUR / 2)]
    epochs = [stored("checkpoint1.pt", START), stored("checkpoint2.pt", START + HOUR / 2)]
    assert moved([*files, *epochs], action()) == [("checkpoint_2_200.pt", "", ""), ("checkpoint2.pt", "", "")]
    assert moved([*files, *epochs], action(strict=False)) == [("checkpoint_2_200.pt", "", "")]
    assert len(moved([*files, *epochs], action(None))) == 4


def test_each_rank_has_its_pointer():
    files = [stored(f"ep0-ba{n}-rank{rank}.pt") for n in (100, 200) for rank in (0, 1)]
    pointers = {f"latest-rank{rank}.pt.symlink": f"ep0-ba200-rank{rank}.pt" for rank in (0, 1)}
    found = moved([*files, *(stored(name, size=20) for name in pointers)], action(), **pointers)
    assert found[:2] == [(f"latest-rank{rank}.pt.symlink", f"ep0-ba100-rank{rank}.pt", "") for rank in (0, 1)]


def test_checkpoints_without_a_step_are_refused_by_name():
    """Epoch 4 may be from before the step to resume from, or after: nothing is moved."""
    epochs = [stored("epoch_3.pth"), stored("epoch_4.pth"), stored("last_checkpoint", size=30)]
    with pytest.raises(QuarantineFailed, match=r"are unknown \(epoch_3.pth, epoch_4.pth\)"):
        plan_moves(epochs, {"last_checkpoint": "/ckpt/epoch_4.pth"}, action())
    assert plan_moves(epochs, {"last_checkpoint": "/ckpt/epoch_4.pth"}, action(None, strict=False)) == []


# What was saved before the run


def test_what_is_older_than_the_run_is_never_moved():
    old = stored("step-300/model.pt", START - SECOND)
    with pytest.raises(QuarantineFailed) as refused:
        plan_moves([*steps(100, 200), old], {}, action())
    assert refused.value.message.endswith("so they may be another's (step-300/model.pt)")
    assert refused.value.advice == BY_HAND
    assert moved([*steps(100, 200), old], action(strict=False)) == [("step-200/model.pt", "", "")]
    assert moved([*steps(100, 200)], action(strict=False, saved_after=None)) == []
    with pytest.raises(QuarantineFailed):
        plan_moves(steps(100, 200), {}, action(saved_after=None))
    assert moved(steps(100), action(saved_after=None)) == []


def test_a_refusal_names_at_most_three_objects():
    old = steps(300, 301, 302, 303, at=START - SECOND)
    with pytest.raises(QuarantineFailed, match=r"\(step-300/model.pt, step-301/model.pt, step-302/model.pt\)"):
        plan_moves(old, {}, action())


# Files that are overwritten in place


COPY = FileCopy("ckpt.pt", "rerail-versions/gpt/ckpt.pt/1", "e1", FULL, START, 1, copy_etag="c1")


def test_an_overwritten_file_is_replaced_by_its_copy():
    plan = action(restored=(COPY,))
    (move,) = plan_moves([stored("ckpt.pt")], {}, plan)
    assert full(move) == (f"{FOLDER}ckpt.pt", f"{TARGET}ckpt.pt", "", COPY.key)
    assert (move.copy_etag, move.since, move.is_replaced) == ("c1", END - CLOCK_MARGIN, True)
    assert moved([stored("ckpt.pt", etag='"c1"')], plan) == []
    assert len(moved([stored("ckpt.pt", etag='"c1"', size=1)], plan)) == 1
    assert moved([stored("ckpt.pt")], replace(plan, strict=False)) == []
    assert moved([*steps(100), stored("ckpt.pt")], plan) == []


@pytest.mark.parametrize(
    ("since", "at", "is_moved"),
    [
        (None, START, True),
        (START + SECOND, START, False),
        (START, START, True),
        (START, END, True),
        (START, END + SECOND, False),
    ],
)
def test_only_what_was_saved_since_the_problem_and_before_the_end_is_replaced(
    since: datetime | None, at: datetime, is_moved: bool
):
    plan = action(restored=(COPY,), replaced_since=since)
    assert bool(moved([stored("ckpt.pt", at)], plan)) is is_moved


def test_a_file_without_a_copy_is_refused_by_name():
    names = ["a.pt", "b.pt", "c.pt", "last.ckpt"]
    objects = [stored(name) for name in names]
    with pytest.raises(QuarantineFailed) as refused:
        plan_moves(objects, {}, action())
    assert refused.value.message == f"the steps of the checkpoints under {URI} are unknown (a.pt, b.pt, c.pt)"
    assert refused.value.advice == BY_HAND
    with pytest.raises(QuarantineFailed, match=r"\(last.ckpt\)"):
        plan_moves(objects, {}, action(restored=tuple(replace(COPY, name=name) for name in names[:3])))


def test_a_move_is_replaced_by_a_text_or_a_copy_or_by_nothing():
    move = QuarantineMove(stored("a"), "b")
    assert [move.is_replaced, replace(move, text="x").is_replaced, replace(move, copy_key="x").is_replaced] == [
        False,
        True,
        True,
    ]


# Where it is forbidden


@pytest.mark.threat("T18")
@pytest.mark.parametrize(
    ("uri", "overlaps"),
    [
        ("s3://bucket", "rerail-quarantine/"),
        ("s3://bucket/rerail-quarantine", "rerail-quarantine/"),
        ("s3://bucket/rerail-quarantine/gpt", "rerail-quarantine/"),
        ("s3://bucket/rerail-versions/gpt", "rerail-versions/"),
        ("s3://bucket/rerail-quarantine-of-mine", ""),
        ("s3://bucket/team/rerail-quarantine", ""),
    ],
)
def test_the_folders_of_rerail_are_outside_of_all_checkpoint_folders(uri: str, overlaps: str):
    plan = replace(action(), uri=uri)
    if not overlaps:
        assert plan_moves(steps(100), {}, plan) == []
        return
    with pytest.raises(QuarantineFailed) as refused:
        plan_moves(steps(100), {}, plan)
    assert f"s3://bucket/{overlaps}, which overlaps with {uri}" in refused.value.message
    assert "a folder of its own" in refused.value.advice


@pytest.mark.threat("T19")
@pytest.mark.parametrize(
    ("request_of_job", "folders", "why"),
    [
        ({"CheckpointConfig": {"S3Uri": URI}, "RoleArn": ROLE}, {ROLE: [URI]}, ""),
        ({"CheckpointConfig": {"S3Uri": "s3://bucket/team"}, "RoleArn": ROLE}, {ROLE: ["s3://bucket/"]}, ""),
        ({"CheckpointConfig": {"S3Uri": f"{URI}/sub"}, "RoleArn": ROLE}, {ROLE: [URI]}, "is not below the S3Uri"),
        ({"CheckpointConfig": None, "RoleArn": ROLE}, {ROLE: [URI]}, "is not below the S3Uri"),
        ({"CheckpointConfig": {}, "RoleArn": ROLE}, {ROLE: [URI]}, "is not below the S3Uri"),
        ({"RoleArn": ROLE}, {ROLE: [URI]}, "is not below the S3Uri"),
        ({"CheckpointConfig": {"S3Uri": URI}, "RoleArn": ROLE}, {ROLE: [f"{URI}/sub"]}, f"of the role {ROLE} in {URI}"),
        ({"CheckpointConfig": {"S3Uri": URI}, "RoleArn": ROLE}, {"other": [URI]}, f"of the role {ROLE} in {URI}"),
        ({"CheckpointConfig": {"S3Uri": URI}, "RoleArn": ROLE}, {ROLE.lower(): [URI]}, f"of the role {ROLE} in"),
        ({"CheckpointConfig": {"S3Uri": URI}, "RoleArn": ROLE}, {f"{ROLE}x": [URI]}, f"of the role {ROLE} in"),
        ({"CheckpointConfig": {"S3Uri": URI}}, {ROLE: [URI], "None": [URI]}, "of the role  in"),
    ],
)
def test_a_folder_needs_the_jobs_configuration_and_the_deployments_list(
    request_of_job: dict[str, Any], folders: dict[str, list[str]], why: str
):
    if not why:
        check_folder(action(), request_of_job, folders)
        check_folder(CopyCheckpoint("gpt", URI, COPY), request_of_job, folders)
        return
    with pytest.raises(QuarantineFailed) as refused:
        check_folder(action(), request_of_job, folders)
    assert why in refused.value.message
    assert BY_HAND in refused.value.advice


@pytest.mark.threat("T18")
@pytest.mark.parametrize(
    ("uri", "folder", "expected"),
    [
        ("s3://a/b", "s3://a/b", True),
        ("s3://a/b/", "s3://a/b", True),
        ("s3://a/b", "s3://a/b/", True),
        ("s3://a/b/c", "s3://a/b", True),
        ("s3://a/b", "s3://a", True),
        ("s3://a/bc", "s3://a/b", False),
        ("s3://a/b", "s3://a/b/c", False),
        ("s3://a/b//c", "s3://a/b", False),
        ("s3://a/b/../c", "s3://a/b", False),
        ("s3://a/b/./c", "s3://a/b", False),
        ("s3://a/B/c", "s3://a/b", False),
        ("s3://A/b/c", "s3://a/b", False),
        ("s3://a/b%2Fc", "s3://a/b", False),
        ("s3://a/b", "s3://a//", False),
        ("https://a/b", "https://a/b", False),
        ("a/b", "a/b", False),
        ("s3://a/b\n", "s3://a/b\n", False),
        ("", "", False),
        ("s3://a/b", "", False),
        ("", "s3://a/b", False),
    ],
)
def test_a_folder_is_below_another_only_if_it_can_be_read_in_one_way(uri: str, folder: str, expected: bool):
    assert is_below(uri, folder) is expected


def other(state: RunState = RunState.WATCHING, *attempts: Attempt, uri: str = URI) -> Run:
    known = attempts or (Attempt(1, "other", JobStatus.IN_PROGRESS),)
    return Run("other", "default", state, MIDNIGHT, known, uri)


@pytest.mark.parametrize(
    ("run", "expected"),
    [
        (other(), True),
        (other(uri=f"{URI}/sub"), True),
        (other(uri="s3://bucket/team"), True),
        (other(uri="s3://bucket/team/gp"), False),
        (other(RunState.COMPLETED, Attempt(1, "other", JobStatus.COMPLETED, ended_at=START)), True),
        (other(RunState.COMPLETED, Attempt(1, "other", JobStatus.COMPLETED, ended_at=START - SECOND)), False),
        (other(RunState.HELD, Attempt(1, "other", JobStatus.IN_PROGRESS)), True),
        (other(RunState.HELD, Attempt(1, "other")), False),
        (other(RunState.STOPPED, Attempt(1, "other", JobStatus.FAILED)), False),
        (
            other(
                RunState.STOPPED,
                Attempt(1, "other", JobStatus.FAILED, ended_at=START + HOUR),
                Attempt(2, "other-a002", JobStatus.FAILED, ended_at=START - HOUR),
            ),
            True,
        ),
    ],
)
def test_a_run_shares_the_folder_if_it_may_have_saved_there_since(run: Run, expected: bool):
    assert may_share(run, URI, START) is expected


@pytest.mark.parametrize(
    ("has_trained", "configured", "folders", "expected"),
    [
        (True, URI, {}, True),
        (False, URI, {}, False),
        (True, "s3://bucket/else", {}, False),
        (True, "", {}, False),
        (False, "", {ROLE: [URI]}, True),
        (False, "", {ROLE: ["s3://bucket/else"]}, False),
        (False, "", {"other": [URI]}, False),
    ],
)
def test_another_run_has_a_claim_if_it_has_trained_there_or_the_deployment_lists_it(
    has_trained: bool, configured: str, folders: dict[str, list[str]], expected: bool
):
    first = Attempt(1, "other", JobStatus.FAILED, training_started_at=MIDNIGHT if has_trained else None)
    run = other(RunState.WATCHING, first, Attempt(2, "other-a002"))
    assert has_claim(run, {"RoleArn": ROLE, "CheckpointConfig": {"S3Uri": configured}}, folders) is expected
