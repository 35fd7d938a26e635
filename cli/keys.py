"""What each command's `--json` prints: the keys that other programs may rely on, for the reference and its test.

A key that stands here stays, with this meaning; new ones may come beside it. Times are ISO 8601 with their offset,
money is in dollars, durations are in seconds unless they are a policy's (text, such as "30m"); what is not known is
null. Errors are text on stderr (`error: ...`, `to do: ...`) with exit status 2, with `--json` too: stdout stays empty.
"""

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class Printed:
    """What a command prints: how many of what, and the keys of one; those that are `sparse` are left out where there
    is nothing to say."""

    shape: str
    keys: Mapping[str, str] = field(default_factory=dict)
    sparse: frozenset[str] = frozenset()


# Of each command, or of several with the same keys: what is printed, then a key on each line, with ? if it is sparse.
# A line that is indented further continues the one above.
TEXT = """
demo: one object, in the file that is named; - is stdout
    scenario  the fault
    run  the run
    state  its state at the end
    attempts  its jobs, with status, cause and steps
    incidents  what happened, and how fast it was detected and recovered from
    checkpoints  what it has saved
    findings  the detectors' findings
    reference_max_abs_loss_difference  the greatest difference from the loss of the reference run
submit: one object
    run  the run
    state?  how it ended, of a run that was followed
    why?  why it ended so
    attempts?  the names of its jobs, oldest first
    decisions?  every decision's reason, oldest first
    downloaded?  the files that were downloaded, with --download
    job  the first job's name
    request  what SageMaker was sent
follow: one object
    run  the run
    state  how it ended, of a run that was followed
    why  why it ended so
    attempts?  the names of its jobs, oldest first
    decisions?  every decision's reason, oldest first
    downloaded?  the files that were downloaded, with --download
chain: one object
    chain  the chain
    complete  whether all of its tasks are
    tasks  each task's run, what was done about it (skip: complete; start, follow, wait, held, failed or blocked),
        why, the tasks before it, and the S3 address of each artifact
wait: one object
    run  the run
    reached  whether it has come to what was waited for
    state  its state, null for a job that is not a run yet
    attempts  how many jobs it has had
    job  its newest job
diagnose: one object a line
    id  the text's id, null for a lone text
    cause  infrastructure, hardware, capacity, user_code, data, damaged_checkpoint, oom, hang, diverged or unknown
    retry  whether the same job may get further when it is relaunched
    evidence  the line that tells
    rank  the rank that failed first, or null
    ranks  the same as a list; of a hang, the ranks that the others wait for
metrics: a list of objects
    Name  the metric
    Regex  its expression
backtest: one object
    policy  the policy that judged
    logs  how many logs were read
    rows  how many rows they have
    seconds  how long it took
    findings  kind of finding to level to count
    by_log  the findings of each log that has any
    score  recall and precision where the logs are labelled, else null
simulate: one object, in the file that is named; - is stdout: a list of objects for each group of rows
    ways:GPUS  a row for each way of looking after a run on so many GPUs
    SWEEP  a row for each value
status: one object
    place  the deployment
    at  when this was
    paused  whether Rerail is paused for the account; null: not known
    supervisor  how the supervisor itself is
    counts  state to how many runs are in it
    unread  runs whose records another version has written
    runs  a row for each run
show: one object
    headline  what there is to say in one sentence
    happened  what has happened
    did  what Rerail did
    todo  what is left to people, a list of sentences
    commands  the commands for it
    runbook  the page that says more, or null
    account  goodput (of the run, and of the last 24 hours), badput by kind, dollars, mean MTTD and MTTR
    budgets  cause to the failures that it can still afford
    incidents  each with mttd_s, mttr_s, lost_steps and dollars (of machine time without progress)
    run  the run's record as it is stored
    timeline  every decision with its reason
search: a list of objects
    job  the job
    run  the run of a relaunched job, else null
    status  SageMaker's status
    created  when it was created
    seconds  how long it has trained, null if it has not
    machines  the instance type
    metrics  the last value of each metric
    arguments  the script's own hyperparameters, as SageMaker keeps them
    tags  its tags
    reason  why it failed, else null
logs: one object a line
    at  when it was printed
    run  the run
    attempt  the attempt's number
    job  the job
    host  the machine, such as algo-1
    text  the line
checkpoints: one object
    run  the run
    where  the S3 folder
    resume_from  folder and step of what a relaunch would resume from; null: from the beginning
    checkpoints  newest first: folder, step, attempt, health, bytes, whether it is whole, and more
    copies  of files that are overwritten in place, newest first: file, step, where, and more
    downloaded  the files that were fetched with --download, else null
report: one object
    run  the run
    policy  its policy
    state  its state
    headline  what there is to say in one sentence
    happened  what has happened
    did?  what Rerail did
    todo?  what is left to people
    commands?  the commands for it
    attempts?  its jobs
    cases?  its incidents with their evidence
    timeline  every decision with its reason
    costs?  what it has cost, by what for
drill: one object
    run  the run
    proven  whether it can be restarted
    why  why, or why not
    jobs  the jobs before and after
    from_step  the step that was restarted from
    forced  whether that was saved for the drill
    steps_compared  how many steps' losses were compared
    largest_difference  the greatest difference of one step's losses
    share  that, as a share of the loss
    at_step  where that was
    tolerance  the share that is allowed
    lost_steps  steps that were trained twice
    mttr_s  seconds from the stop to the first new step
runbook: one object
    name  the runbook
    text  its text as Markdown
adopt: one object
    job  the job
    verb  what was asked
    who  your name on this machine, as the timeline keeps it
    event  the event's id on the bus
hold, release, stop, restart, save: one object
    run  the run
    verb  what was asked
    who  your name on this machine, as the timeline keeps it
    why  the reason that was given
    event  the event's id on the bus
rollback: one object
    run  the run
    verb  what was asked
    who  your name on this machine, as the timeline keeps it
    why  the reason that was given
    event  the event's id on the bus
    step  the step to go back to
approve, deny: one object
    run  the run
    verb  what was asked
    who  your name on this machine, as the timeline keeps it
    why  the reason that was given
    event  the event's id on the bus
    proposal  the proposal that was answered
pause, resume: one object
    place  the deployment
    paused  whether Rerail is paused for the account now
doctor: one object
    place  the deployment
    verdict  the worst: ok, warn, broken, or unknown where nothing could be told
    checks  each question's verdict, said, remedy, name, and what it is about (account, or a job)
acceptance: one object
    schema  the version of this format, which docs/acceptance.schema.json describes
    kind  rerail acceptance
    id  the acceptance, with which its jobs' names began
    region  the region
    clock_scale  1 in an account; the local AWS runs so many times as fast
    began_at  when it began
    made_at  when it ended
    policy  the policy of its runs
    image  the training image
    interrupted  whether it was interrupted
    checks  each assumption's id, text, what was expected and seen, verdict and evidence
    measurements  median, largest value and count of each duration in seconds; null: not seen
tensorboard: one object
    run  the run
    logdir  the folder with a sub-folder for each attempt, or for each run
    source  events: the jobs' own event files; metrics: their metric lines, or CloudWatch
    url  where TensorBoard listens; null with --logdir-only
    attempts  number, job, folder, how many files and how many points of each
    others  run, source and attempts of each further run
policy check: one object
    files  file, name, problems, warnings and how many values are given, of each
policy list: one object
    policies  name, mode, how file and deployment stand, the fields that differ, and a problem of each
policy show: one object
    name  the policy
    source  the file or the deployment that it was read from
    fields  dotted name to value, default, and whether they differ
deploy: one object
    account  the account's number
    region  the region
    stack  the stack's name
    action  created, updated, unchanged or planned
    permissions  what is added and removed
    resources  what changes
    outputs  the stack's outputs
destroy: one object
    account  the account's number
    region  the region
    stack  the stack's name
    action  destroyed
    kept  what stays: logical to physical name
    open_runs  the runs that were open
local up: one object
    endpoint  where it listens
    pid  its process
    scale  how many times as fast its clocks run
    outputs  the stack's outputs
local break: one object
    run  the run
    job  the job that was broken
    fault  what was done to it
local down: one object
    ended  true
"""


def _read(text: str) -> Iterator[tuple[str, Printed]]:
    whole = re.sub(r"\n {8}", " ", text)
    for names, shape, rows in re.findall(r"^(\S[^:\n]*): (.*)\n((?: {4}.*\n)*)", whole, re.MULTILINE):
        keys = dict(row.strip().split("  ", 1) for row in rows.splitlines())
        sparse = frozenset(key.rstrip("?") for key in keys if key.endswith("?"))
        printed = Printed(shape, {key.rstrip("?"): meaning for key, meaning in keys.items()}, sparse)
        yield from ((name, printed) for name in names.split(", "))


KEYS: Mapping[str, Printed] = dict(_read(TEXT))
