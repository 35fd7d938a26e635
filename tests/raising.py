"""A function that fails, to put in the place of a call."""

from collections.abc import Callable
from typing import Any


def raising(error: BaseException | type[BaseException]) -> Callable[..., Any]:
    """Return a function that raises the error, whatever its arguments are."""

    def fail(*_: Any, **__: Any) -> Any:
        raise error

    return fail
