"""What a rollback asks of a plain training loop: samples to skip, and a factor on the learning rate."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from rerail_agent import Guard
from rerail_agent.data_order import DataOrder, find_obstacle
from rerail_agent.ladder import scale_learning_rate, skip_batches
from tests.agent.test_manifests import snippets


def test_the_page_for_users_shows_a_loop_that_skips_and_scales(new_guard, monkeypatch):
    """Batches with a sample to skip are left out, the next id counts them, and the scheduler's rate is used halved."""
    new_guard().close(within_s=0.2)
    monkeypatch.setenv("RERAIL_SKIP_SAMPLES", "130-191,320-321")
    monkeypatch.setenv("RERAIL_LR_SCALE", "0.5")
    weight = torch.zeros(1, requires_grad=True)
    optimizer = torch.optim.SGD([weight], lr=1.0)
    schedule = torch.optim.lr_scheduler.ExponentialLR(optimizer, gamma=0.5)
    trained = []

    def train_on(batch: int) -> None:
        trained.append(batch)
        weight.grad = torch.ones(1)
        optimizer.step()
        schedule.step()

    names = {
        "Guard": Guard,
        "optimizer": optimizer,
        "batches": range(1, 6),
        "consumed": 64,
        "save": None,
        "train_on": train_on,
    }
    exec(compile(snippets("Plain PyTorch")[-1], "docs/scripts.md", "exec"), names)
    names["guard"].close(within_s=0.2)
    assert (trained, names["consumed"]) == ([1, 3, 4], 320)
    assert weight.item() == -0.5 * (1 + 0.5 + 0.25)
    assert optimizer.param_groups[0]["lr"] == 0.125  # a checkpoint has the rate of the schedule
    scale_learning_rate(optimizer, environment={"RERAIL_LR_SCALE": "1"})
    train_on(0)
    assert weight.item() == -0.875 - 0.125


def test_a_rate_in_a_tensor_is_scaled_in_place_even_after_a_step_that_raised():
    """A compiled step reads the same tensor again."""
    rate = torch.tensor(0.25)
    weight = torch.zeros(1, requires_grad=True)
    optimizer = torch.optim.AdamW([weight], lr=rate, capturable=False, foreach=False)
    scale_learning_rate(optimizer, environment={"RERAIL_LR_SCALE": "0.5"})
    used = []

    def fail() -> None:
        used.append(rate.item())
        raise RuntimeError("out of memory")

    for _ in range(2):
        with pytest.raises(RuntimeError):
            optimizer.step(fail)
    optimizer.step(lambda: used.append(rate.item()))
    assert used == [0.125] * 3 and rate.item() == 0.25 and optimizer.param_groups[0]["lr"] is rate


@pytest.mark.parametrize(
    ("variable", "remedy"),
    [("RERAIL_SKIP_SAMPLES", "write first-last"), ("RERAIL_LR_SCALE", "must be a number above 0")],
)
def test_a_malformed_value_names_its_variable_and_a_remedy(variable, remedy):
    with pytest.raises(ValueError, match=f"{variable}.*{remedy}"):
        list(skip_batches([1], samples=4, environment={variable: "all"}))
        scale_learning_rate(environment={variable: "all"})


def test_an_optimizer_that_computes_its_own_rate_is_refused():
    optimizer = torch.optim.SGD([torch.zeros(1)], lr=0.1)
    optimizer.param_groups[0]["lr"] = None
    with pytest.raises(ValueError, match="SGD computes its own learning rate"):
        scale_learning_rate(optimizer)


def test_a_loader_whose_share_does_not_fit_the_ranks_is_refused():
    """Each rank would read all samples, or another part than before."""
    loader = torch.utils.data.DataLoader(range(8), batch_size=2)
    assert find_obstacle(loader, ranks=1) == ""
    assert "among 1 of 2 ranks" in find_obstacle(loader, ranks=2)


@given(
    st.integers(1, 7), st.integers(1, 5), st.integers(0, 4), st.lists(st.tuples(st.integers(0, 90), st.integers(0, 20)))
)
def test_a_position_is_found_again_and_no_skipped_sample_is_in_a_batch(batches, samples, spare, ranges):
    """For any epoch, whether or not its last step is full."""
    skipped = tuple((first, first + more) for first, more in ranges)
    order = DataOrder(batches, batches * samples + spare, samples, skipped)
    number = order.advance(0, 0)
    for count in range(1, 40):
        assert order.find(order.start(number)) == number and not order.is_skipped(number)
        ids = range(order.start(number), order.start(number) + samples)
        assert not any(first <= at <= last for first, last in skipped for at in ids)
        number = order.advance(number, 1)
        assert number == order.advance(0, count)
