"""Measures how fast this machine is now, so that a scaled clock leaves its programs the time that they need.

A clock that runs sixty times as fast as AWS makes a minute a second. On a slow or busy machine that is too short for
what must happen in it: functions start, processes train, metrics arrive. Whatever divides real durations (the clock of
the SageMaker fake, the sweep, the policy) is therefore slowed by the factor measured here.
"""

import os
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass

# The clock of demos and tests on a machine at reference speed.
FASTEST_SCALE = 60.0
# Set by a program that has measured already, so that processes started together share one clock.
VARIABLE = "RERAIL_SLOWDOWN"
# A still slower clock makes a scenario take half an hour: then the machine is the problem, and not its clock.
SLOWEST = 16.0
PROCESSES = 2
ROUNDS = 3
# What one round takes on two idle cores of a current server processor.
REFERENCE_S = 0.4
# Starts an interpreter and computes for a moment: what starting functions and small training steps are made of.
WORK = "import json, hashlib\nfor n in range(60000): hashlib.sha256(json.dumps({'step': n}).encode()).digest()"


@dataclass(frozen=True, slots=True)
class Pace:
    """The speed of this machine."""

    # 1 at reference speed or above, 4 on a machine a quarter as fast.
    slowdown: float = 1.0

    @property
    def scale(self) -> float:
        """Return how many times as fast as AWS a clock may run here."""
        return FASTEST_SCALE / self.slowdown

    def real(self, seconds: float) -> float:
        """Return the time that takes `seconds` at reference speed."""
        return seconds * self.slowdown


def measure_pace(time_round: Callable[[], float] | None = None) -> Pace:
    """Return the pace of this machine under its present load; RERAIL_SLOWDOWN, if set, wins.

    Takes about a second at reference speed. The median round counts, since a single one may meet a short load. Raises
    ValueError where the variable is not a number from 1 to 16.
    """
    if given := os.environ.get(VARIABLE):
        return Pace(_read(given))
    slowdown = measure_reference(time_round) / REFERENCE_S
    # Small differences are noise; a clock that differs from run to run for nothing confuses readers.
    return Pace(1.0 if slowdown < 1.5 else min(SLOWEST, round(2 * slowdown) / 2))


def measure_reference(time_round: Callable[[], float] | None = None) -> float:
    """Return the seconds of a median round of the reference work under the present load."""
    return sorted((time_round or _time_round)() for _ in range(ROUNDS))[ROUNDS // 2]


def _read(text: str) -> float:
    try:
        slowdown = float(text)
    except ValueError:
        slowdown = 0.0
    if not 1 <= slowdown <= SLOWEST:
        raise ValueError(f"{VARIABLE} is {text!r}: use a number from 1 (reference speed) to {SLOWEST:g}")
    return slowdown


def _time_round() -> float:
    """Return the seconds that as many processes as a small machine has cores take for the same work at once."""
    began = time.monotonic()
    workers = [subprocess.Popen([sys.executable, "-I", "-S", "-c", WORK]) for _ in range(PROCESSES)]
    for worker in workers:
        worker.wait()
    return time.monotonic() - began
