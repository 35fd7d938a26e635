"""What was found by fuzzing, one by one: each input once ended in an error that was none of ours."""

import json
import math
import re

import pytest
import typer

from cli.backtest import sources, tables
from cli.backtest.corpus import BadCorpus, read_corpus
from cli.chains.definition import read_chain
from cli.doctor import subject
from cli.logbook import JobLogLine
from cli.losses import LONGEST, Losses
from cli.submit import options
from cli.submit.problem import Problem
from cli.submit.settings import FILE, read_defaults
from rerail.incident_report.reporter import run_of
from rerail.model.errors import BadMessage, PolicyError
from rerail.model.metrics import make_definitions
from rerail.model.policy import parse_policy
from rerail_agent import in_place_restarts, init_channel
from rerail_agent.checkpoints import manifest
from rerail_agent.exit_report import ProcessExit, make_report
from rerail_agent.stderr_relay import StderrLine as Printed
from rerail_agent.telemetry import format_line
from tests.bad_input.targets import files, parsers
from tests.timing import growth

DEEP = "[" * 20_000
MANY = "9" * 5_000


@pytest.mark.parametrize("said", ["step nan", "step inf", "step -inf", f"step {MANY}", f"rerail step={MANY} loss=1"])
def test_a_step_that_is_no_number_to_count_with_is_passed_over(said):
    """A script's own log line, under its own expressions; what follows is read on."""
    losses = Losses.of([{"Name": "step", "Regex": r"step (\S+)"}, {"Name": "loss", "Regex": r"loss[:=] ?(\S+)"}])
    for text in (said, "step 3", "loss=2.5"):
        losses.read(JobLogLine("gpt", "algo-1", text))
    assert losses.by_step == {3: 2.5}


@pytest.mark.parametrize("word", ["a=rerail ", "rerail step=1 ", "rerail ", "loss= "])
def test_a_line_without_end_costs_no_time_without_end(word):
    """Of a quarter of a megabyte, which is what CloudWatch takes as one line, the last part is read."""

    def losses_of(length: int) -> Losses:
        losses = Losses.of(make_definitions())
        losses.read(
            JobLogLine("gpt", "algo-1", "rerail " + word * (length // len(word)) + "rerail step=7 loss=2.5 x=y")
        )
        return losses

    assert losses_of(250_000).by_step == {7: 2.5} or word == "rerail step=1 "
    assert growth(lambda: losses_of(LONGEST), lambda: losses_of(250_000), repeats=5) < 10


@pytest.mark.parametrize("value", [10**400, -(10**400), complex(1, 1), object, [1], "a b\n\x1b[2Jc", math.nan])
def test_whatever_a_script_logs_is_one_line(value):
    """A number too large for a float must not end the training that has logged it."""
    text = format_line(step=3, loss=1.0, grad_norm=None, lr=None, tokens_per_s=None, extra={"mine": value, "\n": value})
    assert len(text.splitlines()) == 1 and text.startswith("rerail step=3 loss=1 ")


@pytest.mark.parametrize("text", [DEEP, "{}", "[]", "7", '{"current_host": [], "hosts": "algo-1"}', '{"told": 3}'])
def test_a_file_of_the_machine_that_makes_no_sense_is_done_without(tmp_path, text):
    """SageMaker's, and the one that an earlier container has left: the job starts."""
    for place in (
        tmp_path / "input" / "config" / "resourceconfig.json",
        in_place_restarts.make_restart_file_path(tmp_path),
    ):
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_text(text)
    assert init_channel.count_hosts(tmp_path) == 1
    assert init_channel.read_host(tmp_path)
    assert in_place_restarts.read_restart_file(tmp_path, "gpt", "ab" * 32, [].append) == {}


@pytest.mark.parametrize(
    "said",
    [
        f"process rank {MANY} with PID 7 on node a exited on signal {MANY}",
        f"[{MANY},{MANY}]<stderr>: RuntimeError: no",
        f"[rank{MANY}]: RuntimeError: no",
        f"Root Cause (first observed failure): rank : {MANY} exitcode : -{MANY}",
        "Root Cause (first observed failure): rank : 1 " * 1_200,
        DEEP,
        '{"message": {"message": "RuntimeError: no", "extraInfo": {"timestamp": 1' + "0" * 400 + "}}}",
    ],
)
def test_any_output_of_a_dying_script_gives_a_failure_file(said):
    """Init must not fall over what it reads: SageMaker would be told nothing at all."""
    silent, testified = ProcessExit(0, None, 3.0), ProcessExit(0, 1, 3.0, error_text=said)
    for ranks in ([silent], [testified, silent]):
        text = make_report(silent, ranks, [Printed(2.0, said)], oom_killed=False).text()
        assert json.loads(text)["rerail"] == 1 and len(text) <= 1024


@pytest.mark.parametrize(
    ("body", "named"),
    [
        ("{", "not JSON"),
        (DEEP, "not JSON"),
        ("{}", "field 'detail.run' is missing"),
        ("[]", "field 'detail.run' is missing"),
        ('{"detail": {"run": 7}}', "field 'detail.run' is 7"),
        ('{"detail": {"run": ""}}', "field 'detail.run' is ''"),
    ],
)
def test_a_message_that_no_report_can_be_drawn_for_names_its_field(body, named):
    """It goes to the dead letters with one clear line."""
    with pytest.raises(BadMessage, match=named):
        run_of(body)


def test_a_policy_nested_without_end_is_no_policy():
    """Whoever may write the parameter may write that."""
    with pytest.raises(PolicyError, match="not valid TOML"):
        parse_policy("a = " + "[" * 5_000, name="deep")


@pytest.mark.parametrize(
    ("text", "what"),
    [
        (b"\xff\xfe", "cannot be read"),
        (b"\xef\xbb\xbf[submit]\r\nrol = 1", "unknown field 'rol'"),
        (b"a = " + b"[" * 5_000, "cannot be read"),
        (b"[submit]\ncount = " + json.dumps([0] * 3_000).encode(), "field 'count' is"),
        (b"[submit]\n" + b"x" * 3_000 + b" = 1", "unknown field"),
        (b"[submit]\ncount = " + MANY.encode(), "not valid TOML"),
        (b"[submit]\ncount = 0x" + MANY.encode(), "not valid TOML"),
        (b"#" * 1_000_001, "must be a file of at most 1,000,000 bytes"),
        (b"a" + b".a" * 100_000 + b" = 1", "has a line with more than 1000 dots: shorten it"),
    ],
)
def test_defaults_that_cannot_be_read_are_a_problem_with_a_remedy(tmp_path, text, what):
    """One line, however long the file."""
    (tmp_path / ".git").mkdir()
    (tmp_path / FILE).write_bytes(text)
    with pytest.raises(Problem, match=what) as raised:
        read_defaults(tmp_path, tmp_path)
    assert len(raised.value.what) < 500 and raised.value.remedy
    if b"[submit]" not in text or b"count" in text:
        with pytest.raises(Problem, match="rerail.toml"):
            read_chain(tmp_path / FILE, "")


def test_a_header_of_a_thousand_columns_is_quoted_in_part(tmp_path):
    """Its beginning says enough."""
    file = tmp_path / "log.csv"
    file.write_text(",".join(f"column{number}" for number in range(1_000)) + "\n1\n")
    with pytest.raises(BadCorpus) as raised:
        tables.read(file)
    assert "has no column loss (it has column0, column1" in raised.value.problem and len(raised.value.problem) < 1_000


def test_an_index_without_its_cells_is_a_problem_with_a_remedy(tmp_path):
    """A line that ends early has no number at all."""
    (tmp_path / "index.csv").write_text("id,group,n_points\none\n")
    with pytest.raises(BadCorpus, match="n_points is None; write a whole number"):
        read_corpus(tmp_path)


@pytest.mark.parametrize(
    ("request_", "named"),
    [
        ({"ResourceConfig": 3}, "ResourceConfig"),
        ({"ResourceConfig": {"InstanceCount": "many"}}, "ResourceConfig.InstanceCount"),
        ({"AlgorithmSpecification": {"MetricDefinitions": [3]}}, r"MetricDefinitions\[0\]"),
        ({"Environment": {"A": 1}}, "Environment"),
        ({"RoleArn": "r", "Tags": {"a": "b"}}, "Tags"),
    ],
)
def test_a_request_of_another_form_names_its_member(tmp_path, capsys, request_, named):
    """Before any question is asked about it: exit status 2, and where a good one is to be had."""
    file = tmp_path / "request.json"
    file.write_text(json.dumps({"RoleArn": "arn", **request_}))
    with pytest.raises(typer.Exit):
        subject.read_request(None, file)
    said = capsys.readouterr().err
    assert "Invalid type for parameter" in said and "dry-run" in said
    assert re.search(named, said)


def test_a_clear_error_is_distinguished_from_an_unclear_one():
    """The measure itself: empty, endless, of several lines, or not to be written down is not clear."""
    parsers.check("field 'x' is 3; it must be text")
    for words in ("", "x" * 3_000, "one\ntwo", "\ud800"):
        with pytest.raises((AssertionError, UnicodeEncodeError)):
            parsers.check(words)
    with pytest.raises(ZeroDivisionError):
        files.with_remedy(lambda data: 1 / 0)(b"")


@pytest.mark.parametrize("given", ["x" * 5_000, "~nobody-of-this-name/train.py", "a\0b"])
def test_a_path_that_no_file_system_takes_is_a_problem_with_a_remedy(given):
    """A script, an input or a log of that name is said not to be there."""
    with pytest.raises(Problem) as raised:
        options.check_inputs({"train": given})
    assert len(raised.value.what) < 500
    with pytest.raises(Problem):
        options.check_local_path("SCRIPT", given)
    with pytest.raises(BadCorpus, match="there is no "):
        sources.find(given, local=False)


@pytest.mark.parametrize("bytes_", ["Infinity", "NaN", "1e400", '"x"', "null"])
def test_a_manifest_with_a_size_that_is_none_is_a_damaged_checkpoint(bytes_):
    """It is passed over; the script that resumes does not die of it."""
    text = '{"step": 3, "files": [{"name": "a", "checksum": "x", "bytes": BYTES}]}'
    table = json.loads(text.replace("BYTES", bytes_))
    signed = json.dumps({**table, "seal": manifest._compute_own_checksum(table)})
    with pytest.raises(manifest.DamagedCheckpoint):
        manifest.parse(signed.encode(), folder="step-000000003")


@pytest.mark.parametrize("number", [MANY, "²", "-1", "", "x"])
def test_a_port_that_is_none_is_left_as_it_is(number):
    """The processes say so themselves; init does not die of it before it has started them."""
    for environment in ({"MASTER_PORT": number, "RERAIL_RESTART": "1"}, {"MASTER_PORT": "1", "RERAIL_RESTART": number}):
        assert in_place_restarts.with_another_port(environment) == environment
