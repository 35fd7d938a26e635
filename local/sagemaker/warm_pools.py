"""Managed warm pools: which cluster is kept after a job, for how long, and which next job may take it."""

import json
import time
from dataclasses import dataclass
from typing import Any

from .errors import invalid
from .job import LocalJob
from .timing import Timing


@dataclass
class _Pool:
    owner: LocalJob
    fingerprint: str
    since: float
    until: float

    def show(self, status: str, when: float, *, reused_by: str | None = None) -> None:
        """Set what Describe returns about the pool for the job that left it."""
        retained = max(0, int(when - self.since))
        self.owner.warm_pool = {"Status": status, "ResourceRetainedBillableTimeInSeconds": retained}
        if reused_by:
            self.owner.warm_pool["ReusedByJob"] = reused_by


class WarmPools:
    """The kept clusters. Pools end lazily: every call ends the expired ones first."""

    def __init__(self, timing: Timing) -> None:
        self._timing = timing
        self._available: list[_Pool] = []

    def claim(self, job: LocalJob) -> bool:
        """Give the job a matching pool, if there is one; its previous owner then shows Reused."""
        self.settle()
        wanted = fingerprint(job.request)
        pool = next((pool for pool in self._available if pool.fingerprint == wanted), None)
        if pool is None:
            return False
        self._close(pool, "Reused", time.time(), reused_by=job.name)
        return True

    def has_for(self, request: dict[str, Any]) -> bool:
        """Return whether a pool matches the request: its machines are counted already."""
        self.settle()
        return any(pool.fingerprint == fingerprint(request) for pool in self._available)

    def occupy(self, job: LocalJob) -> None:
        if _keep_alive(job):
            job.warm_pool = {"Status": "InUse"}

    def retain(self, job: LocalJob) -> None:
        """Keep the cluster of a job that has ended, if the request asked for it."""
        if not _keep_alive(job):
            return
        now = time.time()
        pool = _Pool(job, fingerprint(job.request), now, now + self._timing.real(_keep_alive(job)))
        self._available.append(pool)
        pool.show("Available", now)

    def discard(self, job: LocalJob) -> None:
        """After a failure that may be the cluster's, SageMaker keeps no pool."""
        if job.warm_pool:
            job.warm_pool = {"Status": "Terminated", "ResourceRetainedBillableTimeInSeconds": 0}

    def update(self, job: LocalJob, seconds: int) -> None:
        """UpdateTrainingJob: a new period from now; 0 lets the pool go."""
        self.settle()
        pool = next((pool for pool in self._available if pool.owner is job), None)
        if pool is None:
            raise invalid(
                "KeepAlivePeriodInSeconds can be updated only while the warm pool is Available; "
                f"the warm pool status of {job.name} is {(job.warm_pool or {}).get('Status', 'None')}."
            )
        job.request["ResourceConfig"]["KeepAlivePeriodInSeconds"] = seconds
        job.modified = round(time.time(), 3)
        pool.until = time.time() + self._timing.real(seconds)
        self.settle()

    def settle(self) -> None:
        now = time.time()
        for pool in list(self._available):
            if pool.until <= now:
                self._close(pool, "Terminated", pool.until)
            else:
                pool.show("Available", now)

    def _close(self, pool: _Pool, status: str, when: float, *, reused_by: str | None = None) -> None:
        self._available.remove(pool)
        pool.show(status, when, reused_by=reused_by)


def fingerprint(request: dict[str, Any]) -> str:
    """Return what must be equal for a reuse; image, hyperparameters, environment and channels may differ."""
    resources = request["ResourceConfig"]
    vpc = request.get("VpcConfig", {})
    session = request.get("SessionChainingConfig", {})
    return json.dumps(
        [
            request["RoleArn"],
            [resources.get(k) for k in ("InstanceCount", "InstanceType", "VolumeKmsKeyId", "VolumeSizeInGB")],
            sorted(vpc.get("SecurityGroupIds", [])),
            sorted(vpc.get("Subnets", [])),
            [bool(request.get(k)) for k in ("EnableInterContainerTrafficEncryption", "EnableNetworkIsolation")],
            bool(session.get("EnableSessionTagChaining")),
            bool(request.get("EnableManagedSpotTraining")),
            resources.get("InstanceGroups"),
        ]
    )


def _keep_alive(job: LocalJob) -> int:
    return int(job.request["ResourceConfig"].get("KeepAlivePeriodInSeconds", 0))
