"""The ranks of a job: which backend joins them, what each one is, and how they agree."""

import ctypes
import importlib.util
import os
import signal
import sys
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, NoReturn

import torch
from torch import distributed as dist
from torch import nn

# SMDDP exists for these alone, and since 2.3.0 it refuses to be imported anywhere else.
SMDDP_INSTANCES = ("ml.p4d.24xlarge", "ml.p4de.24xlarge")


@dataclass(frozen=True)
class World:
    """This rank and its peers; with one rank there is no process group and every method is local."""

    rank: int
    size: int
    device: torch.device
    backend: str

    @property
    def is_first(self) -> bool:
        return self.rank == 0

    def wrap(self, model: nn.Module, example: tuple[torch.Tensor, ...]) -> nn.Module:
        """The model with its gradients averaged over the ranks; `example` is an input to rehearse with."""
        if self.size == 1:
            return model
        devices = [self.device.index] if self.device.type == "cuda" else None
        replica = nn.parallel.DistributedDataParallel(model, device_ids=devices)
        # DDP regroups its buckets after its first backward pass, and with three or more ranks the grouping decides the
        # order of summation: a resumed run would differ in its last bits. So have it done before any step counts.
        replica(*(tensor.to(self.device) for tensor in example)).backward()
        model.zero_grad(set_to_none=True)
        return replica

    def agree(self, loss: torch.Tensor, stop: bool) -> tuple[float, bool]:
        """The loss averaged over the ranks, and whether any rank was asked to stop: one all-reduce, one answer for all.

        Acting on a flag that only this rank has seen would have the ranks stop at different steps.
        """
        both = torch.stack([loss.float() / self.size, torch.tensor(float(stop), device=self.device)])
        if self.size > 1:
            dist.all_reduce(both)
        mean, stops = both.tolist()
        return mean, stops > 0

    def smallest(self, number: int) -> int:
        return self._reduced(number, dist.ReduceOp.MIN)

    def largest(self, number: int) -> int:
        return self._reduced(number, dist.ReduceOp.MAX)

    def _reduced(self, number: int, operation: Any) -> int:
        if self.size == 1:
            return number
        tensor = torch.tensor(number, device=self.device)
        dist.all_reduce(tensor, operation)
        return int(tensor)

    def gather(self, thing: Any) -> list[Any]:
        """What every rank has, in the order of the ranks, on every rank. For small things."""
        if self.size == 1:
            return [thing]
        things: list[Any] = [None] * self.size
        dist.all_gather_object(things, thing)
        return things

    def wait_for_all(self) -> None:
        """Returns when every rank has come here, so that none leaves while another still needs it."""
        if self.size > 1:
            dist.barrier()


def join(*, timeout: timedelta) -> World:
    """Joins the process group that RANK, WORLD_SIZE, LOCAL_RANK and MASTER_ADDR describe; alone without them."""
    die_with_the_launcher()
    rank, size = int(os.environ.get("RANK", "0")), int(os.environ.get("WORLD_SIZE", "1"))
    device = own_device(int(os.environ.get("LOCAL_RANK", "0")))
    backend = choose_backend(device.type, os.environ.get("RERAIL_INSTANCE_TYPE", ""))
    if size > 1:
        if backend == "smddp":
            importlib.import_module("smdistributed.dataparallel.torch.torch_smddp")  # registers the backend
        dist.init_process_group(backend, timeout=timeout)
    return World(rank=rank, size=size, device=device, backend=backend)


def leave(code: int) -> NoReturn:
    """Ends this process at once, without Python's farewell to its objects.

    Destroying a gloo group takes a lock while it holds the GIL, and a gloo thread that lets go of its last tensor takes
    the two the other way round: seen with torch 2.13, a finished rank then hangs for ever. So nobody destroys it.
    """
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


def own_device(local_rank: int) -> torch.device:
    if not torch.cuda.is_available():
        return torch.device("cpu")
    device = torch.device("cuda", local_rank)
    torch.cuda.set_device(device)
    return device


def choose_backend(device_type: str, instance_type: str) -> str:
    """smddp where it exists, else nccl on GPUs, else gloo."""
    if device_type != "cuda":
        return "gloo"
    return "smddp" if instance_type in SMDDP_INSTANCES and smddp_is_installed() else "nccl"


def smddp_is_installed() -> bool:
    # SMP lives in the package `smdistributed` too, so that one alone proves nothing.
    try:
        return importlib.util.find_spec("smdistributed.dataparallel") is not None
    except ModuleNotFoundError:
        return False


def die_with_the_launcher() -> None:
    """A rank that outlives a killed torchrun would go on writing beside its successor.

    Inside a container nothing outlives PID 1; this is for everywhere else.
    """
    launcher = int(os.environ.get("RERAIL_LAUNCHER_PID", os.getpid()))
    if launcher == os.getpid() or not sys.platform.startswith("linux"):
        return
    pr_set_pdeathsig = 1
    ctypes.CDLL(None).prctl(pr_set_pdeathsig, signal.SIGKILL)
    if os.getppid() != launcher:  # it died before the call above could arm
        os._exit(128 + signal.SIGKILL)
