"""Print the metric line that CloudWatch's regular expressions and Rerail's detectors read."""

import math
import re
from collections.abc import Callable, Mapping
from functools import lru_cache
from typing import Any

STANDARD = ("step", "loss", "grad_norm", "lr", "tokens_per_s", "nonfinite")
UNSAFE_CHARACTERS = re.compile(r"[^a-zA-Z0-9_.]+")


class TokenMeter:
    """Count tokens and seconds since the last metric line, and print the line."""

    def __init__(self, write: Callable[[str], None] | None = None) -> None:
        self._write = write or _print
        self._tokens = 0.0
        self._counted = False
        self._since = 0.0
        self.tokens_per_s: float | None = None

    def add_tokens(self, tokens: float | None) -> None:
        """Add the tokens of one more step."""
        if tokens is not None:
            self._tokens += tokens
            self._counted = True

    def report(
        self,
        *,
        step: int,
        loss: float,
        grad_norm: float | None,
        lr: float | None,
        trained_s: float,
        extra: Mapping[str, Any] | None,
    ) -> None:
        """Print one line; `trained_s` is the time spent in steps so far."""
        seconds = trained_s - self._since
        if self._counted and seconds > 0:
            self.tokens_per_s = self._tokens / seconds
        self._tokens, self._since = 0.0, trained_s
        self._write(
            format_line(
                step=step, loss=loss, grad_norm=grad_norm, lr=lr, tokens_per_s=self.tokens_per_s, extra=extra or {}
            )
        )


def format_line(
    *,
    step: int,
    loss: float,
    grad_norm: float | None,
    lr: float | None,
    tokens_per_s: float | None,
    extra: Mapping[str, Any],
) -> str:
    """Format the standard fields first, as the metric definitions expect them.

    Nine digits restore a float32 bit for bit.
    """
    words = [f"rerail step={step} loss={loss:.9g}"]
    if grad_norm is not None:
        words.append(f"grad_norm={grad_norm:.6g}")
    if lr is not None:
        words.append(f"lr={lr:.6g}")
    if tokens_per_s is not None:
        words.append(f"tokens_per_s={tokens_per_s:.0f}")
    # CloudWatch takes no NaN, hence the flag.
    words.append(f"nonfinite={int(not (math.isfinite(loss) and (grad_norm is None or math.isfinite(grad_norm))))}")
    words += [f"{_sanitize(name)}={_format_value(value)}" for name, value in extra.items() if name not in STANDARD]
    return " ".join(words)


@lru_cache(maxsize=1000)
def _sanitize(name: str) -> str:
    return UNSAFE_CHARACTERS.sub("_", str(name))


def _format_value(value: Any) -> str:
    try:
        return f"{float(value):.6g}"
    except (TypeError, ValueError, OverflowError):
        return UNSAFE_CHARACTERS.sub("_", str(value))


def _print(text: str) -> None:
    print(text, flush=True)
