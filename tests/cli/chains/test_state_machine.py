"""The state machine of a chain: what it starts, in which order, and where each run reads."""

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings

from cli.chains.definition import Artifact, Chain, ChainTask, TaskInput
from cli.chains.state_machine import MachineTask, make_state_machine
from cli.submit.problem import Problem
from stacks.parts.train_supervised import make_definition
from tests.cli.chains.graphs import chains


def make_machine_tasks(chain: Chain) -> dict[str, MachineTask]:
    """Return the tasks with requests as `rerail submit` prints them."""
    found = {}
    for name, task in chain.tasks.items():
        run, folder = f"c-{name}-0", f"s3://b/rerail/c-{name}-0"
        request = {
            "TrainingJobName": run,
            "OutputDataConfig": {"S3OutputPath": f"{folder}/output/"},
            "CheckpointConfig": {"S3Uri": f"{folder}/checkpoints/"},
            "InputDataConfig": [
                {"ChannelName": one.channel, "DataSource": {"S3DataSource": {"S3Uri": "placeholder"}}}
                for one in task.inputs
            ],
        }
        found[name] = MachineTask(task, run, request)
    return found


def execute(states: Mapping[str, Any], data: dict[str, Any], order: list[str], names: set[str]) -> dict[str, Any]:
    """Go through the states as Step Functions would; return the data at the end."""
    assert not names & states["States"].keys(), "names are unique in the whole machine"
    names |= states["States"].keys()
    name: str | None = states["StartAt"]
    while name:
        state = states["States"][name]
        assert ("Next" in state) != ("End" in state)
        if state["Type"] == "Parallel":
            ends = [execute(branch, dict(data), order, names) for branch in state["Branches"]]
            expression = state["ResultSelector"]["merged.$"]
            assert sorted(re.findall(r"\[(\d+)\]", expression)) == sorted(map(str, range(len(ends))))
            data = {key: value for end in ends for key, value in end.items()}
        elif "createTrainingJob" in state["Resource"]:
            job = state["Parameters"]["TrainingJobName"]
            order.append(f"start {job}")
            for channel in state["Parameters"].get("InputDataConfig", ()):
                source = channel["DataSource"]["S3DataSource"]
                uri = source.get("S3Uri") or evaluate(source["S3Uri.$"], data)
                order.append(f"{job} reads {channel['ChannelName']}: {uri}")
        else:
            job = state["Parameters"]["Payload"]["job"]
            order.append(f"end {job}")
            result = {"artifacts": f"s3://b/rerail/{job}/output/{job}-a002/output/model.tar.gz", "job": f"{job}-a002"}
            data = {**data, state["ResultPath"].removeprefix("$."): result}
        name = state.get("Next")
    return data


def evaluate(expression: str, data: Mapping[str, Any]) -> str:
    """Return what the expression is with this data; fail where it names something that is not there."""
    found = re.fullmatch(r"(?:States\.Format\('(?P<text>.*)', )?\$\.(?P<task>\w+)\.(?P<field>\w+)\)?", expression)
    assert found, expression
    value: str = data[found["task"]][found["field"]]
    return found["text"].replace("{}", value) if found["text"] else value


@given(chains())
@settings(max_examples=150, deadline=None)
def test_each_run_starts_once_after_what_it_depends_on_and_reads_what_that_has_left(chain):
    definition = make_state_machine("c", make_machine_tasks(chain), function="orchestrate")
    order: list[str] = []
    data = execute(definition, {}, order, set())
    assert set(data) == {f"task_{name}" for name in chain.tasks}
    for name, task in chain.tasks.items():
        start = order.index(f"start c-{name}-0")
        assert order.count(f"start c-{name}-0") == order.count(f"end c-{name}-0") == 1
        assert all(order.index(f"end c-{one}-0") < start for one in task.dependencies)
        for one in task.inputs:
            folder = f"s3://b/rerail/c-{one.task}-0"
            uri = {
                Artifact.MODEL: f"{folder}/output/c-{one.task}-0-a002/output/model.tar.gz",
                Artifact.OUTPUT: f"{folder}/output/c-{one.task}-0-a002/output/output.tar.gz",
                Artifact.CHECKPOINTS: f"{folder}/checkpoints/",
            }[one.artifact]
            assert f"c-{name}-0 reads {one.channel}: {uri}" in order


def test_branches_run_side_by_side_to_their_ends():
    tasks = {
        "a": ChainTask("a", Path("x")),
        "b": ChainTask("b", Path("x"), after=("a",)),
        "c": ChainTask("c", Path("x"), after=("a",)),
        "d": ChainTask("d", Path("x"), after=("b",)),
    }
    states = make_state_machine("c", make_machine_tasks(Chain("c", Path("f"), tasks)), function="f")["States"]
    assert list(states) == ["Start a", "Wait for a", "3 tasks from b"]
    (retry,) = states["Start a"]["Retry"]
    throttled = "SageMaker.SageMakerException"  # the API's model of CreateTrainingJob lists no throttling
    assert throttled in retry["ErrorEquals"]
    assert throttled in make_definition("f")["States"]["Start the job"]["Retry"][0]["ErrorEquals"]
    branches = [list(branch["States"]) for branch in states["3 tasks from b"]["Branches"]]
    assert branches == [["Start b", "Wait for b", "Start d", "Wait for d"], ["Start c", "Wait for c"]]


def test_what_is_complete_is_left_out_and_its_artifact_is_an_address():
    """The request then has the address already."""
    task = ChainTask("b", Path("x"), inputs=(TaskInput("data", task="a", artifact=Artifact.MODEL),))
    chain = Chain("c", Path("f"), {"b": task})
    states = make_state_machine("c", make_machine_tasks(chain), function="f", on_hold="fail")["States"]
    assert list(states) == ["Start b", "Wait for b"]
    (channel,) = states["Start b"]["Parameters"]["InputDataConfig"]
    assert channel["DataSource"]["S3DataSource"] == {"S3Uri": "placeholder"}
    assert states["Wait for b"]["Parameters"]["Payload"]["onHold"] == "fail"


def test_a_machine_that_step_functions_would_refuse_or_fill_in_is_an_error():
    with pytest.raises(Problem, match="all of its tasks are complete"):
        make_state_machine("c", {}, function="f")
    task = ChainTask("a", Path("x"))
    with pytest.raises(Problem, match=r"1,\d{3},\d{3} bytes"):
        make_state_machine("c", {"a": MachineTask(task, "r", {"Environment": {"X": "x" * 1024 * 1024}})}, function="f")
    for table in ("Environment", "HyperParameters"):
        with pytest.raises(Problem, match="would be evaluated"):
            request = {table: {"lr.$": "$$.Execution.Input"}}
            make_state_machine("c", {"a": MachineTask(task, "r", request)}, function="f")
