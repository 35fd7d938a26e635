"""Training loops that the tests run in processes of their own; each returns what it saw."""

import os
import random
import signal
import textwrap
import time
from collections.abc import Callable
from typing import Any

import torch
from torch import distributed as dist

from rerail_agent import Guard, agreement

Say = Callable[[Any], None]


def agreeing(
    rank: int, *, say: Say, steps: int, flag: int, raised_by: int, at: int, skew_s: float, reduces: bool = True
) -> list[tuple[int, str]]:
    """Every rank is late by a random time, and one raises a flag at some moment. The steps at which each saves."""
    guard = Guard.from_env(log_every=10**9)
    chance = random.Random(rank)
    saves = []
    for step in range(1, steps + 1):
        time.sleep(chance.random() * skew_s)
        if step == at and rank == raised_by:
            if flag == agreement.SIGTERM:
                os.kill(os.getpid(), signal.SIGTERM)
            else:
                guard._agreement.raise_flag(flag)
        time.sleep(chance.random() * skew_s)
        loss = guard.reduce(torch.tensor(2.0 + rank)) if reduces else 2.0
        guard.step(step=step, loss=loss)
        if guard.wants_checkpoint:
            saves.append((step, guard.reason))
        if guard.should_stop:
            break
    return saves


def bits(rank: int, *, say: Say) -> tuple[list[bool], list[float]]:
    """Whether reduce() gives the bits of a plain all-reduce, over many losses of several kinds, and some of them."""
    guard = Guard.from_env(log_every=10**9)
    generator = torch.Generator().manual_seed(rank)
    same, means = [], []
    for number in range(200):
        loss = torch.rand((), generator=generator) * 10
        if number % 4 == 3:
            loss = loss.to(torch.bfloat16)
        plain = loss.float() / dist.get_world_size()
        dist.all_reduce(plain)
        mine = guard.reduce(loss if number % 4 else float(loss))
        same.append(mine == plain.item())
        means.append(mine)
        guard.step(step=number, loss=mine)
    return same, means


def first_alone(rank: int, *, say: Say) -> bool:
    """Only rank 0 calls step(), against the rules. Whether it came through."""
    from datetime import timedelta

    agreement.CALL_TIMEOUT = timedelta(seconds=0.3)
    guard = Guard.from_env(log_every=10**9)
    if rank == 0:
        for step in range(25):
            guard.step(step=step, loss=1.0)
    dist.barrier()
    return True


def on_command(rank: int, *, say: Say, reduces: bool, step_s: float = 0.01) -> list[tuple[int, str]]:
    """Trains until a command has come, saves at that step, and goes on for some steps."""
    guard = Guard.from_env(log_every=10**9)
    saves: list[tuple[int, str]] = []
    last = 10**9
    for step in range(1, 10**6):
        time.sleep(step_s)
        loss = 2.0 + step % 7 / 100  # one that stood still would be a finding
        loss = guard.reduce(loss) if reduces else loss
        guard.step(step=step, loss=loss)
        if step == 3:
            say("training")
        if guard.wants_checkpoint:
            saves.append((step, guard.reason))
            guard.committed(f"/shared/step-{step}", step, "remote")
            last = step + 20
        if step == last:
            break
    guard.close()
    return saves


def fenced(rank: int, *, say: Say) -> tuple[bool, bool]:
    """Trains until the attempt is fenced; whether it is, and whether it wants a checkpoint all the same."""
    guard = Guard.from_env(log_every=10**9)
    for step in range(1, 12_000):
        time.sleep(0.01)
        guard.step(step=step, loss=guard.reduce(1.0))
        if guard.fenced:
            break
    guard._agreement.raise_flag(agreement.COMMAND)
    guard.step(step=step + 1, loss=guard.reduce(1.0))
    guard.close()
    return guard.fenced, guard.wants_checkpoint


def hanging(rank: int, *, say: Say, culprit: int) -> None:
    """Trains ten steps; then one rank is lost in the data loader, and the others wait for it."""
    guard = Guard.from_env(log_every=10**9)
    for step in range(1, 11):
        guard.step(step=step, loss=guard.reduce(1.0))
    say("training")
    if rank == culprit:
        wait_for_a_batch_that_never_comes()
    guard.reduce(1.0)


def wait_for_a_batch_that_never_comes() -> None:
    signal.pause()


def working_alone(rank: int, *, say: Say, for_s: float) -> int:
    """Trains eleven steps; before the last one rank 1 evaluates for so long, and rank 0 waits for it."""
    guard = Guard.from_env(log_every=10**9)
    for step in range(1, 12):
        if step == 11 and rank:
            evaluate(for_s)
        guard.step(step=step, loss=guard.reduce(1.0))
    guard.close()
    return step


def evaluate(for_s: float) -> None:
    end = time.monotonic() + for_s
    while time.monotonic() < end:
        time.sleep(0.1)  # half of the time, as in a wait for a GPU
        textwrap.wrap("a batch of words " * 20_000)


def saving_periodically(rank: int, *, say: Say, steps: int, stall_s: float) -> list[tuple[int, str]]:
    """Trains and saves whenever the guard asks; the steps at which it did."""
    guard = Guard.from_env(log_every=10**9)
    saves = []
    for step in range(1, steps + 1):
        time.sleep(0.01)
        guard.step(step=step, loss=guard.reduce(2.0 + step % 7 / 100))
        if guard.wants_checkpoint:
            saves.append((step, guard.reason))
            with guard.phase("save"):
                time.sleep(stall_s)
            guard.committed(f"/shared/step-{step}", step, "remote")
    guard.close()
    return saves


def with_a_slow_rank(rank: int, *, say: Say, culprit: int, where: str, round_s: float, rounds: int = 5) -> None:
    """Trains some rounds in which one rank takes twice as long, to compute or to wait for data."""
    guard = Guard.from_env(log_every=10**9)
    guard._comparison.round_s = round_s
    begin = time.monotonic()
    step, is_over = 0, False
    while not is_over:
        step += 1
        with guard.track_data():
            time.sleep(0.06 if rank == culprit and where == "data" else 0.005)
        time.sleep(0.1 if rank == culprit and where == "compute" else 0.05)
        loss = guard.reduce(2.0 + step % 7 / 100)
        guard.step(step=step, loss=loss)
        votes = torch.tensor(float(time.monotonic() - begin > rounds * round_s))
        dist.all_reduce(votes)
        is_over = votes.item() > 0
    guard.close()
