"""Copies of files that a script overwrites in place: when they are made, kept and restored."""

from dataclasses import replace
from datetime import timedelta

import pytest

from rerail.decisions.decision import Decision, with_attempt
from rerail.decisions.file_copies import REFUSED_FOR, on_copied, with_copies, with_onset_dated
from rerail.messages.messages import CommandReceived, FindingsReceived, RunDue
from rerail.model.causes import Cause
from rerail.model.checkpoint_layouts import Layout
from rerail.model.checkpoints import Checkpoint
from rerail.model.errors import PolicyError, StateUnknown
from rerail.model.finding import Finding, Kind, Level
from rerail.model.policy import CopyPolicy, Mode, Policy, parse_policy
from rerail.model.run import RunState
from rerail.model.runbooks import Runbook
from rerail.model.signals import FileCopied, JobObserved, OperatorVerb
from tests.core.failures import NODE_LOST
from tests.core.test_damaged_checkpoint import DAMAGED
from tests.fakes import BUCKET, World
from tests.raising import raising


def train(*saves: str, policy: Policy | None = None, **facts) -> World:
    """Return a run whose script overwrote ckpt.pt every twenty minutes, with these ETags."""
    world = World()
    world.policies.by_name["default"] = policy or world.policies.by_name["default"]
    world.sagemaker.defined_metrics = ("step", "loss")
    world.adopt()
    for count, etag in enumerate(saves, start=1):
        world.minutes(5)
        world.checkpoints.save_file(etag=etag, **facts)
        job = world.sagemaker.jobs["gpt"]
        world.sagemaker.jobs["gpt"] = replace(job, metrics={"step": 100.0 * count})
        world.minutes(15)
    return world


def now_there(world: World) -> list[str]:
    return [file.etag for file in world.checkpoints.saved[BUCKET]]


def test_each_save_is_copied_and_the_newest_copies_are_kept():
    world = train("a", "b", "c", "d")
    run = world.run()
    assert [(copy.etag, copy.step) for copy in run.copies] == [("b", 200), ("c", 300), ("d", 400)]
    assert {copy.key: copy.copy_etag for copy in run.copies} == world.checkpoints.copies
    assert all(copy.key.startswith("rerail-versions/gpt/") for copy in run.copies)
    assert run.pending == () and not any("cop" in entry.reason for entry in world.runs.timeline), "no entry for each"


@pytest.mark.parametrize(
    ("policy", "copied"),
    [
        (Policy(copies=CopyPolicy(keep=1)), ["c"]),
        (Policy(copies=CopyPolicy(keep=0)), []),
        (Policy(mode=Mode.OBSERVE), []),
        (Policy(mode=Mode.PAUSE), ["a", "b", "c"]),
        (Policy(copies=CopyPolicy(every=timedelta(minutes=40))), ["a", "c"]),
    ],
    ids=["one", "off", "observe", "pause", "seldom"],
)
def test_the_policy_bounds_the_copies(policy, copied):
    assert [copy.etag for copy in train("a", "b", "c", policy=policy).run().copies] == copied


@pytest.mark.parametrize("keep", ["21", "-1", "true", '"3"'])
def test_a_number_of_copies_out_of_range_is_refused(keep):
    with pytest.raises(PolicyError, match=r"field 'copies\.keep' is .*; it must be a whole number from 0 to"):
        parse_policy(f"[copies]\nkeep = {keep}", name="mine")


def test_other_checkpoints_are_neither_copied_nor_listed_more_often():
    """Of a run with steps in its checkpoints' names, the sweep wakes nobody for a save."""
    world, listed = World(), []
    world.sagemaker.defined_metrics = ("step", "loss")
    under = world.checkpoints.list_checkpoints
    world.checkpoints.list_checkpoints = lambda uri, **more: (listed.append(uri), under(uri, **more))[1]
    world.with_saves(layout="hf")
    world.minutes(30)
    assert (world.run().copies, listed) == ((), [])


def test_only_whole_new_files_of_the_present_attempt_are_copied():
    """S3's times are whole seconds, and what a kill has torn, or what was restored, must not replace a copy."""
    world = train("a", bytes=2 << 20)
    run, job, (copy,) = world.run(), world.sagemaker.jobs["gpt"], world.run().copies
    at, first = copy.saved_at + CopyPolicy().every, run.current
    new = Checkpoint(f"{BUCKET}ckpt.pt", 0, 1, at, layout=Layout.FILE, bytes=2 << 20, etag="b")

    def list_due(run=run, count=1, status="Training", keep=3, **facts):
        files = [replace(new, **facts), *(replace(new, uri=f"{BUCKET}{n}.pt") for n in range(1, count))]
        seen = JobObserved(at, replace(job, secondary=status), files)
        return with_copies(run, Decision(run), seen, Policy(copies=CopyPolicy(keep))).actions

    (action,) = list_due()
    assert (action.copy.etag, action.is_first, len(list_due(count=4)), list_due(count=5)) == ("b", False, 4, ())
    refused = [{"uri": f"{BUCKET}a.bin"}, {"bytes": 0}, {"etag": ""}, {"bytes": 1000}, {"status": "Restarting"}]
    assert not any(list_due(**facts) for facts in refused)
    assert not list_due(replace(run, pending=(action,)))
    assert not list_due(replace(run, copies=(replace(copy, copy_etag="b"),)))
    assert list_due(with_attempt(run, replace(first, copy_problem="denied", copy_refused_at=at - REFUSED_FOR)))
    second = replace(first, number=2, training_started_at=at + timedelta(seconds=0.5))
    later = replace(run, attempts=(replace(first, onset_at=at - timedelta(minutes=15)), second))
    assert not list_due(later) and list_due(later, attempt=2, bytes=1000)
    bad = replace(copy, key="bad", saved_at=at - timedelta(minutes=10))
    sound = replace(copy, saved_at=at - timedelta(minutes=30))
    (action,) = list_due(replace(later, copies=(sound, bad)), keep=2, attempt=2)
    assert action.expired == (bad,), "it is never restored"
    again = on_copied(replace(run, pending=(action,)), FileCopied(at, action, copy), Policy())
    assert again.run.copies == (copy,), "one of the same key"


def test_a_cleared_obstacle_is_tried_again():
    """The folder is listed by a later deployment: nobody has to hold or release the run."""
    world = World()
    folders, world.quarantine_folders = world.quarantine_folders, {}
    world.sagemaker.defined_metrics = ("step", "loss")
    world.adopt()
    world.minutes(5)
    world.checkpoints.save_file(etag="a")
    world.minutes(90)
    problem = world.run().current.copy_problem
    assert "half an hour" in problem and "quarantineFolders" in problem and "release" not in problem
    world.quarantine_folders = folders
    world.minutes(35)
    run = world.run()
    assert ([copy.etag for copy in run.copies], run.current.copy_problem) == (["a"], "")
    recorded = [entry.reason for entry in world.runs.timeline if "copied" in entry.reason]
    assert len(recorded) == 2 and recorded[1] == "ckpt.pt is copied again: nothing prevents it any more"


def test_a_copy_that_takes_long_does_not_delay_anything_else():
    world = train("a")
    world.checkpoints.unfinished_copies = 15
    world.checkpoints.save_file(etag="b")
    world.minutes(11)
    assert world.run().pending and [copy.etag for copy in world.run().copies] == ["a"]
    world.sagemaker.fail("gpt", NODE_LOST)
    left = world.checkpoints.unfinished_copies
    world.minutes(2)
    assert (world.run().state, world.checkpoints.unfinished_copies) == (RunState.STARTING, left)
    world.minutes(1)
    assert world.sagemaker.live() == ["gpt-a002"]
    world.minutes(20)
    assert world.run().pending == () and [copy.etag for copy in world.run().copies] == ["a", "b"]


def lose_while_saving(world: World, etag: str = "torn") -> None:
    """Lose the node while it writes the file, which the next attempt cannot load."""
    world.checkpoints.save_file(etag=etag)
    world.lose_node(minutes=5)
    world.sagemaker.fail("gpt-a002", DAMAGED)


def test_a_damaged_file_is_replaced_by_its_newest_copy_before_the_launch():
    world = train("a", "b")
    lose_while_saving(world)
    there = []
    create = world.sagemaker.create
    world.sagemaker.create = lambda request: (there.extend(now_there(world)), create(request))[1]
    world.minutes(30)
    run = world.run()
    assert (run.state, run.current.number, there) == (RunState.WATCHING, 3, ["b"])
    assert [file.etag for file in world.checkpoints.quarantined] == ["torn"]
    assert any("replaced by its copy: ckpt.pt as saved at 2026" in notice.did for notice in world.bus.notices)
    assert [copy.etag for copy in run.copies] == ["a", "b"], "what was restored is not copied again"


def test_a_copy_that_is_damaged_too_leads_to_the_one_before():
    """Until no copy is left: then the run is held."""
    world = train("a", "b")
    lose_while_saving(world)
    world.minutes(30)
    world.sagemaker.fail("gpt-a003", DAMAGED)
    world.minutes(30)
    assert (world.run().current.number, now_there(world)) == (4, ["a"])
    world.sagemaker.fail("gpt-a004", DAMAGED)
    world.minutes(30)
    assert (world.run().state, world.run().hold_runbook) == (RunState.HELD, Runbook.DAMAGED_CHECKPOINT)
    assert world.run().ledger.charges[Cause.DAMAGED_CHECKPOINT] == 3


def test_a_copy_of_another_content_is_not_restored():
    world = train("a")
    lose_while_saving(world)
    world.checkpoints.copies = dict.fromkeys(world.checkpoints.copies, "other")
    world.minutes(30)
    assert (world.run().state, world.run().hold_runbook) == (RunState.HELD, Runbook.NOT_QUARANTINED)
    assert now_there(world) == ["torn"]


@pytest.mark.parametrize("saved", [True, False], ids=["saved since", "has trained"])
def test_an_attempt_that_had_loaded_its_file_restores_nothing(saved):
    """Another file was damaged: the run is held, as without copies."""
    world = train("a", "b")
    world.lose_node(minutes=5)
    if saved:
        world.checkpoints.save_file(etag="c")
    world.sagemaker.fail("gpt-a002", DAMAGED, metrics={} if saved else {"step": 120.0})
    world.minutes(30)
    assert (world.run().state, now_there(world)) == (RunState.HELD, ["c" if saved else "b"])


def test_several_files_go_back_to_one_time():
    """One that was not saved since then stays; if that is damaged too, none of the restored files is sound."""
    world = train("a")
    for name, etag in (("best.pt", "best"), ("ckpt.pt", "b"), ("best.pt", "best2")):
        world.checkpoints.save_file(name, etag=etag)
        world.minutes(20)
    lose_while_saving(world)
    for attempt, restored in ((3, ["b", "best2"]), (4, ["a", "best"])):
        world.minutes(30)
        assert (world.run().current.number, sorted(now_there(world))) == (attempt, restored)
        world.sagemaker.fail(f"gpt-a00{attempt}", DAMAGED)


def diverge(world: World, *, onset_step: int | None, minutes_ago: float) -> None:
    onset_at = world.clock() - timedelta(minutes=minutes_ago)
    finding = Finding(Kind.DIVERGENCE, Level.INTERVENE, 450, onset_step, "9.1 for 80 rows", world.clock(), onset_at)
    world.supervisor().handle(FindingsReceived("gpt", "gpt", (finding,)))
    world.minutes(30)


@pytest.mark.parametrize(("onset_step", "minutes_ago"), [(250, 30), (None, 20)])
def test_a_rollback_restores_the_newest_copy_from_before_the_onset(onset_step, minutes_ago):
    """Later saves go to quarantine, and neither their copies nor any later ones are restored.

    Without a step metric only the time is known, and the ten minutes before it are in doubt."""
    world = train("a", "b", "c")
    diverge(world, onset_step=onset_step, minutes_ago=minutes_ago)
    run = world.run()
    assert (run.state, run.current.number, now_there(world)) == (RunState.WATCHING, 2, ["b"])
    assert [file.etag for file in world.checkpoints.quarantined] == ["c"]
    assert any("replaced by earlier copies (ckpt.pt as saved at" in entry.reason for entry in world.runs.timeline)
    world.checkpoints.save_file(etag="d")
    world.minutes(20)
    world.checkpoints.save_file(etag="torn")
    world.lose_node("gpt-a002", minutes=5)
    for job, etag in (("gpt-a003", "d"), ("gpt-a004", "b")):
        world.sagemaker.fail(job, DAMAGED)
        world.minutes(20)
        assert now_there(world) == [etag], "not c, which is newer than b"


@pytest.mark.parametrize("saves", ["ab", "a"])
def test_a_copy_within_the_time_margin_is_restored_only_if_there_is_no_older_one(saves):
    """The newest was saved three minutes before the onset, `a` of two twenty minutes earlier."""
    world = train(*saves)
    world.checkpoints.save_file(etag="bad")
    diverge(world, onset_step=None, minutes_ago=12)
    assert now_there(world) == ["a"]


def test_a_rollback_keeps_the_margin_of_the_ladder():
    """The state of the newest copy before the onset may be bad already; the margin is a tenth of 210 steps."""
    world = train("a", "b", "c", policy=Policy())
    diverge(world, onset_step=210, minutes_ago=30)
    assert now_there(world) == ["a"]


@pytest.mark.parametrize(
    ("onset", "restored"),
    [(116, "95"), (104, "75"), (97, "75"), (80, "75")],
    ids=["a tenth before", "less than a tenth", "just before", "none a tenth before"],
)
def test_a_run_that_counts_epochs_goes_back_to_a_copy_from_before_the_onset(onset, restored):
    """The ladder's hundred steps are more than the run has; without an older copy the newest before the onset is taken.

    An operator can go back to it too, as long as the run is held."""
    world = train_epochs(75, 95, 120)
    finding = Finding(Kind.NON_FINITE, Level.INTERVENE, onset + 2, onset, "nan", world.clock())
    world.supervisor().handle(FindingsReceived("gpt", "gpt", (finding,)))
    world.minutes(30)
    run = world.run()
    assert (run.state, run.current.number, now_there(world)) == (RunState.WATCHING, 2, [restored])


def test_an_operator_goes_back_to_a_copy_of_a_run_that_counts_epochs():
    """Also after the loss went wrong, and to a step beyond the onset."""
    for to in (95, 96, 300):
        world = train_epochs(75, 95, 120)
        finding = Finding(Kind.NON_FINITE, Level.INTERVENE, 118, 116, "nan", world.clock())
        world.supervisor().handle(FindingsReceived("gpt", "gpt", (finding,)))
        world.minutes(1)
        world.supervisor().handle(CommandReceived("h", "gpt", OperatorVerb.HOLD, "ada", ""))
        world.minutes(5)
        world.supervisor().handle(CommandReceived("c1", "gpt", OperatorVerb.ROLLBACK, "ada", "", step=to))
        world.minutes(30)
        assert now_there(world) == ["95"]


def train_epochs(*epochs: int) -> World:
    """Return a run whose script overwrites its file, and whose step metric is the epoch."""
    world = train(policy=Policy())
    for epoch in epochs:
        world.minutes(5)
        world.checkpoints.save_file("checkpoint.pth.tar", etag=str(epoch))
        world.sagemaker.jobs["gpt"] = replace(world.sagemaker.jobs["gpt"], metrics={"step": float(epoch)})
        world.minutes(15)
    return world


def test_an_onset_is_dated_by_copies_of_its_attempt_or_earlier_ones():
    run = train("a", "b").run()
    first, second = run.copies
    run = replace(run, copies=(first, replace(second, attempt=2)))
    dated = with_onset_dated(run, replace(run.current, onset_step=1000), margin_steps=0)
    assert dated.onset_at == first.saved_at + timedelta(seconds=1)


def test_copies_of_names_that_are_gone_are_bounded():
    """A script that names each save anew has files, and does not overwrite them."""
    world = train()
    for count in range(8):
        world.minutes(5)
        world.checkpoints.saved.clear()
        world.checkpoints.save_file(f"model_{count}.pt")
        world.minutes(15)
    assert len(world.run().copies) == len(world.checkpoints.copies) == 4


def test_slow_steps_put_no_file_back():
    """A file saved since they began is as sound as any."""
    world = train("a", "b")
    at = world.clock()
    slow = Finding(Kind.THROUGHPUT_DROP, Level.INTERVENE, 450, 250, "2.1 s", at, at - timedelta(minutes=30))
    world.supervisor().handle(FindingsReceived("gpt", "gpt", (slow,)))
    world.minutes(30)
    assert (world.run().current.number, now_there(world), world.checkpoints.quarantined) == (2, ["b"], [])


def test_a_file_from_before_the_onset_stays():
    """It needs no copy, so the run is not held."""
    world = train("a")
    diverge(world, onset_step=250, minutes_ago=5)
    assert (world.run().state, now_there(world), world.checkpoints.quarantined) == (RunState.WATCHING, ["a"], [])


def test_a_file_that_stayed_and_is_damaged_is_replaced_by_its_newest_copy():
    """It was not restored, so that copy was not tried yet."""
    world = train("a", "b")
    world.checkpoints.save_file(etag="torn")
    world.minutes(3)
    diverge(world, onset_step=50, minutes_ago=1)
    assert now_there(world) == ["torn"]
    world.sagemaker.fail("gpt-a002", DAMAGED)
    world.minutes(20)
    assert now_there(world) == ["b"]


def test_a_folder_that_two_live_runs_share_is_not_copied_from():
    """The other runs are read once for an attempt, and not for each copy."""
    world, read = train("a"), []
    under = world.runs.open_runs
    world.runs.open_runs = lambda *parts: (read.append(parts), under(*parts))[1]
    world.checkpoints.save_file(etag="b")
    world.supervisor().handle(RunDue("gpt", lists=True))
    assert (len(world.run().copies), read) == (2, [])
    world.adopt("other")
    world.lose_node(minutes=5)
    world.checkpoints.save_file(etag="c")
    world.minutes(11)
    assert [copy.etag for copy in world.run().copies] == ["a", "b"]
    assert any("run other saves to" in entry.reason for entry in world.runs.timeline)


def test_two_files_of_one_save_are_no_interval():
    """A stall would count as confirmed by a save that is overdue after a second."""
    world = train()
    for name in ("best.pt", "last.pt"):
        world.checkpoints.save_file(name)
        world.clock.pass_by(timedelta(seconds=1))
    world.minutes(12)
    at = world.clock()
    stall = Finding(Kind.STALL, Level.INTERVENE, 100, None, "no step for 10 min", at, at - timedelta(minutes=10))
    world.supervisor().handle(FindingsReceived("gpt", "gpt", (stall,)))
    assert world.run().state is RunState.WATCHING


def test_nothing_is_copied_while_the_loss_is_in_trouble():
    world = train("a")
    warning = Finding(Kind.LOSS_SPIKE, Level.WARN, 150, 120, "9.1")
    world.supervisor().handle(FindingsReceived("gpt", "gpt", (warning,)))
    world.checkpoints.save_file(etag="b")
    world.minutes(15)
    assert [copy.etag for copy in world.run().copies] == ["a"]


@pytest.mark.parametrize(("step", "restored"), [(250, "b"), (100, "a"), (50, "c")])
def test_an_operator_names_a_copy_by_its_step(step, restored):
    """Nothing is as old as step 50: the command is refused. The ladder's margin does not apply."""
    world = train("a", "b", "c", policy=Policy())
    world.supervisor().handle(CommandReceived("c1", "gpt", OperatorVerb.ROLLBACK, "ada", "", step=step))
    world.minutes(30)
    assert now_there(world) == [restored]
    assert world.run().current.number == (1 if restored == "c" else 2)


def test_an_error_of_a_copy_is_reported_after_everything_else():
    """The message returns to the queue, and the copy stays pending."""
    world = train("a")
    world.checkpoints.save_file(etag="b")

    world.checkpoints.copy_file = raising(StateUnknown("S3 does not answer"))
    with pytest.raises(StateUnknown):
        world.minutes(15)
    assert world.run().pending
    with pytest.raises(StateUnknown):
        world.supervisor().handle(RunDue("gpt"))
