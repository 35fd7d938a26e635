"""Every threshold of the detectors, with its default and where it was learnt.

"Corpus" means the labelled real training logs of the benchmark; a row is what was logged at once, be it one step or a
minute of them. Losses are compared as logarithms: 0.093 is a factor of 1.10.
"""

from dataclasses import dataclass
from datetime import timedelta


@dataclass(frozen=True, slots=True)
class Thresholds:
    """What may differ from one watched run to the next."""

    # Non-finite: so many bad rows in a row intervene; after so many good ones the next bad one is news again.
    non_finite_patience: int = 3
    non_finite_quiet_rows: int = 100

    # Below this no noise is believed: logs round, and the loss of a short stretch may stand still. 0.4 % of the loss.
    noise_floor: float = 0.004

    # Loss spike: one row above all four of: noise, an effect that matters, and twice what this run does of its own
    # accord. The gate on the effect is the largest single gain on the corpus (false alarms by five at equal recall).
    spike_noise: float = 5.5
    spike_gate: float = 0.093
    # Small jumps must be the surer: effect squared over noise, so that 15 % needs ten standard deviations.
    spike_sure: float = 1.5
    # The share of the last 512 rows that are habit, upwards (frequent outliers, two modes, saw-teeth), and downwards:
    # rare jumps down are never spikes, so they tell the habit of a restless log without counting its accidents.
    history_up: float = 0.975
    history_up_factor: float = 2.2
    history_down: float = 0.005
    history_down_factor: float = 1.9
    # Or so many rows in a row, each above this share of what one row alone would need. On the corpus 6 rows find one
    # more group's spikes (recall .90 for .81) for three more false alarms in 494,000 rows.
    run_rows: int = 7
    run_share: float = 0.4
    # Mended below this share of the limit; the way back teaches nothing for so many rows; a second warning when the
    # loss has not mended by then (the median spike is 5 rows wide); the level is accepted after so many rows.
    spike_mended: float = 0.5
    spike_aftermath_rows: int = 12
    spike_again_rows: int = 8
    spike_cap_rows: int = 64

    # Divergence: the median of 8 rows against the best level of the last 200.
    rise_gate: float = 0.095
    rise_noise: float = 3.7
    rise_tail: float = 0.61  # of the 90th percentile: the standard deviation of a normal distribution
    rise_history: float = 4.6
    rise_quantile: float = 0.9
    rise_history_cap: float = 0.5
    rise_tolerated: float = 1.2
    rise_mended: float = 0.5
    rise_cap_rows: int = 128
    # 64 rows lost none of 240 self-mending spikes in a simulation; on the corpus 56 lose one, 48 two, 32 five, and 64
    # to 96 none: the default keeps a distance to that edge. The other two hold where rows are a moment apart.
    patience_rows: int = 80
    patience_steps: int = 64
    patience: timedelta = timedelta(0)

    # Frozen: the same number so often, or exactly 0.0, or some times the longest repetition before.
    frozen_rows: int = 50
    frozen_zero_rows: int = 20
    frozen_factor: int = 3
    frozen_patience: int = 2

    # Plateau: off, because many a sound run ends on one.
    plateau: bool = False
    plateau_rows: int = 200
    plateau_gain: float = 0.03

    # Gradient norm: it warns early of one spike in five only, by twice its median.
    grad_norm_noise: float = 6.0
    grad_norm_factor: float = 2.0
    # A jump to less than this is not reported: gradients are commonly clipped at 1, so it changes next to nothing.
    grad_norm_floor: float = 3.0

    # Throughput: told at 10 % for 50 rows, acted on at 20 % for 200 (a relaunch must be repaid).
    throughput_window_rows: int = 50  # whose median is "now"; as many before it are the least to compare with
    throughput_drop: float = 0.10
    throughput_rows: int = 50
    throughput_creep: float = 0.5
    throughput_grave: float = 0.20
    throughput_patience_rows: int = 200
    throughput_cap_rows: int = 1000
    # Slow steps are reported once they have lost this much time. At once by default: of the labelled drops some are of
    # steps that take milliseconds. Local runs, whose machine has other work, are given seconds.
    throughput_floor: timedelta = timedelta(0)

    # Stalls: five times the longest gap known, as NVIDIA's resiliency extension has it, and never less than the floor.
    stall_factor: float = 5.0
    stall_floor: timedelta = timedelta(minutes=5)
    save_factor: float = 3.0  # so many of the longest interval between saves without one is told
    save_floor: timedelta = timedelta(minutes=10)
    startup_limit: timedelta = timedelta(minutes=30)
    blind_after: timedelta = timedelta(minutes=10)
    capacity_wait_after: timedelta = timedelta(hours=2)
