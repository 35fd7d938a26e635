"""Typer's help pages without the parts of Rich that they do not use: these are half of what a help page costs.

`typer.rich_utils` imports Rich's Markdown and its tracebacks, with parsers and highlighters behind them. Markdown is
never used here, a traceback only for a defect. Both are imported when they are used."""

import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from importlib import import_module
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec, SourceFileLoader
from importlib.util import spec_from_file_location
from pathlib import Path
from types import ModuleType
from typing import Any

import typer

HELP = "typer.rich_utils"
SELDOM = ("rich.markdown", "rich.traceback")


class Deferred(type):
    """The type of a class that stands for another, which is imported when it is first used."""

    def __call__(cls, *args: Any, **options: Any) -> Any:
        return cls._meant()(*args, **options)

    def __getattr__(cls, name: str) -> Any:
        return getattr(cls._meant(), name)

    def _meant(cls) -> Any:
        return getattr(import_module(cls.__module__), cls.__name__)


class Loader(SourceFileLoader):
    """Load a module from its file, with stand-ins for what it seldom uses."""

    def exec_module(self, module: ModuleType) -> None:
        """Run the module's code."""
        with _stand_ins():
            super().exec_module(module)


class Finder(MetaPathFinder):
    """Find Typer's module of help pages, and nothing else."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """Return how to load it, None for any other module and where it has no file of its own."""
        file = Path(typer.__file__).with_name("rich_utils.py")
        if fullname != HELP or not file.exists():
            return None
        return spec_from_file_location(fullname, file, loader=Loader(fullname, str(file)))


def install() -> None:
    """Have the help pages loaded so from now on."""
    if not any(isinstance(finder, Finder) for finder in sys.meta_path):
        sys.meta_path.insert(0, Finder())


@contextmanager
def _stand_ins() -> Iterator[None]:
    """Let these modules seem to be imported, with a class of any name; what is already imported stays as it is."""
    missing = {name: _stand_in(name) for name in SELDOM if name not in sys.modules}
    sys.modules.update(missing)
    try:
        yield
    finally:
        for name in missing:
            del sys.modules[name]


def _stand_in(name: str) -> ModuleType:
    module = ModuleType(name)

    def deferred(attribute: str) -> Deferred:
        if attribute.startswith("__"):
            raise AttributeError(attribute)
        return Deferred(attribute, (), {"__module__": name})

    vars(module)["__getattr__"] = deferred
    return module
