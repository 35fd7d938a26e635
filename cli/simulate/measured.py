"""Replace assumptions of the simulation by what `rerail acceptance` has measured in an account."""

from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

from cli.backtest.series import BadInput
from cli.simulate.assumptions import Assumptions
from rerail.model.measurements import BadMeasurements, Measurements, parse_measurements


def _keep(measured: float, assumed: float) -> float:
    return measured


class MeasuredAssumption(NamedTuple):
    """An assumption and the measurement that replaces it."""

    name: str
    measurement: str
    # From the measured and the assumed value.
    combine: Callable[[float, float], float] = _keep


REPLACED = (
    MeasuredAssumption("cold_s", "startup_s"),
    MeasuredAssumption("repair_s", "startup_s"),
    MeasuredAssumption("warm_s", "warm_startup_s"),
    MeasuredAssumption("stop_s", "stop_s"),
    MeasuredAssumption("event_s", "event_s"),
    MeasuredAssumption("publish_s", "metric_s"),
    # The files of an acceptance are small: a large checkpoint is never faster.
    MeasuredAssumption("durable_s", "upload_s", max),
)


def read_measurements(file: Path) -> Measurements:
    """Return what the file holds; raise BadInput."""
    try:
        return parse_measurements(file.read_text(encoding="utf-8-sig"))
    except (OSError, UnicodeDecodeError) as error:
        raise BadInput(f"--measured {file} cannot be read: {error}", "give an acceptance.json") from error
    except BadMeasurements as error:
        problem, _, remedy = str(error).partition("; ")
        raise BadInput(f"--measured {file}: {problem}", remedy) from error


def replace_assumptions(assumed: Assumptions, measured: Measurements) -> tuple[Assumptions, Mapping[str, str]]:
    """Return the assumptions with the measured values, and the source of each value that was replaced."""
    values = {
        replaced.name: replaced.combine(measured.seconds[replaced.measurement], getattr(assumed, replaced.name))
        for replaced in REPLACED
        if replaced.measurement in measured.seconds
    }
    changed: dict[str, Any] = {name: value for name, value in values.items() if value != getattr(assumed, name)}
    return replace(assumed, **changed), dict.fromkeys(changed, measured.source)
