"""A chain as a Step Functions state machine, which outlives the machine of the person who starts it.

Each task is two states: one creates the training job, the other waits with a task token until Rerail's function
`orchestrate` answers for its run. The names of the jobs are those that `rerail chain` would give them. An execution
that is started again waits for the runs that there are, and `rerail chain` skips what an execution has completed.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from cli.chains.definition import Artifact, ChainTask
from cli.chains.graph import list_components, list_generations
from cli.submit.problem import Problem
from rerail.model.signatures import VARIABLE
from rerail.requests.identity import make_digest
from rerail.requests.states import EXECUTION, EXECUTION_VARIABLE, make_start, make_wait

# As long as TrainSupervised waits for a sign of Rerail; the waits are checked each minute.
HEARTBEAT_S = 1800
# A job of that name exists: the run was started before.
EXISTS = ("SageMaker.ResourceInUseException",)
# Step Functions makes the key that the run's agent signs with: 64 hexadecimal digits.
NEW_KEY = "States.Hash(States.UUID(), 'SHA-256')"
DEFINITION_LIMIT = 1024 * 1024


@dataclass(frozen=True, slots=True)
class MachineTask:
    """A task that the state machine runs."""

    task: ChainTask
    run: str
    # CreateTrainingJob's request; the address of an artifact that another of these tasks leaves is replaced.
    request: Mapping[str, Any]

    @property
    def key(self) -> str:
        """Return the field of the execution's data that has the run's result."""
        return f"task_{self.task.name.replace('-', '_')}"


@dataclass(frozen=True, slots=True)
class _Machine:
    """The parameters that all states of a machine share; see `make_state_machine`."""

    function: str
    on_hold: str
    partition: str


@dataclass(frozen=True, slots=True)
class _States:
    """States in a row: the first one's name, and the last one's, which has no successor yet."""

    first: str
    last: str
    states: Mapping[str, dict[str, Any]]
    # The tasks that they run.
    tasks: Sequence[str]


def make_state_machine(
    chain: str, tasks: Mapping[str, MachineTask], *, function: str, on_hold: str = "wait", partition: str = "aws"
) -> dict[str, Any]:
    """Return the definition in Amazon States Language; `on_hold` is `wait`, or `fail` when a run is held.

    `tasks` are those that are not complete; `function` is the name or ARN of Rerail's function `orchestrate`. Raise
    Problem if there is nothing to run, or if Step Functions would refuse the definition.
    """
    if not tasks:
        raise Problem(f"chain {chain}: all of its tasks are complete", "nothing: there is nothing to run")
    row = _make_row(list(tasks), tasks, _Machine(function, on_hold, partition))
    definition = {
        "Comment": f"The chain {chain}: supervised runs, each fed by what others have left.",
        "StartAt": row.first,
        "States": _with_end(row),
    }
    size = len(json.dumps(definition).encode())
    if size > DEFINITION_LIMIT:
        raise Problem(
            f"chain {chain}: its state machine has {size:,} bytes, and Step Functions takes 1 MiB", "split it"
        )
    return definition


def _make_row(names: Sequence[str], tasks: Mapping[str, MachineTask], machine: _Machine) -> _States:
    """Return the states of these tasks: what is independent in parallel, and the rest after what comes first."""
    graph = {name: machine_task.task for name, machine_task in tasks.items()}
    groups = list_components(graph, names)
    if len(groups) > 1:
        return _make_parallel([_make_row(group, tasks, machine) for group in groups])
    first, *rest = list_generations(graph, names)
    rows = [_make_task_states(tasks[name], tasks, machine) for name in first]
    row = rows[0] if len(rows) == 1 else _make_parallel(rows)
    following = [name for name in names if name not in first]
    return _join(row, _make_row(following, tasks, machine)) if rest else row


def _make_parallel(rows: Sequence[_States]) -> _States:
    """Return one state that runs the rows in parallel, and merges what they know."""
    tasks = [task for row in rows for task in row.tasks]
    name = f"{len(tasks)} tasks from {tasks[0]}"  # unique: one within it that begins with the same task has fewer
    state = {
        "Type": "Parallel",
        "Branches": [{"StartAt": row.first, "States": _with_end(row)} for row in rows],
        "ResultSelector": {"merged.$": _merge([f"$[{number}]" for number in range(len(rows))])},
        "OutputPath": "$.merged",
    }
    return _States(name, name, {name: state}, tasks)


def _merge(paths: Sequence[str]) -> str:
    """Return the expression that merges these objects, with as few levels as possible: ten is the limit."""
    if len(paths) == 1:
        return paths[0]
    middle = len(paths) // 2
    return f"States.JsonMerge({_merge(paths[:middle])}, {_merge(paths[middle:])}, false)"


def _join(row: _States, following: _States) -> _States:
    joined = {**row.states, row.last: {**row.states[row.last], "Next": following.first}}
    return _States(row.first, following.last, {**joined, **following.states}, [*row.tasks, *following.tasks])


def _with_end(row: _States) -> dict[str, dict[str, Any]]:
    return {**row.states, row.last: {**row.states[row.last], "End": True}}


def _make_task_states(machine_task: MachineTask, tasks: Mapping[str, MachineTask], machine: _Machine) -> _States:
    name = machine_task.task.name
    start, wait = f"Start {name}", f"Wait for {name}"
    states: dict[str, dict[str, Any]] = {
        start: {
            **make_start(machine.partition),
            "Parameters": _make_parameters(machine_task, tasks),
            "ResultPath": None,
            "Catch": [{"ErrorEquals": list(EXISTS), "ResultPath": None, "Next": wait}],
            "Next": wait,
        },
        wait: {
            **make_wait(
                machine.partition,
                machine.function,
                {
                    "job": machine_task.run,
                    "expects": make_digest(machine_task.request),
                    "places": _make_places(machine_task, tasks),
                },
                on_hold=machine.on_hold,
                heartbeat_s=HEARTBEAT_S,
            ),
            "ResultPath": f"$.{machine_task.key}",
        },
    }
    return _States(start, wait, states, [name])


def _make_parameters(machine_task: MachineTask, tasks: Mapping[str, MachineTask]) -> dict[str, Any]:
    """Return the request with the artifacts' addresses as expressions, a signing key, and the execution's ARN."""
    addresses = _find_addresses(machine_task, tasks)
    for table in ("Environment", "HyperParameters"):
        if paths := [key for key in machine_task.request.get(table, {}) if key.endswith(".$")]:
            what = f"task {machine_task.task.name}: {paths[0]!r:.100}"
            raise Problem(f"{what} would be evaluated by Step Functions, as all names that end with .$", "rename it")
    channels = [
        _with_address(channel, addresses[channel["ChannelName"]]) if channel["ChannelName"] in addresses else channel
        for channel in machine_task.request.get("InputDataConfig", ())
    ]
    environment = dict(machine_task.request.get("Environment", {}))
    if VARIABLE not in environment:
        environment[f"{VARIABLE}.$"] = NEW_KEY
    environment[f"{EXECUTION_VARIABLE}.$"] = EXECUTION
    return {**machine_task.request, **({"InputDataConfig": channels} if channels else {}), "Environment": environment}


def _find_addresses(machine_task: MachineTask, tasks: Mapping[str, MachineTask]) -> dict[str, tuple[str, str]]:
    """Return the address of each channel that another of these tasks fills; see `_address`."""
    return {
        one.channel: _address(tasks[one.task], one.artifact) for one in machine_task.task.inputs if one.task in tasks
    }


def _make_places(machine_task: MachineTask, tasks: Mapping[str, MachineTask]) -> dict[str, str]:
    """Return the address, or the expression with it, of each channel that the task declares."""
    declared = {one.channel for one in machine_task.task.inputs}
    places = {
        channel["ChannelName"]: channel["DataSource"]["S3DataSource"]["S3Uri"]
        for channel in machine_task.request.get("InputDataConfig", ())
        if channel["ChannelName"] in declared and "S3DataSource" in channel["DataSource"]
    }
    for channel, (name, value) in _find_addresses(machine_task, tasks).items():
        del places[channel]
        places[f"{channel}{name.removeprefix('S3Uri')}"] = value
    return places


def _address(source: MachineTask, artifact: Artifact) -> tuple[str, str]:
    """Return the field `S3Uri` or `S3Uri.$` with the address of what the task leaves."""
    request = source.request
    if artifact is Artifact.MODEL:
        return "S3Uri.$", f"$.{source.key}.artifacts"
    if artifact is Artifact.CHECKPOINTS:
        return "S3Uri", request["CheckpointConfig"]["S3Uri"]
    folder = str(request["OutputDataConfig"]["S3OutputPath"]).rstrip("/")
    return "S3Uri.$", f"States.Format('{folder}/{{}}/output/output.tar.gz', $.{source.key}.job)"


def _with_address(channel: Mapping[str, Any], address: tuple[str, str]) -> dict[str, Any]:
    name, value = address
    source = {key: text for key, text in channel["DataSource"]["S3DataSource"].items() if key != "S3Uri"}
    return {**channel, "DataSource": {"S3DataSource": {**source, name: value}}}
