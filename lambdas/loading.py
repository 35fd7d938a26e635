"""Speed up cold starts: no garbage collection during imports, and clients made before the first event.

Import this module before anything large. Imported modules never become garbage, and collecting took a sixth of a cold
start. Lambda grants a full core during initialization, and later only a share that depends on the memory size. What the
first event needs is therefore made during initialization.
"""

import gc
import os
from collections.abc import Callable

gc.disable()


def loaded(*makers: Callable[[], object]) -> None:
    """Call the makers (in Lambda only), then enable garbage collection for objects made from now on.

    Call this last in a handler's module."""
    if "AWS_LAMBDA_FUNCTION_NAME" in os.environ:
        for make in makers:
            make()
    gc.freeze()
    gc.enable()
