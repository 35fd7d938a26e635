"""Measure how finely a log prints its losses: differences below that are rounding, not noise."""

from dataclasses import dataclass

ROWS = 32
# A log with more decimals than this prints what it computed, and rounding does not matter.
FULL_PRECISION = 9


@dataclass(slots=True)
class Resolution:
    """The most decimals of the present and of the previous group of rows."""

    decimals: int = 0
    previous: int = 0
    rows: int = 0

    def read(self, loss: float) -> float:
        """Return the smallest difference that the log shows; 0.0 if it prints all digits."""
        text = repr(loss)
        decimals = _count_decimals(text) if len(text) < FULL_PRECISION + 2 else FULL_PRECISION + 1
        self.decimals = max(self.decimals, decimals)
        known = max(self.decimals, self.previous)
        self.rows += 1
        if self.rows == ROWS:
            self.previous, self.decimals, self.rows = self.decimals, 0, 0
        return 0.0 if known > FULL_PRECISION else float(10**-known)

    def copy(self) -> "Resolution":
        """Return a copy."""
        return Resolution(self.decimals, self.previous, self.rows)


def _count_decimals(text: str) -> int:
    mantissa, _, exponent = text.partition("e")
    _, _, fraction = mantissa.partition(".")
    return max(0, (0 if fraction == "0" else len(fraction)) - int(exponent or 0))
