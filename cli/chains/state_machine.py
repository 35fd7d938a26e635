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

# As long as TrainSupervised waits for a sign of Rerail; the waits are checked each minute.
HEARTBEAT_S = 1800
RETRIES: Mapping[str, Any] = {"IntervalSeconds": 2, "MaxAttempts": 6, "BackoffRate": 2.0}
# An error that the API's model does not list is named by its service: CreateTrainingJob's does not list throttling.
THROTTLING = ("SageMaker.ThrottlingException", "SageMaker.SageMakerException")
BUSY = ("Lambda.TooManyRequestsException", "Lambda.ServiceException", "Lambda.AWSLambdaException")
# A job of that name exists: the run was started before. The second name is that of the local AWS.
EXISTS = ("SageMaker.ResourceInUseException", "Sagemaker.ResourceInUse")
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
class _States:
    """States in a row: the first one's name, and the last one's, which has no successor yet."""

    first: str
    last: str
    states: Mapping[str, dict[str, Any]]
    # The tasks that they run.
    tasks: Sequence[str]


def make_state_machine(
    chain: str, tasks: Mapping[str, MachineTask], *, function: str, on_hold: str = "wait"
) -> dict[str, Any]:
    """Return the definition in Amazon States Language; `on_hold` is `wait`, or `fail` when a run is held.

    `tasks` are those that are not complete; `function` is the name or ARN of Rerail's function `orchestrate`. Raise
    Problem if there is nothing to run, or if Step Functions would refuse the definition.
    """
    if not tasks:
        raise Problem(f"chain {chain}: all of its tasks are complete", "nothing: there is nothing to run")
    row = _make_row(list(tasks), tasks, function, on_hold)
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


def _make_row(names: Sequence[str], tasks: Mapping[str, MachineTask], function: str, on_hold: str) -> _States:
    """Return the states of these tasks: what is independent in parallel, and the rest after what comes first."""
    graph = {name: machine_task.task for name, machine_task in tasks.items()}
    groups = list_components(graph, names)
    if len(groups) > 1:
        return _make_parallel([_make_row(group, tasks, function, on_hold) for group in groups])
    first, *rest = list_generations(graph, names)
    rows = [_make_task_states(tasks[name], tasks, function, on_hold) for name in first]
    row = rows[0] if len(rows) == 1 else _make_parallel(rows)
    following = [name for name in names if name not in first]
    return _join(row, _make_row(following, tasks, function, on_hold)) if rest else row


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


def _make_task_states(
    machine_task: MachineTask, tasks: Mapping[str, MachineTask], function: str, on_hold: str
) -> _States:
    name = machine_task.task.name
    start, wait = f"Start {name}", f"Wait for {name}"
    states: dict[str, dict[str, Any]] = {
        start: {
            "Type": "Task",
            "Resource": "arn:aws:states:::aws-sdk:sagemaker:createTrainingJob",
            "Parameters": _make_parameters(machine_task, tasks),
            "ResultPath": None,
            "Retry": [{"ErrorEquals": list(THROTTLING), **RETRIES}],
            "Catch": [{"ErrorEquals": list(EXISTS), "ResultPath": None, "Next": wait}],
            "Next": wait,
        },
        wait: {
            "Type": "Task",
            "Resource": "arn:aws:states:::lambda:invoke.waitForTaskToken",
            "HeartbeatSeconds": HEARTBEAT_S,
            "Parameters": {
                "FunctionName": function,
                "Payload": {
                    "token.$": "$$.Task.Token",
                    "execution.$": "$$.Execution.Id",
                    "job": machine_task.run,
                    "onHold": on_hold,
                },
            },
            "ResultPath": f"$.{machine_task.key}",
            "Retry": [{"ErrorEquals": list(BUSY), **RETRIES}],
        },
    }
    return _States(start, wait, states, [name])


def _make_parameters(machine_task: MachineTask, tasks: Mapping[str, MachineTask]) -> dict[str, Any]:
    """Return the request with the artifacts' addresses as expressions, and a signing key for the run."""
    addresses = {
        one.channel: _address(tasks[one.task], one.artifact) for one in machine_task.task.inputs if one.task in tasks
    }
    channels = [
        _with_address(channel, addresses[channel["ChannelName"]]) if channel["ChannelName"] in addresses else channel
        for channel in machine_task.request.get("InputDataConfig", ())
    ]
    environment = dict(machine_task.request.get("Environment", {}))
    if VARIABLE not in environment:
        environment[f"{VARIABLE}.$"] = NEW_KEY
    return {
        **machine_task.request,
        **({"InputDataConfig": channels} if channels else {}),
        "Environment": environment,
    }


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
