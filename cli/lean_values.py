"""The values of a command line without Pydantic, which Typer imports to convert each of them, None and text included.

Most commands are called with flags, names and defaults, which are already what is wanted."""

from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any

from typer._click.exceptions import NoSuchOption
from typer._coercion import RuntimeParam, TypeDescriptor, build_runtime_param
from typer.core import TyperCommand, TyperGroup

IS_LOCAL = ContextVar("IS_LOCAL", default=False)


@dataclass(frozen=True)
class Lean(RuntimeParam):
    """Take a value as it is where Typer would return it unchanged; have Typer convert any other."""

    descriptor: TypeDescriptor

    def _coerce_value(self, value: Any, param: Any, ctx: Any) -> Any:
        is_text = type(value) is str and self.annotation is str and self.parameter_info.parser is None
        is_default = type(value) is self.annotation and value == param.default and type(value) in (int, float)
        if is_text or is_default:
            return value
        return build_runtime_param(self.descriptor).coerce(value, param, ctx)


class LeanCommand(TyperCommand):
    """A command whose parameters load Pydantic only when a value has to be converted."""

    def get_params(self, ctx: Any) -> Any:
        """Return the parameters, --help among them."""
        return _leaned(super().get_params(ctx))

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Parse the words; an unknown option may be one of the script that the command starts."""
        try:
            return super().parse_args(ctx, args)
        except NoSuchOption as error:
            if any(parameter.name == "arguments" for parameter in self.params):
                error.message += f" (if it is the script's own, it comes after --: `SCRIPT -- {error.option_name}`)"
            raise

    def invoke(self, ctx: Any) -> Any:
        """Run the command; with --local, the commands that it prints have that option too."""
        IS_LOCAL.set(bool(ctx.params.get("local")))
        return super().invoke(ctx)


class LeanGroup(TyperGroup):
    """Commands under one name, whose own parameters load Pydantic only when a value has to be converted."""

    def get_params(self, ctx: Any) -> Any:
        """Return the parameters, --help among them."""
        return _leaned(super().get_params(ctx))


def _leaned(parameters: Any) -> Any:
    for parameter in parameters:
        descriptor = parameter.type_descriptor
        parameter._runtime_param = Lean(descriptor.parameter_info, descriptor.annotation, descriptor)
    return parameters
