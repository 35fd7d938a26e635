"""Let the ranks of local jobs begin without torch's compiler, which takes half of a rank's start.

Every optimizer imports `torch._dynamo`. Until something else of it is asked for, as by torch.compile, a module stands
for it with the two functions that optimizers call; without the compiler neither does anything. Python imports this file
in each process of a job.
"""

import importlib
import sys
from collections.abc import Callable, Sequence
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any

NAME = "torch._dynamo"


class DeferredCompiler(ModuleType):
    """`torch._dynamo` until its compiler is needed."""

    @staticmethod
    def graph_break(message: str = "") -> None:
        """Do nothing: nothing is traced."""

    @staticmethod
    def disable(fn: Callable[..., Any] | None = None, recursive: bool = True, **options: Any) -> Callable[..., Any]:
        """Return the function, or a decorator that does: nothing would compile it."""
        return fn or (lambda decorated: decorated)

    def __getattr__(self, name: str) -> Any:
        if finder.defers:
            # The import system looks for names of its own; importing a part of the compiler asks for its path.
            if sys.modules.get(NAME) is not self or (name.startswith("__") and name != "__path__"):
                raise AttributeError(name)
            finder.defers = False
            del sys.modules[NAME]
        return getattr(importlib.import_module(NAME), name)


class DeferredImport(MetaPathFinder, Loader):
    """Imports the module that stands for the compiler."""

    defers = True

    def find_spec(self, name: str, path: Sequence[str] | None, target: ModuleType | None = None) -> ModuleSpec | None:
        # A part is imported with the whole while Python asks the parent for its path.
        is_imported_part = name.startswith(f"{NAME}.") and name in sys.modules
        return ModuleSpec(name, self) if (name == NAME and self.defers) or is_imported_part else None

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        return sys.modules.get(spec.name) or DeferredCompiler(spec.name)

    def exec_module(self, module: ModuleType) -> None:
        """Leave the module as it is."""


finder = DeferredImport()
sys.meta_path.insert(0, finder)
