"""Choose fall-back machines when there is no capacity: in the policy's order, each once during a wait."""

import re
from collections.abc import Iterator
from dataclasses import dataclass, replace

from rerail.model.actions import Machines
from rerail.model.causes import Cause
from rerail.model.machines import find_misfit, format_instance_types, has_more_memory, read_fallback
from rerail.model.policy import Policy
from rerail.model.run import Run

QUOTA = re.compile(
    r"service limit '(?P<name>[^']{1,200})' is (?P<limit>\d{1,9})(?:\.\d+)? Instance.{0,200}?"
    r"request delta of (?P<needed>\d{1,9})",
    re.DOTALL,
)


@dataclass(frozen=True, slots=True)
class Quota:
    """A service quota of the account that is too small for the job."""

    name: str  # as SageMaker's message names it
    limit: int  # instances that it allows
    needed: int  # instances that the job needs

    def __str__(self) -> str:
        return f"the quota '{self.name}' is {self.limit}, and the job needs {self.needed}"


def find_missing_quota(refusal: str) -> Quota | None:
    """Return the quota that SageMaker's refusal names if it is too small for the job alone, or None.

    Waiting cannot resolve such a refusal.
    """
    match = QUOTA.search(refusal)
    if not match:
        return None
    quota = Quota(match["name"], int(match["limit"]), int(match["needed"]))
    return quota if quota.limit < quota.needed else None


def list_untried(run: Run, policy: Policy) -> tuple[Machines, ...]:
    """Return the policy's fall-backs that fit the run and were not tried during this wait, in order."""
    tried = {*run.ledger.fallbacks, *_names(run.current.machines)}
    return tuple(
        machines
        for machines in _list_fallbacks(policy)
        if run.cluster.on(machines) != run.cluster
        and not find_misfit(run.cluster, machines)
        and format_instance_types(machines) not in tried
    )


def needs_its_machines(run: Run) -> bool:
    """Return whether memory ran out on smaller machines before, so that these are not given up for others."""
    now = run.current.machines
    ran_out = (run.cluster.on(attempt.machines) for attempt in run.attempts[:-1] if attempt.cause is Cause.OOM)
    return now is not None and any(
        has_more_memory(before, now, on_gpu=on_gpu) for before in ran_out for on_gpu in (True, False)
    )


def list_alternatives(run: Run, policy: Policy) -> tuple[Machines, ...]:
    """Return the fall-backs for want of capacity: the untried ones, unless the run needs the machines that it has."""
    return () if needs_its_machines(run) else list_untried(run, policy)


def find_larger(run: Run, policy: Policy, *, on_gpu: bool) -> Machines | None:
    """Return the first fall-back that fits the run and has more memory than its machines, or None."""
    now = run.cluster.on(run.current.machines)
    fitting = (other for other in list_untried(run, policy) if has_more_memory(now, other, on_gpu=on_gpu))
    return next(fitting, None)


def format_unsuitable(run: Run, policy: Policy) -> str:
    """Return why fall-backs of the policy do not fit this run, or an empty string."""
    reasons = (find_misfit(run.cluster, machines) for machines in _list_fallbacks(policy))
    return "; ".join(dict.fromkeys(reason for reason in reasons if reason))


def with_machines(run: Run, machines: Machines | None) -> Run:
    """Return the run whose next launch uses these machines; None: those of its own request.

    Both the machines that it leaves and those that it goes to count as tried.
    """
    names = (*run.ledger.fallbacks, *_names(run.current.machines), *_names(machines))
    ledger = replace(run.ledger, fallbacks=tuple(dict.fromkeys(names)))
    attempt = replace(run.current, machines=machines)
    return replace(run, ledger=ledger, attempts=(*run.attempts[:-1], attempt))


def _list_fallbacks(policy: Policy) -> Iterator[Machines]:
    return (read_fallback(text) for text in policy.capacity.fallbacks)


def _names(machines: Machines | None) -> tuple[str, ...]:
    return (format_instance_types(machines),) if machines else ()
