"""Random numbers go on where the checkpoint was saved."""

import random

import numpy
import torch

from rerail_agent.random_state import get_random_state, set_random_state


def draw() -> list[float]:
    return [random.random(), random.gauss(0, 1), numpy.random.rand(), numpy.random.randn(), torch.rand(1).item()]


def test_numbers_after_a_resume_are_those_of_an_undisturbed_run(tmp_path):
    """Through a file, as torch.load reads it without any permission for further types."""
    draw()
    torch.save({"random": get_random_state()}, tmp_path / "state.pt")
    expected = [draw(), draw()]
    set_random_state(torch.load(tmp_path / "state.pt")["random"])
    assert [draw(), draw()] == expected
