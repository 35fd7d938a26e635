"""The Lambda layer with the libraries of the report function."""

from constructs import Construct

from stacks.parts.python_layer import PythonLayer

PACKAGES = ("jinja2", "markdown-it-py", "pygal")


class ReportLayer(PythonLayer):
    """The libraries that draw incident reports."""

    def __init__(self, scope: Construct, id: str) -> None:
        super().__init__(scope, id, packages=PACKAGES, description="Rerail: what incident reports are drawn with")
