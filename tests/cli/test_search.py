"""`rerail search`: what SageMaker is asked, and what its answer looks like."""

import json
from datetime import UTC, datetime

import pytest
import typer
from typer.testing import CliRunner

from cli import place
from cli.main import app
from cli.search import make_expression, make_property

NOON = datetime(2026, 1, 31, 12, tzinfo=UTC)
JOB = {
    "TrainingJobName": "gpt-a002",
    "TrainingJobStatus": "Completed",
    "CreationTime": NOON,
    "TrainingTimeInSeconds": 90,
    "ResourceConfig": {"InstanceType": "ml.g5.xlarge"},
    "FinalMetricDataList": [{"MetricName": "loss", "Value": 1.5, "Timestamp": NOON}],
    "HyperParameters": {"lr": "0.1", "sagemaker_program": '"train.py"'},
    "Tags": [{"Key": "rerail:run", "Value": "gpt"}],
}


@pytest.fixture
def sagemaker(monkeypatch):
    """A SageMaker whose search finds one job, and which notes what it was asked."""
    asked: list[dict] = []

    class SageMaker:
        found = [{"TrainingJob": JOB}]

        def get_paginator(self, name):
            assert name == "search"
            return self

        def paginate(self, **request):
            asked.append(request)
            return [{"Results": self.found}]

    fake = SageMaker()
    monkeypatch.setattr(place, "client", lambda service: fake)
    fake.asked = asked
    return fake


def test_terms_become_filters_of_sagemakers_own_search():
    """Arguments are compared as the SDK writes them; channels need a nested filter; ages count back from now."""
    terms = ["metric.loss<2", "argument.lr=0.1", "argument.model=small", "tag.team!=vision", "created>7d"]
    found = make_expression([*terms, "input~digits", "name ~ gpt", "ended<=2026-01-30"], at=NOON)
    assert found["Filters"] == [
        {"Name": "Metrics.loss", "Operator": "LessThan", "Value": "2"},
        {"Name": "HyperParameters.lr", "Operator": "Equals", "Value": "0.1"},
        {"Name": "HyperParameters.model", "Operator": "Equals", "Value": '"small"'},
        {"Name": "Tags.team", "Operator": "NotEquals", "Value": "vision"},
        {"Name": "CreationTime", "Operator": "GreaterThan", "Value": "2026-01-24T12:00:00+00:00"},
        {"Name": "TrainingJobName", "Operator": "Contains", "Value": "gpt"},
        {"Name": "TrainingEndTime", "Operator": "LessThanOrEqualTo", "Value": "2026-01-30T00:00:00+00:00"},
    ]
    (nested,) = found["NestedFilters"]
    assert nested["NestedPropertyName"] == "InputDataConfig"
    assert nested["Filters"][0]["Name"] == "InputDataConfig.DataSource.S3DataSource.S3Uri"
    assert make_expression([], at=NOON) == {}


@pytest.mark.parametrize("term", ["loss", "=2", "colour=red", "created>yesterday", "metric.=2"])
def test_what_is_no_term_is_one_error(term, capsys):
    with pytest.raises(typer.Exit):
        make_expression([term], at=NOON)
    assert "to do:" in capsys.readouterr().err


def test_the_best_jobs_come_first(sagemaker):
    answer = CliRunner().invoke(
        app, ["search", "status=Completed", "--sort", "metric.loss", "--ascending", "--limit", "5", "--json"]
    )
    (found,) = json.loads(answer.stdout)
    assert (found["job"], found["run"], found["metrics"]) == ("gpt-a002", "gpt", {"loss": 1.5})
    assert found["arguments"] == {"lr": "0.1"} and found["created"] == NOON.isoformat()
    (request,) = sagemaker.asked
    assert (request["SortBy"], request["SortOrder"]) == (make_property("metric.loss"), "Ascending")
    assert request["PaginationConfig"] == {"MaxItems": 5, "PageSize": 5}
    table = CliRunner().invoke(app, ["search"], env={"COLUMNS": "120"}).stdout
    assert "gpt-a002" in table and "loss 1.5" in table and "lr 0.1" in table


@pytest.mark.threat("T14")
@pytest.mark.parametrize("text", ["[/]", "[red]x[/red]", "[link=https://evil.example]x[/link]"])
def test_arguments_of_others_are_shown_as_they_are(sagemaker, text):
    """Their markup draws nothing, opens no link and does not end the command."""
    sagemaker.found = [{"TrainingJob": JOB | {"HyperParameters": {"name": text}}}]
    answer = CliRunner().invoke(app, ["search"], env={"COLUMNS": "160"})
    assert answer.exit_code == 0 and f"name {text} " in answer.output


@pytest.mark.threat("T16")
@pytest.mark.parametrize("options", [[], ["--json"]])
def test_a_search_prints_no_secret_of_a_job(sagemaker, options):
    secrets = {"hf_token": "hunter2-hunter2", "url": "https://ada:hunter2-hunter2@example.com"}
    sagemaker.found = [{"TrainingJob": JOB | {"HyperParameters": secrets, "FailureReason": "by hunter2-hunter2"}}]
    answer = CliRunner().invoke(app, ["search", *options], env={"COLUMNS": "160"})
    assert "[hidden]" in answer.output and "hunter2" not in answer.output


def test_a_search_without_a_result_ends_with_1(sagemaker):
    sagemaker.found = []
    answer = CliRunner().invoke(app, ["search", "name=gone"])
    assert answer.exit_code == 1 and "no training job fits" in answer.output
