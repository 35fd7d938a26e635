"""How long things take in the fake: AWS-like seconds, all divided by one scale factor."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Timing:
    """Durations in seconds as on AWS; `real()` gives the seconds to wait here.

    Durations that come with a request (MaxRuntimeInSeconds, KeepAlivePeriodInSeconds, ...) are scaled too.
    Only `log_flush` is wall time: it bounds how stale logs and metrics are for a reader, whatever the scale.
    """

    scale: float = 1.0
    start: float = 90.0
    warm_start: float = 10.0
    download: float = 15.0
    upload: float = 10.0
    stop_grace: float = 120.0
    checkpoint_sync: float = 30.0
    host_metrics: float = 60.0
    restart: float = 60.0
    interruption: float = 300.0
    log_flush: float = 0.5

    def __post_init__(self) -> None:
        if self.scale <= 0:
            raise ValueError(f"scale must be above 0, not {self.scale}: 1 is AWS's pace, 60 makes a minute a second")

    def real(self, seconds: float) -> float:
        return seconds / self.scale
