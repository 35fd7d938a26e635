"""Real ranks, joined by gloo, come late at random and still do the same at the same step."""

import pytest

from rerail_agent import agreement
from tests.agent import loops
from tests.agent.fake_s3 import Bucket
from tests.agent.jobs import Ranks, command, environment_of


@pytest.mark.parametrize(
    ("size", "raised_by", "flag", "reason"),
    [
        (2, 1, agreement.SIGTERM, "sigterm"),
        (3, 2, agreement.COMMAND, "emergency"),
        (4, 0, agreement.COMMAND, "emergency"),
        (3, 0, agreement.WARNING, "warning"),
    ],
)
def test_a_flag_on_any_single_rank_has_all_ranks_save_at_the_same_step(size, raised_by, flag, reason):
    """However late each rank is, one agreed step, at once, and only once."""
    ranks = Ranks(loops.agreeing, size, steps=30, flag=flag, raised_by=raised_by, at=12, skew_s=0.02)
    saves = ranks.answers()
    assert saves == [[(12, reason)]] * size


def test_without_reduce_the_ranks_agree_every_few_steps():
    """A loop that only calls step() saves at the same step on every rank too, at most ten steps later."""
    ranks = Ranks(loops.agreeing, 3, steps=40, flag=agreement.COMMAND, raised_by=1, at=12, skew_s=0.005, reduces=False)
    saves = ranks.answers()
    assert saves == [[(20, "emergency")]] * 3


@pytest.mark.parametrize("size", [2, 3])
def test_the_reduced_loss_has_the_bits_of_a_plain_all_reduce(size):
    """The flags that ride along do not change the mean, whatever the loss is given as, and it is the same on all."""
    answers = Ranks(loops.bits, size).answers()
    assert all(all(same) for same, _ in answers)
    assert all(means == answers[0][1] for _, means in answers)


def test_a_script_that_calls_step_on_rank_0_alone_is_not_hung():
    """Before the first agreement of its own, step() makes sure that every rank is there."""
    assert Ranks(loops.first_alone, 2).answers() == [True, True]


@pytest.mark.parametrize("reduces", [True, False])
def test_a_command_in_the_mailbox_has_all_ranks_save_at_the_same_step(bucket: Bucket, tmp_path, reduces):
    """Rank 0 receives it, all save, rank 0 reports; no other rank writes to the mailbox."""
    ranks = Ranks(loops.on_command, 3, environment=environment_of(bucket, base=tmp_path), reduces=reduces)
    assert ranks.said(0) == "training"
    bucket.command(command())
    report = bucket.wait_for_report("checkpoint")
    saves = _finals(ranks)
    (step, reason) = saves[0][0]
    assert saves == [[(step, "emergency")]] * 3
    assert (report.command, report.step, report.durability) == ("c1", step, "remote")
    logged = sorted(id for id, report in bucket.reports().items() if report.kind != "findings")
    assert logged == ["a001-acknowledged-c1", "a001-checkpoint-c1", "a001-hello"]


def test_a_newer_attempt_fences_every_rank(bucket: Bucket, tmp_path):
    """The command names attempt 2: attempt 1 learns it on all its ranks, wants no checkpoint any more, says so once."""
    ranks = Ranks(loops.fenced, 2, environment=environment_of(bucket, base=tmp_path))
    bucket.wait_for_report("hello")
    bucket.command(command(attempt=2))
    assert ranks.answers() == [(True, False)] * 2
    report = bucket.wait_for_report("refused")
    assert "attempt 2 owns the run" in report.reason


def _finals(ranks: Ranks) -> list[list[tuple[int, str]]]:
    """Each rank's last answer, behind what ranks 1 and 2 said on the way."""
    for rank in range(1, len(ranks.processes)):
        assert ranks.said(rank) == "training"
    return ranks.answers()
