"""Chains of any shape."""

from collections.abc import Mapping
from pathlib import Path

from hypothesis import strategies as st

from cli.chains.definition import Artifact, Chain, ChainTask, TaskInput


@st.composite
def chains(draw: st.DrawFn) -> Chain:
    """Return a chain without circles: a task depends on earlier ones alone, by data or by order."""
    names = [f"t{number}" for number in range(draw(st.integers(1, 6)))]
    tasks = {}
    for number, name in enumerate(names):
        before = st.lists(st.sampled_from(names[:number]), unique=True) if number else st.just([])
        inputs = tuple(TaskInput(f"in{n}", task=n, artifact=draw(st.sampled_from(Artifact))) for n in draw(before))
        tasks[name] = ChainTask(name, Path("train.py"), inputs=inputs, after=tuple(draw(before)))
    order = draw(st.permutations(names))
    return Chain("c", Path("rerail.toml"), {name: tasks[name] for name in order})


def find_dependents(tasks: Mapping[str, ChainTask], name: str, *, by_data: bool = False) -> set[str]:
    """Return the tasks that depend on this one, directly or through others; `by_data` ignores `after`."""
    direct = {task.name for task in tasks.values() if name in (task.sources if by_data else task.dependencies)}
    return direct.union(*(find_dependents(tasks, task, by_data=by_data) for task in direct))
