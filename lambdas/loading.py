"""How a function is loaded: no search for garbage while it is imported, and ready to act before its first event.

Import this before anything large. Nothing that is imported becomes garbage, and searching for it again and again took a
sixth of a cold start. Lambda gives a whole core while a function is loaded, and afterwards as much of one as its memory
buys: what the first event is going to need is made before it comes.
"""

import gc
import os
from collections.abc import Callable

gc.disable()


def loaded(*makers: Callable[[], object]) -> None:
    """Call last in a handler's module: make these things, in Lambda only, and search for garbage from now on in what is
    made from now on."""
    if "AWS_LAMBDA_FUNCTION_NAME" in os.environ:
        for make in makers:
            make()
    gc.freeze()
    gc.enable()
