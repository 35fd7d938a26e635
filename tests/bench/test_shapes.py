"""Shapes of logs that fooled detectors: those that are right for every seed stay right."""

import pytest

from bench.shapes import SHAPES, Shape, count_right

WRONG = {"early spikes"}


@pytest.mark.parametrize("shape", [shape for shape in SHAPES if shape.name not in WRONG], ids=lambda shape: shape.name)
def test_a_shape_is_reported_as_it_should_be(shape: Shape) -> None:
    assert count_right(shape, (0, 1)) == 2
