"""Find the processes of a tree that train, so that signals go to them and not to their launchers."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping

from rerail_agent.processes import LinuxProcess

# They start ranks and forward SIGTERM badly: torchrun kills its ranks 30 s later, mpirun after one second.
LAUNCHERS = re.compile(
    r"(?:.*/)?(?:torchrun|accelerate|deepspeed|smddprun|mpirun|mpiexec|orterun|orted|prterun|prted|hydra_\w+)"
    r"|torch\.distributed\.(?:run|launch)|accelerate\.commands\.\w+|deepspeed\.launcher\.\w+|rerail_agent\.init"
    r"|(?:.*/)?(?:torch/distributed/(?:run|launch)|accelerate/commands/\w+|deepspeed/launcher/\w+)\.py"
)
# Helper programs of Python, torch and this package.
HELPERS = re.compile(
    r"\bmultiprocessing\.(?:spawn|forkserver|resource_tracker|semaphore_tracker)\b|compile_worker|rerail_agent\.checkpoints"
)


def find_training_processes(
    tree: Mapping[int, LinuxProcess], root: int, *, own: Collection[tuple[str, str]] = ()
) -> list[LinuxProcess]:
    """Return the processes that train, among all descendants of `root`; empty while there are only launchers.

    Ranks are known by the variables that their launcher set. `own` are init's variables, which say nothing about them.
    Without such variables, ranks are the innermost Python programs.
    """
    return find_marked(tree, own=own) or find_unmarked(tree, root)


def find_marked(tree: Mapping[int, LinuxProcess], *, own: Collection[tuple[str, str]] = ()) -> list[LinuxProcess]:
    """Return one process for each rank: the first one with its variables, without the data loaders below it."""
    ranks = {pid: p for pid, p in tree.items() if p.rank is not None and not set(own).issuperset(p.rank_variables)}
    tops = [
        process
        for process in ranks.values()
        if process.parent not in ranks or ranks[process.parent].rank_variables != process.rank_variables
    ]
    # mpirun may have started a torchrun on each host: then that one has a mark too.
    return [_unwrap(process, tree) for process in tops if not is_launcher(process)]


def _unwrap(process: LinuxProcess, tree: Mapping[int, LinuxProcess]) -> LinuxProcess:
    """Return the only Python program of the rank below a shell or a profiler, which does not train itself."""
    while not process.is_python:
        inside = [
            process
            for process in _list_children(process.pid, tree)
            if process.rank == process.rank and process.is_python
        ]
        if len(inside) != 1:
            break
        process = inside[0]
    return process


def find_unmarked(tree: Mapping[int, LinuxProcess], root: int) -> list[LinuxProcess]:
    """Return the innermost programs, Python's if there are any: below shells and launchers, above data loaders."""
    found = [leaf for child in _list_children(root, tree) for leaf in _find_leaves(child, tree)]
    return [leaf for leaf in found if leaf.is_python] or found


def _find_leaves(process: LinuxProcess, tree: Mapping[int, LinuxProcess]) -> list[LinuxProcess]:
    if process.is_python and process.handles_sigterm and not is_launcher(process):
        return [process]  # it handles SIGTERM itself, whatever it has started
    programs = [child for child in _list_children(process.pid, tree) if not is_helper(child, process)]
    below = [leaf for child in programs for leaf in _find_leaves(child, tree)]
    inner = [leaf for leaf in below if leaf.is_python]
    if inner:
        return [leaf for leaf in inner if leaf.handles_sigterm] or inner
    if is_launcher(process) or (programs and not below):
        return []  # only launchers: they have not started their ranks yet
    return below if below and not process.is_python else [process]


def is_launcher(process: LinuxProcess) -> bool:
    return bool(LAUNCHERS.fullmatch(find_program_name(process)))


def find_program_name(process: LinuxProcess) -> str:
    """Return the program that runs, or Python's script or module."""
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


def is_helper(process: LinuxProcess, parent: LinuxProcess) -> bool:
    """Return whether a process works for its parent: forked from it, or one of Python's own helpers."""
    forked = process.command == parent.command and process.program == parent.program
    return forked or any(HELPERS.search(word) for word in process.command[:8])


def _list_children(pid: int, tree: Mapping[int, LinuxProcess]) -> list[LinuxProcess]:
    return [process for process in tree.values() if process.parent == pid]
