"""The GPUs that a run has failed on: which of them the next job must not start on, and what to tell AWS about one.

SageMaker chooses the machines, and may give a run the same one again. The agent's init compares the GPUs of each
machine with those of the failed attempts before it starts the script. A machine that is refused costs a start, so
that after `MAX_RETURNS` of them the run trains on what it gets.
"""

from rerail.model.run import Attempt, Run

MAX_RETURNS = 2
# The newest that a launch names: a variable of a job has 512 characters.
MAX_NAMED = 10


def list_refused(run: Run) -> tuple[str, ...]:
    """Return the GPUs that the current attempt must not start on, each as `attempt:UUID`; none after MAX_RETURNS."""
    failed = [attempt for attempt in run.attempts if attempt.gpu]
    return tuple(f"{a.number}:{_uuid(a)}" for a in failed[-MAX_NAMED:]) if _count_returns(run) < MAX_RETURNS else ()


def was_refused(run: Run) -> bool:
    """Return whether init may have refused the current attempt's GPU: at most MAX_RETURNS attempts of a run."""
    return bool(_list_earlier(run, run.current)) and _count_returns(run) <= MAX_RETURNS


def describe_return(run: Run) -> str:
    """Return in which attempts the GPU of the current one has failed before, in words; "" if in none."""
    earlier = _list_earlier(run, run.current)
    return f"{_uuid(run.current)} failed in {_name(earlier)} too" if earlier else ""


def format_case(run: Run, attempt: Attempt) -> str:
    """Return what to tell AWS about the GPU that an attempt failed on; "" if none is named."""
    if not attempt.gpu:
        return ""
    earlier = _list_earlier(run, attempt)
    jobs = ", ".join(a.job_name for a in (*earlier, attempt))
    ended = f" at {attempt.ended_at:%Y-%m-%d %H:%M:%S} UTC" if attempt.ended_at else ""
    again = f" It failed in {_name(earlier)} too." if earlier else ""
    return (
        f"Open a case with AWS, so that the machine is taken out of service: GPU {attempt.gpu} of an "
        f"{attempt.instance_type or 'instance'} failed{ended}.{again} Training jobs: {jobs}"
    )


def _count_returns(run: Run) -> int:
    return sum(bool(_list_earlier(run, attempt)) for attempt in run.attempts)


def _list_earlier(run: Run, attempt: Attempt) -> list[Attempt]:
    """Return the attempts before this one that failed on the same GPU."""
    return [a for a in run.attempts if a.number < attempt.number and attempt.gpu and _uuid(a) == _uuid(attempt)]


def _uuid(attempt: Attempt) -> str:
    return attempt.gpu.partition(" ")[0]


def _name(attempts: list[Attempt]) -> str:
    numbers = " and ".join(str(attempt.number) for attempt in attempts)
    return f"attempt{'s' if len(attempts) > 1 else ''} {numbers}"
