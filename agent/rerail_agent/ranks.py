"""Answers which processes of a tree train, so that they and not their launchers get a signal."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping

from rerail_agent.processes import Process

# They start ranks, and pass a SIGTERM on badly: torchrun kills its ranks 30 s later, mpirun after one second.
LAUNCHERS = re.compile(
    r"(?:.*/)?(?:torchrun|accelerate|deepspeed|smddprun|mpirun|mpiexec|orterun|orted|prterun|prted|hydra_\w+)"
    r"|torch\.distributed\.(?:run|launch)|accelerate\.commands\.\w+|deepspeed\.launcher\.\w+|rerail_agent\.init"
    r"|(?:.*/)?(?:torch/distributed/(?:run|launch)|accelerate/commands/\w+|deepspeed/launcher/\w+)\.py"
)
# Python's, torch's and our own programs for a process's helpers.
HELPERS = re.compile(
    r"\bmultiprocessing\.(?:spawn|forkserver|resource_tracker|semaphore_tracker)\b|compile_worker|rerail_agent\.checkpoints"
)


def find_training_processes(
    family: Mapping[int, Process], root: int, *, own: Collection[tuple[str, str]] = ()
) -> list[Process]:
    """The processes that train, among all descendants of `root`; an empty list while there are launchers alone.

    Ranks are known by what their launcher told them in their environment (`own` is what init itself was told, which
    says nothing about them); without that, they are the innermost Python programs.
    """
    return find_marked(family, own=own) or find_unmarked(family, root)


def find_marked(family: Mapping[int, Process], *, own: Collection[tuple[str, str]] = ()) -> list[Process]:
    """One process for each rank: the first of those with its mark, not its data loaders below it."""
    ranks = {pid: process for pid, process in family.items() if process.rank is not None and _differs(process, own)}
    tops = [each for each in ranks.values() if each.parent not in ranks or ranks[each.parent].told != each.told]
    # mpirun may have started a torchrun on each host: then that one has a mark too.
    return [_beneath_wrappers(each, family) for each in tops if not is_launcher(each)]


def _differs(process: Process, own: Collection[tuple[str, str]]) -> bool:
    return any(pair not in own for pair in process.told)


def _beneath_wrappers(process: Process, family: Mapping[int, Process]) -> Process:
    """A shell or a profiler around a rank does not train; the one Python program that it runs does."""
    while not process.is_python:
        inside = [each for each in _children(process.pid, family) if each.rank == process.rank and each.is_python]
        if len(inside) != 1:
            break
        process = inside[0]
    return process


def find_unmarked(family: Mapping[int, Process], root: int) -> list[Process]:
    """The innermost programs, Python's if there are any: below shells, launchers and drivers, above data loaders."""
    found = [leaf for child in _children(root, family) for leaf in _leaves(child, family)]
    return [leaf for leaf in found if leaf.is_python] or found


def _leaves(process: Process, family: Mapping[int, Process]) -> list[Process]:
    if process.is_python and process.hears and not is_launcher(process):
        return [process]  # it wants to be told, whatever it runs beside itself
    programs = [child for child in _children(process.pid, family) if not is_helper(child, process)]
    below = [leaf for child in programs for leaf in _leaves(child, family)]
    inner = [leaf for leaf in below if leaf.is_python]
    if inner:
        return [leaf for leaf in inner if leaf.hears] or inner
    if is_launcher(process) or (programs and not below):
        return []  # nothing but launchers: their ranks are yet to come
    return below if below and not process.is_python else [process]


def is_launcher(process: Process) -> bool:
    return bool(LAUNCHERS.fullmatch(name(process)))


def name(process: Process) -> str:
    """What runs: the program, or Python's script or module."""
    words = iter(process.command)
    program = next(words, "")
    if not process.is_python:
        return program
    for word in words:
        if re.fullmatch(r"-[a-zA-Z]*m", word):
            return next(words, "")
        if word in ("-W", "-X"):
            next(words, "")
        elif not word.startswith("-"):
            return word
    return ""


def is_helper(process: Process, parent: Process) -> bool:
    """Whether it works for its parent: forked from it (the command line stays), or one of Python's own helpers."""
    forked = process.command == parent.command and process.program == parent.program
    return forked or any(HELPERS.search(word) for word in process.command[:8])


def _children(pid: int, family: Mapping[int, Process]) -> list[Process]:
    return [process for process in family.values() if process.parent == pid]
