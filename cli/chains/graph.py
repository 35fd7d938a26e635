"""The order of a chain's tasks: each after those that it depends on."""

from collections.abc import Collection, Mapping, Sequence
from graphlib import CycleError, TopologicalSorter

from cli.chains.definition import ChainTask
from cli.submit.problem import Problem


def sort_tasks(tasks: Mapping[str, ChainTask]) -> list[str]:
    """Return the names so that each comes after its dependencies; raise Problem that names a cycle."""
    return [name for generation in list_generations(tasks) for name in generation]


def list_generations(tasks: Mapping[str, ChainTask], among: Collection[str] | None = None) -> list[list[str]]:
    """Return the tasks in groups: those of a group depend only on earlier groups, and may run in parallel.

    With `among`, return these alone; dependencies on others count as complete.
    """
    names = [name for name in tasks if among is None or name in among]
    sorter = TopologicalSorter({name: [one for one in tasks[name].dependencies if one in names] for name in names})
    try:
        sorter.prepare()
    except CycleError as error:
        cycle = " -> ".join(error.args[1])
        raise Problem(
            f"the tasks depend on each other in a circle: {cycle}", "take out one of `inputs` or `after`"
        ) from error
    found: list[list[str]] = []
    while sorter.is_active():
        ready = set(sorter.get_ready())
        found.append([name for name in names if name in ready])
        sorter.done(*ready)
    return found


def list_components(tasks: Mapping[str, ChainTask], among: Sequence[str]) -> list[list[str]]:
    """Return groups of these tasks that depend on nothing in one another, in the order of the names."""
    groups: list[set[str]] = []
    for name in among:
        linked = {name, *(one for one in tasks[name].dependencies if one in among)}
        touching = [group for group in groups if group & linked]
        groups = [group for group in groups if not group & linked] + [linked.union(*touching)]
    ordered = [[name for name in among if name in group] for group in groups]
    return sorted(ordered, key=lambda group: among.index(group[0]))
