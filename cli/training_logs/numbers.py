"""One grammar of the numbers that training scripts print, for metric expressions and for reading logs.

CloudWatch takes a finite number only, so that a metric definition finds nothing where a log says nan or `1,024.5`:
no value is better than a wrong one. A log that is read here also has those. In both, a number ends where no letter,
digit or point follows, so that `9.9E-01` is read whole or not at all.
"""

import re

# Characters of a line that are looked at, its last: of a quarter of a megabyte an expression may make an hour's work.
LONGEST = 8_000
# No look-around: it is not documented which engine SageMaker uses.
FINITE = r"[-+]?(?:[0-9]+(?:\.[0-9]+)?|\.[0-9]+)(?:[eE][-+]?[0-9]+)?"
_PRINTED = r"[-+]?(?:[0-9]{1,3}(?:,[0-9]{3})+(?:\.[0-9]*)?|[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][-+]?[0-9]+)?"
NOT_FINITE = "[-+]?(?:nan|inf(?:inity)?)"
# Behind a number; a point may end a sentence, and a comma must not be one of thousands.
END = r"\.?(?:,[^0-9]|[^0-9A-Za-z_.,+-]|,?$)"
READ_END = r"(?![0-9A-Za-z_]|[.,][0-9])"
# As a tensor or a numpy scalar prints itself, and as some loggers quote it.
WRAPPED = r"(?:tensor\(|np\.float[0-9]+\()?"

NUMBER, INTEGER = "<n>", "<i>"


def write_definition(expression: str) -> str:
    """Return the expression of a metric definition, with the places of numbers filled in."""
    integer, number = f"([0-9]+)(?:\\.0+)?{END}", f"{WRAPPED}({FINITE}){END}"
    # What the expression itself writes behind a number is its end.
    return _fill(expression, integer, number, lone_integer="([0-9]+)", lone_number=f"{WRAPPED}({FINITE})")


def compile_reader(expression: str) -> re.Pattern[str]:
    """Return the pattern that reads the same place in a log, with nan, inf and separated thousands."""
    number = f"{WRAPPED}((?:{_PRINTED})|(?i:{NOT_FINITE}))"
    integer = r"([0-9]{1,3}(?:,[0-9]{3})+|[0-9]+)(?:\.0+)?"
    filled = _fill(expression, integer + READ_END, number + READ_END, lone_integer=integer, lone_number=number)
    return re.compile(filled)


def parse(text: str) -> float | None:
    """Return the number that a text is; None if it is none. Accept any case of nan and inf, and thousands."""
    if not re.fullmatch(rf"\s*(?:{_PRINTED}|(?i:{NOT_FINITE}))\s*", text):
        return None
    return float(text.replace(",", ""))


def read_number(pattern: re.Pattern[str], line: str) -> float | None:
    """Return the number of the last match in a line, as CloudWatch is taken to read it; None if there is none."""
    matches = pattern.findall(line)
    if not matches:
        return None
    return parse(matches[-1] if isinstance(matches[-1], str) else matches[-1][0])


def _fill(expression: str, integer: str, number: str, *, lone_integer: str, lone_number: str) -> str:
    for place, filled, lone in ((INTEGER, integer, lone_integer), (NUMBER, number, lone_number)):
        before, found, after = expression.partition(place)
        if found:
            expression = f"{before}{lone if after else filled}{after}"
    return expression
