"""The decorator `remote`, and the way back to a run of an earlier process."""

from __future__ import annotations

import functools
import inspect
import os
import re
import secrets
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from .checkpoint_folder import is_in_job
from .envelope import make_name, sign
from .errors import CallRefused
from .future import RemoteFuture
from .job import CALL_FILE, ENTRY, ENTRY_TEXT
from .serialization import find_function, get_function, pickle_call
from .service_client import find_service

PACKAGE = Path(__file__).resolve().parent
AUTO = "auto"
LONGEST_NAME = 36


@dataclass(frozen=True)
class RemoteOptions:
    """The options of `rerail submit`; empty values are filled from rerail.toml, as there."""

    instance_type: str = ""
    policy: str = ""
    image: str = ""
    framework_version: str = ""
    spot: bool | None = None
    keep_alive: str = ""
    role: str = ""
    bucket: str = ""
    environment: Mapping[str, str] = field(default_factory=dict)
    max_runtime: str = ""
    max_wait: str = ""
    # GB of each machine.
    volume: int | None = None
    tags: Mapping[str, str] = field(default_factory=dict)
    # The agent's wheel, here or in S3: SIGTERM then reaches the function.
    agent: str = ""
    # The folder whose modules are packed: "auto" is that of the function's module or package, None packs nothing.
    source: str | Path | None = AUTO
    exclude: Sequence[str] = ()
    dependencies: Sequence[str] = ()
    # Exceptions after which the run is retried within its budgets; any other ends the call.
    retry_on: Sequence[type[BaseException]] = ()
    # Begins the names of the runs; the function's name if empty.
    name: str = ""
    # On the local AWS of this machine.
    local: bool = False


class RemoteFunction:
    """A function that runs as a supervised job when it is called; inside of a job it runs in place."""

    def __init__(self, function: Callable[..., Any], options: RemoteOptions) -> None:
        _check_function(function)
        self.function, self.options = function, options
        functools.update_wrapper(self, function)

    def __set_name__(self, owner: type, name: str) -> None:
        raise CallRefused(f"{owner.__qualname__}.{name} is a method: decorate a function that is given the object")

    def __call__(self, *arguments: Any, **named: Any) -> Any:
        """Run the function as a job and show its log; return its value, or raise its exception."""
        if is_in_job():
            return self.function(*arguments, **named)
        return self.submit(*arguments, **named).result(logs=True)

    def submit(self, *arguments: Any, **named: Any) -> RemoteFuture:
        """Start a job that runs the function, and return its future; raise CallRefused if it cannot be started."""
        _check_arguments(self.function, arguments, named)
        content = pickle_call(self, arguments, named)
        run, call, key = self._make_run_name(), secrets.token_hex(16), secrets.token_hex(32)
        header = {
            "python": "{}.{}".format(*sys.version_info),
            "retry_on": [f"{kind.__module__}.{kind.__qualname__}" for kind in self.options.retry_on],
        }
        with tempfile.TemporaryDirectory(prefix="rerail-call-") as folder:
            packed = Path(folder)
            (packed / CALL_FILE).write_bytes(sign(header, content, make_name("call", run, call), key))
            (packed / ENTRY).write_text(ENTRY_TEXT)
            files = {name: str(packed / name) for name in (CALL_FILE, ENTRY)} | _list_runtime_files()
            source = self.source_folder
            options = {**asdict(self.options), "source": source and str(source), "retry_on": []}
            options["dependencies"] = [str(path) for path in self.options.dependencies]
            try:
                facts = find_service(self.options.local).ask(
                    "submit", run=run, call=call, key=key, files=files, entry=ENTRY, options=options
                )
            except KeyboardInterrupt:
                show = f"rerail show {run}{' --local' if self.options.local else ''}"
                sys.stderr.write(f"\nthe run {run} may have been started: `{show}` shows it\n")
                raise
        return RemoteFuture(run, call, key, facts["folder"], local=self.options.local)

    def with_options(self, **changes: Any) -> RemoteFunction:
        """Return the same function with other options."""
        return RemoteFunction(self.function, _make_options(changes, self.options))

    @property
    def name(self) -> str:
        """The function's name in messages."""
        return self.function.__qualname__.rpartition("<locals>.")[2]

    @property
    def source_folder(self) -> Path | None:
        """The folder whose modules are packed with the function; None for none."""
        source = self.options.source
        if source is None:
            return None
        return _find_root(self.function.__module__) if source == AUTO else Path(source).expanduser().resolve()

    @property
    def is_imported(self) -> bool:
        """Return whether the job imports the function from a packed module; any other is pickled by value."""
        module = self.function.__module__
        root = self.source_folder
        if module == "__main__" or "<" in self.function.__qualname__ or root is None:
            return False
        return bool(sys.modules.get(module)) and _find_root(module) == root

    def __reduce__(self) -> tuple[Callable[..., Any], tuple[Any, ...]]:
        """Pickle as the plain function, which is what a job needs."""
        if self.is_imported:
            return find_function, (self.function.__module__, self.function.__qualname__)
        return get_function, (self.function,)

    def _make_run_name(self) -> str:
        words = "-".join(re.findall("[a-zA-Z0-9]+", self.options.name or self.name)) or "function"
        # Not an "a" before digits, as in the names of relaunches.
        unique = secrets.token_hex(2).replace("a", "g")
        return f"{words[:LONGEST_NAME].strip('-')}-{time.strftime('%m%d-%H%M%S', time.gmtime())}-{unique}"


def remote(function: Callable[..., Any] | None = None, /, **options: Any) -> Any:
    """Turn a function into one that runs as a supervised job: `@remote` or `@remote(instance_type="ml.g5.xlarge")`.

    The options are the fields of RemoteOptions. Calling the function returns its value; `.submit(...)` its future.
    """
    chosen = _make_options(options, RemoteOptions())
    if function is None:
        return lambda decorated: RemoteFunction(decorated, chosen)
    return RemoteFunction(function, chosen)


def attach(run: str, *, local: bool = False) -> RemoteFuture:
    """Return the future of a call of another process by the name of its run; raise CallRefused if there is none."""
    facts = find_service(local).ask("find", run=run)
    return RemoteFuture(facts["run"], facts["call"], facts["key"], facts["folder"], local=local)


def _make_options(changes: Mapping[str, Any], usual: RemoteOptions) -> RemoteOptions:
    try:
        return replace(usual, **changes)
    except TypeError:
        known = ", ".join(RemoteOptions.__dataclass_fields__)
        unknown = sorted(changes.keys() - RemoteOptions.__dataclass_fields__.keys())
        raise CallRefused(f"@remote has no option {', '.join(unknown)}: it takes {known}") from None


def _check_function(function: Any) -> None:
    name = getattr(function, "__qualname__", repr(function))
    if inspect.iscoroutinefunction(function):
        raise CallRefused(f"@remote: {name} is a coroutine function; call asyncio.run(...) inside a plain function")
    if inspect.isgeneratorfunction(function) or inspect.isasyncgenfunction(function):
        raise CallRefused(f"@remote: {name} is a generator function; return a list, or save the parts and return where")
    if not inspect.isfunction(function):
        raise CallRefused(f"@remote: {name} is not a plain function; put the call into a function and decorate that")


def _check_arguments(function: Callable[..., Any], arguments: Sequence[Any], named: Mapping[str, Any]) -> None:
    """Raise TypeError as the call itself would, before a machine is paid for."""
    try:
        inspect.signature(function).bind(*arguments, **named)
    except TypeError as error:
        raise TypeError(f"{function.__qualname__}() {error}") from None


def _find_root(module: str) -> Path | None:
    """Return the folder from which a module or its top-level package is imported; None without a file."""
    found = sys.modules.get(module)
    file = getattr(found, "__file__", None)
    if not file or not os.path.isfile(file):
        return None
    spec = getattr(found, "__spec__", None)
    name = spec.name if module == "__main__" and spec else module
    folder = Path(file).resolve().parent
    depth = 0 if module == "__main__" and not spec else name.count(".")
    is_package = Path(file).name == "__init__.py"
    return folder.parents[depth - 1 + is_package] if depth + is_package else folder


def _list_runtime_files() -> dict[str, str]:
    """Return what the job needs beside the user's code, by its path in the packed folder: this package, cloudpickle."""
    import cloudpickle

    files = {"rerail_cli/__init__.py": str(PACKAGE.parent / "__init__.py")}
    files |= {f"rerail_cli/functions/{path.name}": str(path) for path in PACKAGE.glob("*.py")}
    pickler = Path(cloudpickle.__file__).resolve().parent
    return files | {f"cloudpickle/{path.name}": str(path) for path in pickler.glob("*.py")}
