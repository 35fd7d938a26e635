"""Report why a function could not be imported.

MiniStack reports only the text of the exception: for a missing `Cause.INFRASTRUCTURE` it is "Worker init failed:
INFRASTRUCTURE", without a place. AWS reports the exception's type and logs its traceback.
"""

from ministack.core import lambda_runtime

# In the script that every Python worker runs; the other answer with this shape is for an invocation, and has a trace.
BARE = '_real_stdout.write(json.dumps({"status": "error", "error": str(e)}) + "\\n")'
TRACED = BARE.replace("str(e)", "traceback.format_exc()")


def apply() -> None:
    script = lambda_runtime._PYTHON_WORKER_SCRIPT
    assert script.count(BARE) == 1
    lambda_runtime._PYTHON_WORKER_SCRIPT = script.replace(BARE, TRACED)
