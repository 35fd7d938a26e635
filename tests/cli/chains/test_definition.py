"""The tables of a chain: what is read from them, and the one error for what is wrong."""

from pathlib import Path

import pytest

from cli.chains.definition import Artifact, TaskInput, find_file, parse_chain, read_chain
from cli.chains.graph import list_components, list_generations, sort_tasks
from cli.submit.problem import Problem
from tests.house.sources import ROOT

EXAMPLE = ROOT / "local" / "examples" / "chain" / "rerail.toml"
TWO = {"a": {"script": "a.py"}, "b": {"script": "b.py", "inputs": {"data": "a.output"}}}


def test_the_example_is_a_chain_of_four():
    chain = read_chain(EXAMPLE, "")
    assert chain.name == "digits" and sort_tasks(chain.tasks) == ["prepare", "pretrain", "finetune", "evaluate"]
    finetune = chain.tasks["finetune"]
    assert finetune.arguments == ("--steps", "20", "--lr", "0.05", "--part", "rare")
    assert finetune.inputs[1] == TaskInput("base", task="pretrain", artifact=Artifact.MODEL)
    assert finetune.script == EXAMPLE.parent / "train" / "train.py" and set(finetune.options) == {"metrics"}


def test_inputs_are_artifacts_s3_folders_or_paths_beside_the_file(tmp_path):
    (tmp_path / "data").mkdir()
    inputs = {"x": "a.checkpoints", "y": "s3://bucket/y/", "z": "data"}
    chain = parse_chain(
        tmp_path / "rerail.toml", {"c": {"a": TWO["a"], "b": {"script": "b.py", "inputs": inputs}}}, "c"
    )
    assert [one.text for one in chain.tasks["b"].inputs] == ["a.checkpoints", "s3://bucket/y/", str(tmp_path / "data")]
    assert chain.tasks["b"].sources == ("a",)


@pytest.mark.parametrize(
    "tasks, problem, remedy",
    [
        ({"a": {"scrpt": "a.py"}}, "task a: unknown field 'scrpt'", "did you mean 'script'?"),
        ({"a": {}}, "task a: field 'script' is missing", "name a Python script"),
        ({"a": {"script": "a.py", "after": ["c"]}}, "the chain has no task 'c'", "known: a"),
        ({**TWO, "b": {"script": "b", "inputs": {"d": "aa.model"}}}, "has no task 'aa'", "did you mean 'a'?"),
        ({**TWO, "b": {"script": "b", "inputs": {"d": "a"}}}, "does not say what of the task", "a.model, a.output"),
        ({**TWO, "b": {"script": "b", "inputs": {"d": "data/x"}}}, "there is no such file or folder", "relative to"),
        ({**TWO, "b": {"script": "b", "inputs": {"d d": "a.model"}}}, "not a channel's name", "use letters"),
        ({**TWO, "b": {"script": "b", "inputs": ["a.model"]}}, "must be a table", "inputs = {"),
        ({"a": {"script": "a.py", "arguments": "--lr 1"}}, "field 'arguments' is '--lr 1'", "a list of texts"),
        ({"a": {"script": "a.py", "arguments": [True]}}, "field 'arguments'", "a list of texts"),
        ({"a b": {"script": "a.py"}}, "not a valid name", "letters, digits or hyphens"),
        ({"a": 3}, "must be a table", "at least `script`"),
        ({}, "has no tasks", "[chain.c.TASK]"),
    ],
)
def test_what_is_wrong_is_named_with_its_remedy(tmp_path, tasks, problem, remedy):
    with pytest.raises(Problem) as raised:
        parse_chain(tmp_path / "rerail.toml", {"c": tasks}, "c")
    assert problem in raised.value.what and remedy in raised.value.remedy


def test_a_chain_is_named_where_the_file_has_several(tmp_path):
    chains = {"first": TWO, "second": TWO}
    with pytest.raises(Problem) as raised:
        parse_chain(tmp_path / "f", chains, "")
    assert raised.value.remedy == "name one: rerail chain first | second"
    with pytest.raises(Problem) as raised:
        parse_chain(tmp_path / "f", chains, "secnd")
    assert raised.value.remedy == "did you mean 'second'?"


def test_the_file_is_looked_for_up_to_the_root_of_the_repository(tmp_path):
    (tmp_path / "rerail.toml").write_text("")
    inner = tmp_path / "repository" / "inner"
    (inner / "deep").mkdir(parents=True)
    (tmp_path / "repository" / ".git").mkdir()
    (inner / "rerail.toml").write_text("")
    assert find_file(None, inner / "deep") == inner / "rerail.toml"
    (inner / "rerail.toml").unlink()
    with pytest.raises(Problem, match=r"no rerail\.toml"):
        find_file(None, inner)
    with pytest.raises(Problem, match="no such file"):
        find_file(Path("other.toml"), inner)


def test_a_circle_is_named(tmp_path):
    tasks = {
        "a": {"script": "a.py", "after": ["c"]},
        "b": {"script": "b.py", "after": ["a"]},
        "c": {"script": "c.py", "after": ["b"]},
    }
    chain = parse_chain(tmp_path / "f", {"c": tasks}, "")
    with pytest.raises(Problem) as raised:
        sort_tasks(chain.tasks)
    circle = raised.value.what.rpartition(": ")[2].split(" -> ")
    assert len(circle) == 4 and circle[0] == circle[-1] and set(circle) == {"a", "b", "c"}


def test_what_is_independent_is_in_one_generation_or_in_another_component(tmp_path):
    tasks = {
        "a": {"script": "x"},
        "b": {"script": "x", "after": ["a"]},
        "c": {"script": "x", "after": ["a"]},
        "d": {"script": "x"},
        "e": {"script": "x", "after": ["b", "c"]},
    }
    chain = parse_chain(tmp_path / "f", {"c": tasks}, "")
    assert list_generations(chain.tasks) == [["a", "d"], ["b", "c"], ["e"]]
    assert list_generations(chain.tasks, {"b", "e"}) == [["b"], ["e"]]
    assert list_components(chain.tasks, list(tasks)) == [["a", "b", "c", "e"], ["d"]]
    assert list_components(chain.tasks, ["b", "c", "d"]) == [["b"], ["c"], ["d"]]
