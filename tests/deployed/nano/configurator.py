"""Overrides the names of the script that executes it, by `--key=value` and by files; nothing else is accepted."""

import sys
from ast import literal_eval

for argument in sys.argv[1:]:
    if "=" not in argument:
        assert not argument.startswith("--")
        exec(open(argument).read())  # noqa: SIM115
        continue
    assert argument.startswith("--")
    key, _, text = argument[2:].partition("=")
    if key not in globals():
        raise ValueError(f"Unknown config key: {key}")
    try:
        value = literal_eval(text)
    except (SyntaxError, ValueError):
        value = text
    assert type(value) is type(globals()[key])
    print(f"Overriding: {key} = {value}")
    globals()[key] = value
