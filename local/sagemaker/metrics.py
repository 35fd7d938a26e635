"""CloudWatch metrics of a job: values found in its output, and what its hosts use."""

import math
import os
import re
import threading
import time
from datetime import UTC, datetime
from typing import Any

from .processes import HostProcess

NAMESPACE = "/aws/sagemaker/TrainingJobs"

# PutMetricData takes 1,000 metrics a call at most, and values up to 2 to the 360th.
_MOST_DATA, _LARGEST = 1_000, 2.0**360


class MetricScraper:
    """Apply MetricDefinitions to each line; `scan` is called by reader threads, `flush` blocks."""

    def __init__(self, cloudwatch: Any, *, job: str, definitions: list[dict[str, str]]) -> None:
        self._cloudwatch = cloudwatch
        self._dimensions = [{"Name": "TrainingJobName", "Value": job}]
        self._definitions = [(definition["Name"], re.compile(definition["Regex"])) for definition in definitions]
        self._data: list[dict[str, Any]] = []
        self._final: dict[str, tuple[float, float]] = {}
        self._adding = threading.Lock()
        self._flushing = threading.Lock()

    def scan(self, line: str) -> None:
        for name, regex in self._definitions:
            if match := regex.search(line):
                value = number_in(match.group(1) if regex.groups else match.group())
                if value is not None:
                    self._add(name, value)

    def final_values(self) -> dict[str, tuple[float, float]]:
        """Return each metric's last value with its time."""
        with self._adding:
            return dict(self._final)

    def flush(self) -> None:
        with self._flushing:
            while batch := self._data[:_MOST_DATA]:
                self._cloudwatch.put_metric_data(Namespace=NAMESPACE, MetricData=batch)
                with self._adding:
                    del self._data[: len(batch)]

    def _add(self, name: str, value: float) -> None:
        now = time.time()
        with self._adding:
            self._data.append(_datum(name, value, now, self._dimensions))
            self._final[name] = (value, round(now, 3))


class HostMeter:
    """CPU and memory of one host since the last reading, as SageMaker's own host metrics."""

    def __init__(self, process: HostProcess, *, job: str, host: str) -> None:
        self._process = process
        self._dimensions = [{"Name": "Host", "Value": f"{job}/{host}"}]
        self._last = (time.monotonic(), 0.0)

    def read(self) -> list[dict[str, Any]]:
        usage, now, wall = self._process.usage(), time.monotonic(), time.time()
        (before, cpu_before), self._last = self._last, (now, usage.cpu_seconds)
        cpu = 100 * max(0.0, usage.cpu_seconds - cpu_before) / max(now - before, 1e-3)
        memory = 100 * usage.resident_bytes / (os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE"))
        return [
            _datum("CPUUtilization", cpu, wall, self._dimensions),
            _datum("MemoryUtilization", memory, wall, self._dimensions),
        ]


def number_in(text: str | None) -> float | None:
    """CloudWatch refuses NaN and infinity, and SageMaker drops them without a word."""
    try:
        value = float(text or "")
    except ValueError:
        return None
    return value if math.isfinite(value) and abs(value) <= _LARGEST else None


def _datum(name: str, value: float, when: float, dimensions: list[dict[str, str]]) -> dict[str, Any]:
    moment = datetime.fromtimestamp(when, UTC)
    return {"MetricName": name, "Value": value, "Timestamp": moment, "Dimensions": dimensions}
