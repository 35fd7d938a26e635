"""Warn about valid but probably unintended settings of a policy; one check per function, in display order."""

from collections.abc import Callable, Iterator
from dataclasses import fields, is_dataclass
from datetime import timedelta

from cli.policies.words import make_plain
from rerail.model.policy import Mode, Policy

Oddity = Callable[[Policy], str]
LONG_WAIT = timedelta(hours=12)


def find_oddities(policy: Policy) -> Iterator[str]:
    """A sentence for each oddity; it names the fields and says what they come to."""
    yield from filter(None, (question(policy) for question in QUESTIONS))


def check_sizes(policy: Policy) -> str:
    for section in (field.name for field in fields(policy) if is_dataclass(getattr(policy, field.name))):
        ours, usual = getattr(policy, section), getattr(Policy(), section)
        for name in (field.name for field in fields(ours)):
            value, default = getattr(ours, name), getattr(usual, name)
            is_size = isinstance(value, int | float | timedelta) and not isinstance(value, bool)
            if is_size and default and value > 100 * default:
                usually = make_plain(default)
                return f"{section}.{name} is more than 100 times its default, {usually}; correct it if that is a slip"
    return ""


def check_shares(policy: Policy) -> str:
    for name in ("throughput_drop", "throughput_grave", "throughput_rise"):
        if (value := getattr(policy.detection, name)) >= 1:
            return f"detection.{name} is {value:g}, a share that is never reached: 0.1 is 10 %; give less than 1"
    return ""


def check_save_interval(policy: Policy) -> str:
    if policy.interval.shortest > policy.interval.longest:
        return "interval.shortest is longer than interval.longest: no interval is between them; swap them"
    return ""


def check_relaunches(policy: Policy) -> str:
    if policy.limits.attempts < 2:
        return f"limits.attempts is {policy.limits.attempts}: the first failure holds the run; give at least 2"
    if not policy.retries.infrastructure:
        return "retries.infrastructure is 0: a lost machine holds the run; give at least 1"
    return ""


def check_start_limit(policy: Policy) -> str:
    limits = policy.limits
    if not limits.starts:
        return "limits.starts is 0: each relaunch is a restart storm and holds the run; give at least 2"
    if limits.starts > limits.attempts:
        return f"limits.starts ({limits.starts}) is above limits.attempts ({limits.attempts}): it is never reached"
    for window, limit in (("starts_window", "starts"), ("account_window", "account_relaunches")):
        if not getattr(limits, window):
            return f"limits.{window} is 0s: limits.{limit} then limits nothing; give minutes"
    return ""


def check_dollar_limits(policy: Policy) -> str:
    limits = policy.limits
    if 0 < limits.run_dollars < limits.incident_dollars:
        return (
            f"limits.incident_dollars ({limits.incident_dollars:g}) is above limits.run_dollars "
            f"({limits.run_dollars:g}): it is never reached"
        )
    if 0 < limits.stop_dollars < limits.run_dollars:
        return (
            f"limits.run_dollars ({limits.run_dollars:g}) is above limits.stop_dollars "
            f"({limits.stop_dollars:g}): it is never reached"
        )
    return ""


def check_backoff(policy: Policy) -> str:
    for name in ("backoff", "capacity"):
        waits = getattr(policy, name)
        if waits.base > waits.cap:
            return f"{name}.base is longer than {name}.cap: every wait is the cap; swap them"
    return ""


def check_fallback_delay(policy: Policy) -> str:
    capacity = policy.capacity
    if capacity.fallbacks and capacity.fallback_after >= capacity.wait:
        return "capacity.fallback_after is not before capacity.wait ends: the fallbacks are never tried; shorten it"
    return ""


def check_save_answer(policy: Policy) -> str:
    if policy.save.answer > policy.save.deadline:
        return "save.answer is longer than save.deadline: a stop never waits for the answer; make it the shorter"
    return ""


def check_save_deadline(policy: Policy) -> str:
    if policy.save.deadline < timedelta(seconds=30):
        return "save.deadline is below 30s: few checkpoints are written in that time; give minutes"
    return ""


def check_in_place_restarts(policy: Policy) -> str:
    if policy.restart.in_place and not policy.restart.per_attempt:
        return "restart.per_attempt is 0 and restart.in_place is true: no restart in place is ever made; give 1 or more"
    return ""


def check_ladder(policy: Policy) -> str:
    ladder = policy.ladder
    if not (ladder.replays or ladder.skips or ladder.far_skips or ladder.lower_rates):
        return "every rung of [ladder] has 0 tries: a loss that runs away holds the run at once; give one a try"
    return ""


def check_far_skip(policy: Policy) -> str:
    ladder = policy.ladder
    if ladder.far_skips and ladder.far_skip_batches < ladder.skip_batches:
        return "ladder.far_skip_batches is below ladder.skip_batches: the farther rung skips less; swap them"
    return ""


def check_metric_names(policy: Policy) -> str:
    if not policy.metrics.step and not policy.metrics.loss:
        return "metrics.step and metrics.loss are both empty: jobs without the agent are not watched; name one"
    return ""


def check_approval_wait(policy: Policy) -> str:
    if policy.mode is Mode.APPROVE and policy.approval.wait > LONG_WAIT:
        return "approval.wait is above 12h: a dead run may stand still for so long; shorten it"
    return ""


def check_detection_delay(policy: Policy) -> str:
    detection = policy.detection
    if detection.stall_floor > timedelta(hours=2) or detection.blind_after > timedelta(hours=2):
        return "detection.stall_floor or detection.blind_after is above 2h: a job that hangs costs so much; shorten it"
    return ""


QUESTIONS: tuple[Oddity, ...] = (
    check_sizes,
    check_shares,
    check_save_interval,
    check_relaunches,
    check_start_limit,
    check_dollar_limits,
    check_backoff,
    check_fallback_delay,
    check_save_answer,
    check_save_deadline,
    check_in_place_restarts,
    check_ladder,
    check_far_skip,
    check_metric_names,
    check_approval_wait,
    check_detection_delay,
)
