"""What a remote function refuses before a job is started, how it is pickled, and what the job makes of it."""

import ast
import json
import pickle
import socket
import sys
import threading
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from botocore.exceptions import EndpointConnectionError, ReadTimeoutError
from rerail_cli import CallRefused, RemoteError, checkpoint_folder, remote
from rerail_cli.functions import decorator, future, job, serialization
from rerail_cli.functions.envelope import make_name, sign, verify

from cli.remote import submission
from cli.submit.problem import Problem
from tests.house.sources import ROOT

KEY, RUN, CALL = "ab" * 32, "sums-1", "c1"
LOCK = threading.Lock()


class Unpicklable(Exception):
    """An exception that pickle cannot build again."""

    def __init__(self, number: int, why: str) -> None:
        super().__init__(f"{number}: {why}")


class Service:
    """Keeps what would be submitted."""

    def __init__(self) -> None:
        self.requests: list[dict[str, Any]] = []

    def ask(self, operation: str, **fields: Any) -> dict[str, Any]:
        fields["content"] = {name: Path(path).read_bytes() for name, path in fields["files"].items()}
        self.requests.append(json.loads(json.dumps({**fields, "content": None})) | {"content": fields["content"]})
        return {"folder": f"s3://bucket/rerail/{fields['run']}/"}


@pytest.fixture
def service(monkeypatch: pytest.MonkeyPatch) -> Service:
    service = Service()
    monkeypatch.setattr(decorator, "find_service", lambda local: service)
    return service


@pytest.mark.parametrize(
    ("define", "match"),
    [
        ("async def f(): pass", "coroutine function; call asyncio.run"),
        ("def f(): yield 1", "generator function; return a list"),
        ("class f: pass", "not a plain function"),
    ],
)
def test_what_cannot_run_remotely_is_refused_where_it_is_defined(define, match):
    names: dict[str, Any] = {}
    exec(define, names)
    with pytest.raises(CallRefused, match=match):
        remote(names["f"])


def test_an_option_that_does_not_exist_is_refused():
    with pytest.raises(CallRefused, match="no option instances: it takes instance_type, policy"):
        remote(instances=2)


def test_a_missing_argument_is_refused_before_anything_is_sent(service):
    with pytest.raises(TypeError, match=r"missing a required argument: 'first'"):
        remote(source=None)(lambda first: first).submit()
    assert not service.requests


def test_what_cannot_be_pickled_is_named(service):
    @remote(source=None)
    def add(first, second):
        return first, second, LOCK

    with pytest.raises(CallRefused, match=r"variable 'LOCK' that the function uses \(_thread.lock\)"):
        add.submit(1, 2)
    with pytest.raises(CallRefused, match=r"argument 'second' \(_thread.lock\) cannot be pickled"):
        add.submit(1, second=threading.Lock())
    assert not service.requests


def test_what_cannot_be_pickled_is_named_beside_a_variable_without_a_value(service):
    lock = threading.Lock()

    @remote(source=None)
    def use():
        return lock, later

    with pytest.raises(CallRefused, match="variable 'lock' that the function uses"):
        use.submit()
    later = 1


def test_a_call_that_is_too_large_states_its_parts(service, monkeypatch):
    monkeypatch.setattr(serialization, "MOST_BYTES", 500_000)
    with pytest.raises(CallRefused, match=r"is 1.2 MB .* more than 0.5 MB \(the largest: argument 'second' 1.0 MB, "):
        remote(source=None)(lambda first, second: None).submit(bytes(200_000), bytes(1_000_000))


def test_the_call_carries_the_signed_function_and_what_runs_it(service):
    add = remote(source=None, name="my sums", tags={"team": "vision"}, retry_on=[KeyError])(lambda a, b: a + b)
    submitted = add.submit(1, b=2)
    (request,) = service.requests
    assert request["run"] == submitted.run and submitted.run.startswith("my-sums-")
    assert request["options"]["tags"] == {"team": "vision"} and request["options"]["source"] is None
    name = make_name("call", request["run"], request["call"])
    header, content = verify(request["content"][job.CALL_FILE], name, request["key"])
    assert header == {"python": "{}.{}".format(*sys.version_info), "retry_on": ["builtins.KeyError"]}
    function, arguments, named = pickle.loads(content)
    assert function(*arguments, **named) == 3
    assert {"rerail_cli/functions/job.py", "cloudpickle/cloudpickle.py", job.ENTRY} < request["content"].keys()


def test_a_function_of_a_packed_module_is_imported_by_the_job(service, tmp_path, monkeypatch):
    """It is stored by its name, and its package's folder is packed."""
    (tmp_path / "shapes").mkdir()
    (tmp_path / "shapes" / "__init__.py").write_text("")
    (tmp_path / "shapes" / "areas.py").write_text(
        "from rerail_cli import remote\n\ndef twice(n):\n    return 2 * n\n\n"
        "@remote\ndef area(n):\n    return twice(n)\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    import shapes.areas  # type: ignore[import-not-found]

    shapes.areas.area.submit(4)
    (request,) = service.requests
    assert request["options"]["source"] == str(tmp_path)
    assert pickle.loads(pickle.dumps(shapes.areas.area))(4) == 8


def run_job(folder: Path, monkeypatch: pytest.MonkeyPatch, content: bytes, **header: Any) -> tuple[int, bytes]:
    """Return the exit status of the job of this call, and the result that it has stored."""
    stored: dict[str, bytes] = {}
    monkeypatch.setattr(job, "_store", lambda uri, result: stored.update({uri: result}))
    monkeypatch.setenv(job.CALL_VARIABLE, f"{RUN}/{CALL}")
    monkeypatch.setenv(job.KEY_VARIABLE, KEY)
    monkeypatch.setenv(job.RESULTS_VARIABLE, f"s3://bucket/rerail/{RUN}/results/")
    monkeypatch.setenv("TRAINING_JOB_NAME", f"{RUN}-a002")
    usual = {"python": "{}.{}".format(*sys.version_info), "retry_on": []}
    signed = sign({**usual, **header}, content, make_name("call", RUN, CALL), KEY)
    (folder / job.CALL_FILE).write_bytes(signed)
    status = job.main(folder)
    return status, stored[f"s3://bucket/rerail/{RUN}/results/{RUN}-a002"]


def open_result(envelope: bytes) -> tuple[future.CallOutcome, bool]:
    return future.RemoteFuture(RUN, CALL, KEY, f"s3://bucket/rerail/{RUN}/")._open(envelope, f"{RUN}-a002")


def call(function: Any, *arguments: Any) -> bytes:
    return serialization.pickle_call(remote(source=None)(function), arguments, {})


def test_the_job_runs_a_remote_function_in_place(tmp_path, monkeypatch):
    """Also one that another remote function calls, or that calls itself."""

    @remote(source=None)
    def factorial(n):
        return n * factorial(n - 1) if n else 1

    status, result = run_job(tmp_path, monkeypatch, call(lambda n: factorial(n), 5))
    assert status == 0 and open_result(result) == (future.CallOutcome(120), True)


def raise_error(error: BaseException) -> None:
    raise error


@pytest.mark.parametrize(
    ("error", "retry_on", "is_final"),
    [
        (ValueError("bad"), [], True),
        (RuntimeError("shapes differ"), [], True),
        (FileNotFoundError("data.csv"), [], True),
        (ConnectionResetError("by peer"), [], False),
        (MemoryError(), [], False),
        (socket.gaierror(-3, "Temporary failure in name resolution"), [], False),
        (RuntimeError("CUDA out of memory. Tried to allocate 2.00 GiB"), [], False),
        (RuntimeError("DataLoader worker (pid 3) is killed by signal: Killed."), [], False),
        (RuntimeError("CUDA error: an illegal memory access"), [], False),
        (FileNotFoundError("data.csv"), ["builtins.OSError"], False),
    ],
)
def test_an_exception_ends_the_call_unless_a_machine_causes_it(tmp_path, monkeypatch, error, retry_on, is_final):
    status, result = run_job(tmp_path, monkeypatch, call(raise_error, error), retry_on=retry_on)
    outcome, final = open_result(result)
    assert (status, final) == (0 if is_final else 1, is_final)
    assert type(outcome.exception) is type(error) and outcome.exception.args == error.args
    assert "in raise_error" in outcome.exception.__notes__[0]


def test_an_error_of_the_network_is_found_behind_the_types_of_libraries():
    assert job.is_retried(EndpointConnectionError(endpoint_url="https://s3"), [])
    assert job.is_retried(ReadTimeoutError(endpoint_url="https://s3"), [])
    error = ValueError("the batch cannot be read")
    error.__cause__ = ConnectionResetError()
    assert job.is_retried(error, [])
    error.__cause__ = KeyError("name")
    assert not job.is_retried(error, [])


@pytest.mark.parametrize("status", [0, 3])
def test_a_function_that_exits_does_not_end_the_callers_program(tmp_path, monkeypatch, status):
    _, result = run_job(tmp_path, monkeypatch, call(lambda: sys.exit(status)))
    outcome, final = open_result(result)
    assert final and isinstance(outcome.exception, RemoteError)
    assert f"SystemExit: {status}" in str(outcome.exception)


def test_an_exception_without_a_text_is_returned_all_the_same(tmp_path, monkeypatch):
    class Silent(RuntimeError):
        def __str__(self):
            raise ValueError("no text")

    _, result = run_job(tmp_path, monkeypatch, call(lambda: raise_error(Silent())))
    assert type(open_result(result)[0].exception).__name__ == "Silent"


def test_an_exception_that_cannot_be_pickled_becomes_its_text(tmp_path, monkeypatch):
    status, result = run_job(tmp_path, monkeypatch, call(lambda: raise_error(Unpicklable(4, "no"))))
    outcome, _ = open_result(result)
    assert status == 0 and isinstance(outcome.exception, RemoteError)
    assert "Unpicklable: 4: no" in str(outcome.exception) and f"(run {RUN})" in str(outcome.exception)


@pytest.mark.parametrize(
    ("content", "header", "match"),
    [
        (call(lambda: threading.Lock()), {}, r"has returned a _thread.lock that cannot be pickled"),
        (b"cnowhere\nname\n.", {}, "cannot be loaded in the job: ModuleNotFoundError: No module named 'nowhere'"),
        (call(lambda: 1), {"python": "3.8"}, r"made with Python 3.8 and the image has Python 3.1\d"),
    ],
)
def test_what_the_job_cannot_do_is_the_callers_error(tmp_path, monkeypatch, content, header, match):
    status, result = run_job(tmp_path, monkeypatch, content, **header)
    assert status == 0
    with pytest.raises(RemoteError, match=match):
        raise open_result(result)[0].exception


@pytest.mark.threat("T31")
def test_a_call_that_others_wrote_is_not_unpickled_by_the_job(tmp_path, monkeypatch):
    touched = tmp_path / "touched"
    bomb = call(lambda: touched.touch())
    monkeypatch.setattr(job, "make_name", lambda kind, *parts: make_name("x" if kind == "call" else kind, *parts))
    _, result = run_job(tmp_path, monkeypatch, bomb)
    with pytest.raises(RemoteError, match="refused and not unpickled"):
        raise open_result(result)[0].exception
    assert not touched.exists()


def test_the_checkpoint_folder_is_the_jobs_and_outside_of_one_a_named_folder(tmp_path, monkeypatch):
    with pytest.raises(RuntimeError, match="set RERAIL_CHECKPOINT_FOLDER"):
        checkpoint_folder()
    monkeypatch.setenv("RERAIL_CHECKPOINT_FOLDER", str(tmp_path / "mine"))
    assert checkpoint_folder() == tmp_path / "mine" and (tmp_path / "mine").is_dir()
    monkeypatch.delenv("RERAIL_CHECKPOINT_FOLDER")
    monkeypatch.setenv(job.CALL_VARIABLE, f"{RUN}/{CALL}")
    monkeypatch.setenv("SAGEMAKER_BASE_DIR", str(tmp_path))
    assert checkpoint_folder() == tmp_path / "checkpoints"


def test_an_image_with_another_python_is_refused():
    image = "763104351884.dkr.ecr.eu-west-1.amazonaws.com/pytorch-training:2.8.0-gpu-py3{}"
    submission.check_python(image.format(sys.version_info.minor))
    submission.check_python("111122223333.dkr.ecr.eu-west-1.amazonaws.com/mine:1")
    with pytest.raises(Problem, match=r"image .*-py39 has Python 3\.9"):
        submission.check_python(image.format("9"))


def test_what_a_job_imports_first_is_understood_by_older_pythons():
    """A job with Python 3.8 states the two versions rather than a syntax error."""
    for path in (ROOT / "cli/entry/rerail_cli/functions").glob("*.py"):
        module = ast.parse(path.read_text(), feature_version=(3, 8))
        annotated = any(isinstance(node, ast.FunctionDef | ast.AnnAssign) for node in ast.walk(module))
        assert not annotated or "from __future__ import annotations" in path.read_text(), path.name


def test_a_method_is_refused_where_it_is_defined():
    """Its object would have to be pickled with it, unseen."""
    with pytest.raises((CallRefused, RuntimeError)) as error:

        class Trainer:
            @remote
            def train(self):
                return 1

    assert "is a method" in str(error.value.__cause__ or error.value)


@pytest.mark.parametrize(
    ("name", "spec", "file", "root"),
    [
        ("__main__", None, "program.py", "."),
        ("__main__", "shapes.areas", "shapes/areas.py", "."),
        ("shapes.areas", "shapes.areas", "shapes/areas.py", "."),
        ("shapes", "shapes", "shapes/__init__.py", "."),
        ("shapes.round", "shapes.round", "shapes/round/__init__.py", "."),
        ("sums", "sums", "lib/sums.py", "lib"),
        ("__main__", None, "<stdin>", None),
    ],
)
def test_the_folder_of_the_program_or_of_the_top_package_is_packed(tmp_path, monkeypatch, name, spec, file, root):
    if root:
        (tmp_path / file).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / file).touch()
    module = ModuleType(name)
    module.__file__, module.__spec__ = str(tmp_path / file), spec and ModuleSpec(spec, None)
    monkeypatch.setitem(sys.modules, name, module)
    assert decorator._find_root(name) == (tmp_path / root if root else None)
