"""What a metric's regular expression makes of numbers as training scripts print them."""

import re

# A loss that has become small, in Python's own words.
SMALL = "9.1e-05"
ENDS = (" ", "", ",", "\n", ", ", "|")


def find_group(expression: str) -> tuple[str, str]:
    """The first capturing group's inside, and the whole from its opening parenthesis on; "" where there is none."""
    depth, begin, in_class, position = 0, -1, False, 0
    while position < len(expression):
        character = expression[position]
        if character == "\\":
            position += 2
            continue
        if in_class:
            in_class = character != "]"
        elif character == "[":
            in_class = True
            # A closing bracket that comes first stands for itself.
            position += len(re.match(r"\[\^?\]?", expression[position:])[0]) - 1  # type: ignore[index]
        elif character == "(":
            if begin < 0 and (expression[position + 1 : position + 2] != "?" or _is_named(expression, position)):
                begin, depth = position, 0
            depth += begin >= 0
        elif character == ")" and begin >= 0:
            depth -= 1
            if not depth:
                return expression[begin + 1 : position], expression[begin:]
        position += 1
    return "", ""


def _is_named(expression: str, position: int) -> bool:
    return expression.startswith("(?P<", position)


def read(expression: str, number: str) -> str | None:
    """What the expression makes of a number where it expects one; None where it then finds nothing."""
    inside, rest = find_group(expression)
    if not rest:
        return None
    try:
        for end in ENDS:
            if found := re.match(rest, f"{number}{end}"):
                return str(found[1])
        return number if re.fullmatch(f"(?:{inside})", number) else None
    except (re.error, IndexError):
        return None
