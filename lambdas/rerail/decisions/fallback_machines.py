"""Other machines where there is no capacity: which come next, in the policy's order, each once while the wait lasts."""

import re
from collections.abc import Iterator
from dataclasses import dataclass, replace

from rerail.model.actions import Machines
from rerail.model.machines import find_misfit, format_instance_types, read_fallback
from rerail.model.policy import Policy
from rerail.model.run import Run

QUOTA = re.compile(
    r"service limit '(?P<name>[^']{1,200})' is (?P<limit>\d{1,9})(?:\.\d+)? Instance.{0,200}?"
    r"request delta of (?P<needed>\d{1,9})",
    re.DOTALL,
)


@dataclass(frozen=True, slots=True)
class Quota:
    """A quota of the account by its name, the instances that it allows, and those that the job needs."""

    name: str
    limit: int
    needed: int

    def __str__(self) -> str:
        return f"the quota '{self.name}' is {self.limit}, and the job needs {self.needed}"


def find_missing_quota(refusal: str) -> Quota | None:
    """The quota in SageMaker's words that is too small for the job even if nothing else runs: waiting does not mend
    it."""
    found = QUOTA.search(refusal)
    if not found:
        return None
    quota = Quota(found["name"], int(found["limit"]), int(found["needed"]))
    return quota if quota.limit < quota.needed else None


def list_untried(run: Run, policy: Policy) -> tuple[Machines, ...]:
    """The policy's fall-backs that fit the run and were not tried since capacity was missed first, in its order."""
    gone = {*run.ledger.fallbacks, *_names(run.current.machines)}
    return tuple(each for each in _listed(policy) if _suits(run, each) and format_instance_types(each) not in gone)


def format_unsuitable(run: Run, policy: Policy) -> str:
    """Why fall-backs of the policy are not used for this run, in words, or nothing."""
    reasons = (find_misfit(run.cluster, each) for each in _listed(policy))
    return "; ".join(dict.fromkeys(reason for reason in reasons if reason))


def with_machines(run: Run, machines: Machines | None) -> Run:
    """The run with its next launch on these machines, None being its request's own. What it leaves for want of capacity
    and what it goes to both count as tried."""
    names = (*run.ledger.fallbacks, *_names(run.current.machines), *_names(machines))
    ledger = replace(run.ledger, fallbacks=tuple(dict.fromkeys(names)))
    attempt = replace(run.current, machines=machines)
    return replace(run, ledger=ledger, attempts=(*run.attempts[:-1], attempt))


def _suits(run: Run, machines: Machines) -> bool:
    """They are others than the run's own, and the run fits them."""
    return run.cluster.on(machines) != run.cluster and not find_misfit(run.cluster, machines)


def _listed(policy: Policy) -> Iterator[Machines]:
    return (read_fallback(text) for text in policy.capacity.fallbacks)


def _names(machines: Machines | None) -> tuple[str, ...]:
    return (format_instance_types(machines),) if machines else ()
