"""Will the account be given the machines? Questions about its quotas, in the order in which they are answered."""

from collections.abc import Mapping

from cli.doctor.check import Check, Question, broken, ok, unknown, warn
from cli.doctor.subject import Subject

# As Service Quotas calls them, after the machine's type.
ON_DEMAND, SPOT, WARM = "training job usage", "spot training job usage", "training warm pool usage"
KNOWN = "quotas"
PAGE = 100


def machine_quota(subject: Subject) -> Check | None:
    """It allows as many machines as the job asks for."""
    kind = SPOT if subject.is_spot else ON_DEMAND
    if _is_free(subject) or not subject.instance_type:
        return None
    return _enough(subject, subject.instance_type, kind, f"no job on {subject.instance_count} of them can start")


def warm_pool_quota(subject: Subject) -> Check | None:
    """It allows the warm pool that the job asks for; it is 0 until a quota increase is granted."""
    if _is_free(subject) or not subject.resources.get("KeepAlivePeriodInSeconds"):
        return None
    return _enough(subject, subject.instance_type, WARM, "no job with KeepAlivePeriodInSeconds can start")


def fallback_quotas(subject: Subject) -> Check | None:
    """It allows the machines that the policy falls back to."""
    types = sorted(
        {word for fallback in subject.policy.capacity.fallbacks for word in fallback.split() if word[:3] == "ml."}
    )
    if _is_free(subject) or not types:
        return None
    kind = SPOT if subject.is_spot else ON_DEMAND
    short = [type for type in types if (_quotas(subject).get(_name(type, kind)) or 0.0) < subject.instance_count]
    if short:
        return warn(f"too few for {subject.instance_count} machines of {', '.join(short)}", _request(short[0], kind))
    return ok(f"enough for {', '.join(types)}")


QUESTIONS: tuple[Question[Subject], ...] = (machine_quota, warm_pool_quota, fallback_quotas)


def _is_free(subject: Subject) -> bool:
    """The local AWS has no quotas that anybody could ask for."""
    return subject.deployment.where.is_local


def _enough(subject: Subject, machine: str, kind: str, otherwise: str) -> Check:
    name, wanted = _name(machine, kind), subject.instance_count
    allowed = _quotas(subject).get(name)
    if allowed is None:
        return unknown(f"Service Quotas names no '{name}' here", "check the type's name, and that the region has it")
    if allowed < wanted:
        return broken(f"'{name}' is {allowed:g}, the job wants {wanted}: {otherwise}", _request(machine, kind))
    return ok(f"'{name}' is {allowed:g}")


def _quotas(subject: Subject) -> Mapping[str, float]:
    """Name to value of SageMaker's quotas: some thousands, read once."""
    if KNOWN not in subject.known:
        pages = subject.client("service-quotas").get_paginator("list_service_quotas")
        subject.known[KNOWN] = {
            quota["QuotaName"]: float(quota["Value"])
            for page in pages.paginate(ServiceCode="sagemaker", PaginationConfig={"PageSize": PAGE})
            for quota in page["Quotas"]
        }
    found: Mapping[str, float] = subject.known[KNOWN]
    return found


def _name(machine: str, kind: str) -> str:
    return f"{machine} for {kind}"


def _request(machine: str, kind: str) -> str:
    return f"ask for more of '{_name(machine, kind)}' under Service Quotas > Amazon SageMaker, or take another type"
