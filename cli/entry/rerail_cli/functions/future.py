"""The future of a remote call: waits for the run over all of its attempts, and returns what the function has left."""

from __future__ import annotations

import pickle
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from .envelope import BadEnvelope, make_name, verify
from .errors import CallRefused, RemoteError, ResultRefused, RunHeld, RunStopped
from .job import ERROR, VALUE
from .service_client import find_service

PAUSE_S, LOCAL_PAUSE_S = 5.0, 0.5
# A network that is down for this long does not end a wait.
SILENCE_S = 900.0
ENDED = ("completed", "stopped", "failed", "held")


@dataclass(frozen=True)
class CallOutcome:
    """The outcome of a call: a value, or the exception to raise."""

    value: Any = None
    exception: BaseException | None = None


class RemoteFuture:
    """The result to come of one remote call."""

    def __init__(self, run: str, call: str, key: str, folder: str, *, local: bool = False) -> None:
        self.run, self._call, self._key = run, call, key
        self._folder, self._local = folder, local
        self._outcome: CallOutcome | None = None
        self._silent_since: float | None = None
        self._job = run
        self._known = ""  # the ETag of the newest result that did not end the call

    def __repr__(self) -> str:
        return f"<RemoteFuture of run {self.run}>"

    def result(self, timeout: float | None = None, *, logs: bool = False) -> Any:
        """Return the function's value, or raise its exception with the remote traceback as a note.

        With `logs`, what the jobs print appears on stderr meanwhile; `rerail logs RUN` has the last lines too.
        Raise TimeoutError after `timeout` seconds, RunHeld or RunStopped if the run ended without a result, and
        ResultRefused if the result of a completed run is not signed with the run's key.
        """
        outcome = self._wait(timeout, logs=logs)
        if outcome.exception is not None:
            raise outcome.exception
        return outcome.value

    def exception(self, timeout: float | None = None) -> BaseException | None:
        """Return the exception that `result` would raise; None if there is a value."""
        return self._wait(timeout).exception

    def done(self) -> bool:
        """Return whether the call has ended; that of a held run may go on after a release."""
        outcome = self._look()
        return outcome is not None and not isinstance(outcome.exception, RunHeld)

    def cancel(self) -> None:
        """Stop the run without waiting for a checkpoint; `result` then raises RunStopped. An ended call stays so."""
        if self.done():
            return
        find_service(self._local).ask("stop", run=self.run)

    def _wait(self, timeout: float | None, *, logs: bool = False) -> CallOutcome:
        deadline = None if timeout is None else time.monotonic() + timeout
        pause_s = LOCAL_PAUSE_S if self._local else PAUSE_S
        try:
            while (outcome := self._look(logs=logs)) is None:
                left = pause_s if deadline is None else deadline - time.monotonic()
                if left <= 0:
                    raise TimeoutError(f"run {self.run} has not ended within {timeout} s; it goes on: {self._way_back}")
                time.sleep(min(pause_s, left))
        except KeyboardInterrupt:
            sys.stderr.write(f"\nrun {self.run} goes on: {self._way_back}; `{self._command('stop')}` ends it\n")
            raise
        return outcome

    def _look(self, *, logs: bool = False) -> CallOutcome | None:
        """Return how the call has ended, None if it has not. A hold is looked at again: an operator may release it."""
        if self._outcome is not None:
            return self._outcome
        with tempfile.TemporaryDirectory(prefix="rerail-result-") as folder:
            file = Path(folder) / "result"
            seen = self._ask_state(file, logs=logs)
            envelope = file.read_bytes() if seen and seen["stored"] else None
        if seen is None:
            return None
        outcome, is_final = self._open(envelope, seen["job"]) if envelope is not None else (None, False)
        if not is_final:
            if seen["state"] not in ENDED:
                self._known = seen["tag"]
                return None
            cause = outcome.exception if outcome else None
            problem: RemoteError = self._make_ending(seen)
            problem.__cause__ = cause
            if isinstance(cause, ResultRefused) and seen["state"] == "completed":
                problem = cause
            outcome = CallOutcome(exception=problem)
        if outcome is not None and not isinstance(outcome.exception, RunHeld):
            self._outcome = outcome
        return outcome

    def _ask_state(self, file: Path, *, logs: bool) -> dict[str, Any] | None:
        """Return how far the run is, None while AWS cannot be reached; the newest result is written to the file."""
        try:
            seen = find_service(self._local).ask(
                "look", run=self.run, folder=self._folder, into=str(file), known=self._known, logs=logs
            )
        except CallRefused as error:
            raise RemoteError(f"run {self.run} cannot be observed: {error}. It goes on: {self._way_back}") from error
        if "unreachable" not in seen:
            self._silent_since = None
            if seen["job"] != self._job:
                self._job = seen["job"]
                sys.stderr.write(f"run {self.run} goes on as {self._job}, attempt {seen['attempts']}\n")
            sys.stderr.writelines(f"{line}\n" for line in seen["lines"])
            return seen
        self._silent_since = self._silent_since or time.monotonic()
        if time.monotonic() - self._silent_since > SILENCE_S:
            raise RemoteError(f"run {self.run} cannot be observed: {seen['unreachable']}. {self._way_back}")
        return None

    def _open(self, envelope: bytes, job: str) -> tuple[CallOutcome, bool]:
        """Return the outcome in a stored result, and whether it ends the call: what others store there does not."""
        try:
            header, content = verify(envelope, make_name("result", self.run, self._call, job), self._key)
        except BadEnvelope as error:
            text = f"the result of run {self.run} was refused and not unpickled: {error}. Another writer has changed "
            text += f"{self._folder}results/{job}: find out who may write there, then call the function again."
            return CallOutcome(exception=ResultRefused(text)), False
        if header["kind"] == ERROR:
            text = f"{header['text']} (run {self.run})"
            return CallOutcome(exception=_with_traceback(RemoteError(text), header, self.run, job)), header["final"]
        try:
            value = pickle.loads(content)  # nosec B301: signed with the run's key
        except Exception as error:
            what = header.get("text") or "its value"
            text = f"{what} of run {self.run} cannot be unpickled here: {type(error).__name__}: {error}. "
            text += "Import or install what it is made of, then attach to the run."
            return CallOutcome(exception=_with_traceback(RemoteError(text), header, self.run, job)), header["final"]
        if header["kind"] == VALUE:
            return CallOutcome(value), True
        return CallOutcome(exception=_with_traceback(value, header, self.run, job)), header["final"]

    def _make_ending(self, seen: dict[str, Any]) -> RemoteError:
        """Return the error of a run that ended without a final result."""
        why = f": {seen['why']}" if seen["why"] else ""
        if seen["state"] == "held":
            return RunHeld(
                f"run {self.run} is held after {seen['attempts']} attempts{why}. If the cause lies outside of the "
                f"function, remove it and `{self._command('release')}`; {self._way_back}. Otherwise correct the "
                "function and call it again."
            )
        if seen["state"] == "completed":
            problem = f" ({seen['unreadable']})" if seen["unreadable"] else ""
            return RemoteError(
                f"run {self.run} has completed, and its result cannot be read{problem}: `{self._command('logs')}` "
                "shows what the job has printed."
            )
        return RunStopped(
            f"run {self.run} has {seen['state'] if seen['state'] == 'failed' else 'been stopped'}{why}. "
            f"`{self._command('logs')}` shows what it printed; call the function again for a new run."
        )

    @property
    def _way_back(self) -> str:
        option = ", local=True" if self._local else ""
        return f'`rerail_cli.attach("{self.run}"{option}).result()` waits for it again'

    def _command(self, verb: str) -> str:
        return f"rerail {verb} {self.run}{' --local' if self._local else ''}"


def _with_traceback(error: BaseException, header: dict[str, Any], run: str, job: str) -> BaseException:
    """Return the exception with the remote traceback as a note."""
    if header.get("traceback"):
        error.add_note(f"Traceback of job {job}, run {run}:\n{header['traceback'].rstrip()}")
    return error
