"""Diagnose why a training job failed, from its FailureReason, the end of its log, or an operator's note."""

import hashlib
import json
import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import lru_cache
from typing import TypeGuard

from rerail.diagnosis.failure_lines import (
    DEVICE,
    IRRELEVANT,
    LOCAL_RANK,
    OF_PROGRAM,
    WAVE,
    FailureLines,
    cut_older_launches,
    find_failure_lines,
    find_rank,
    is_exception,
    is_wrapper,
    read_output,
)
from rerail.diagnosis.symptoms import (
    CASCADES,
    DAMAGE,
    DAMAGED_CHECKPOINT,
    FALLBACKS,
    LOOSE,
    NAN_LOSS,
    RECORDS,
    RULES,
    SERVICE,
    SETTINGS,
    TIMEOUT_WHILE_READING,
    WRAPPERS,
    SymptomRule,
)
from rerail.model.causes import Cause
from rerail.model.diagnosis import Diagnosis
from rerail.model.lazy_pattern import LazyPattern
from rerail.model.mailbox import Report
from rerail.model.redaction import redact_patterns, redact_secrets
from rerail.model.run import Job

NAMED_RULE = "policy"  # the rule of causes that a policy names
HEAD, TAIL, EVIDENCE = 4_000, 12_000, 200  # characters: bounds the cost for a large log
# A text with more lines that name no error is a log, in which ordinary words are no evidence.
MAX_NOTE_LINES = 6
FIRM_RULES = tuple(rule for rule in RULES if rule.firm)
# A rule of these found an error; any other only found that there was one.
NAMED_RULES = frozenset(rule.name for rule in (*FIRM_RULES, SETTINGS, FALLBACKS[0]) if rule.cause is not Cause.UNKNOWN)
# What these rules match may follow from an error of another rank.
_SECONDARY = ("peer-gone", "peer-failed", "collective-failed", "collective-timeout", "node-note")
# The words of an exception that may follow from a service that did not answer.
_OF_SERVICE = LazyPattern(r"load|connect|hub|http|fetch|retriev|offline|cache|reach|network|time ?out|server", re.I)
# A rule, the evidence, and the root error.
_Match = tuple[SymptomRule, str, str]

_SIGNALS: Mapping[int, tuple[Cause, str]] = {
    1: (Cause.INFRASTRUCTURE, "sighup"),  # the connection or the terminal of the launcher is gone
    4: (Cause.USER_CODE, "sigill"),
    6: (Cause.UNKNOWN, "sigabrt"),  # from watchdogs, C++ assertions and glibc: proves nothing without a message
    7: (Cause.OOM, "sigbus"),  # a full /dev/shm
    8: (Cause.USER_CODE, "sigfpe"),
    9: (Cause.UNKNOWN, "sigkill"),  # from the kernel's out-of-memory killer, but also from many others
    11: (Cause.USER_CODE, "sigsegv"),
    15: (Cause.INFRASTRUCTURE, "sigterm"),  # terminated from outside
}
# Without SIGABRT and SIGTERM, which end a process after another one's failure.
_FATAL_SIGNALS = frozenset(_SIGNALS) - {1, 6, 15}
_EXITS: Mapping[int, tuple[Cause, str]] = {
    16: (Cause.HARDWARE, "megatron-rerun-elsewhere"),  # "same wrong result twice here, try this step on other GPUs"
    17: (Cause.DIVERGED, "megatron-result-invalid"),
} | dict.fromkeys((1, 2, 126, 127), (Cause.USER_CODE, "exit-status"))
# The codes of a worker of multiprocessing are not Megatron's: XLA ends one that raised an exception with 17.
_OF_WORKER = LazyPattern(r"\bprocess \d{1,6} terminated with exit code 1[67]\b")

# Text that is printed with every failure of a kind, whatever its cause, and irrelevant lines.
_BOILERPLATE = LazyPattern(
    r'Command "[^"]{0,2000}"?|\b(?:[\w.]{1,80}: )?Error (?:for|training)\b[^:]{0,200}: (?:Failed\.? )?Reason: '
    r"|Due to the asynchronous nature of CUDA kernels[^.]{0,200}\.?|To avoid (?:data inconsistency|this)[^.]{0,200}\.?"
    r"|might run on corrupted/incomplete data|CUDA kernel errors might be[^.]{0,200}\.?"
    r"|Compile with `?TORCH_USE_CUDA_DSA[^.]{0,100}\.?|\(run with NCCL_DEBUG=(?:INFO|WARN)[^)]{0,60}\)"
    # Before the reason: what NCCL's last error is, and why a module of transformers was not imported.
    r"|(?<=NCCL error in: )\S{0,120}/(?=\w{1,40}\.\w{2,4}:\d)|invalid usage of NCCL library\.(?= Last error)"
    r"|Failed to import [\w.]{1,120} because of the following error \(look up to see its traceback\):"
    r"|It can be also caused by unexpected exit of a remote peer[^.]{0,200}\.?|called after throwing an instance of"
    r"|This is most likely caused by incorrect usages of collectives.{0,600}?\betc\."
    # A hint at what may be the reason is no proof of it.
    r"|\b(?:It(?: is|'s) possible that|(?:Possible|Potential) (?:root )?(?:causes?|reasons?)\b"
    r"|This (?:(?:might|may|could) be (?:caused by|due to)|can happen (?:if|when))) ?[^.]{0,200}\.?"
    r"|Worker unexpectedly exits with a connection\b(?: error code \d+\. End of file\.?)?"
    r"|(?:There are some potential root causes\.|Some common causes include:) .{0,400}?unexpected errors?\.?"
    r"|\(1\) the process (?:is|was) killed by .{0,20}OOM killer due to high memory usage"
    r"|\(3\) the worker (?:is )?crashed unexpectedly due to SIGSEGV or \w+ unexpected errors?|\bSolution: 1\. .{0,600}"
    # A counter of what did not happen, and the name of a logger: "number of nan iterations: 0", "INFO:uvicorn.error:".
    r"|(?-i:(?<![A-Za-z])(?:[Nn]a[Nn]s?|inf|OOMs?|ooms?|[Ee]rrors?|[Ff]ail(?:ed|ures?)|[Ss]kipped|[Cc]orrupt(?:ed)?"
    r"|[Hh]angs?|[Tt]imeouts?|ECC|crashes|retries|overflows?)(?:[ _-](?:nans?|inf|(?:iteration|step|count|error|sample"
    r"|image|record|file)s?|total)){0,4}[\"']?\s?[:=]\s{0,4}(?:0+(?:\.0*)?|[Ff]alse|None)(?=\s{0,2}(?:[,;|)}\]]|$)))"
    r"|(?<![\w.])0 (?:[\w-]+ )?(?:errors?|NaNs?|OOMs?|failures?|corrupt\w*|timeouts?|exceptions?|crashes)\b"
    r"|(?-i:\b(?:INFO|DEBUG|NOTICE|TRACE)[\]\[:| -]{1,9}[A-Za-z_][\w.]*\.(?:[Ee]rrors?|[Ee]xceptions?)\b)"
    r"|\b(?:TORCH_)?NCCL_(?:ASYNC|BLOCKING|HEARTBEAT|ENABLE)\w+"
    # What a library avoids, or says may follow, has not happened: "to avoid deadlocks", "might cause hangs".
    r"|\b(?:to (?:avoid|prevent)|(?:can|could|may|might) (?:\w+ )?(?:cause|lead to|result in)) "
    r"(?:[\w-]{1,30} ){0,4}(?:deadlocks?|hangs?|hanging|OOMs?|out[- ]of[- ]memory|timeouts?"
    r"|crash(?:es)?|errors?|overflows?|NaNs?|corruption)\b"
    # Negations: "stuck without any CUDA error", "not because it is out of memory".
    r"|\b(?:without|no) (?:any |an? )?(?:\w+ )?(?:errors?|exceptions?|tracebacks?|warnings?|OOMs?)\b"
    r"|(?:\bnot|n't) (?:because|due to|caused by)\b[^.;,]{0,60}|\bnothing to do with\b[^.;,]{0,40}"
    r"|(?:\b(?:is|was|are|were|it's) not|(?:is|was|are|were)n't) (?:an? |the )?(?:\w+ ){1,3}?(?:issue|problem|fault)\b"
    r"|\b(?:memory|disk|space|network|bandwidth)(?: usage)? (?:is|was|are) (?!not\b)(?:\w+ )?"
    r"(?:enough|sufficient|fine|ok|normal)\b",
    re.IGNORECASE,
)
_NUMBER = LazyPattern(r"\d+")
# Where a traceback reads the input, what is missing belongs to it.
_ABSENT = LazyPattern(r"FileNotFoundError\b(?!.*(?:tokeniz|vocab|config|model))", re.IGNORECASE)
_EXIT_CODE = LazyPattern(r"exit[ _-]?(?:code|status)\"?\s{0,2}[:=]?\s{0,2}['(]?(-?\d{1,4})\b", re.IGNORECASE)
_SIGNAL = LazyPattern(r"\bsignal:? \(?(\d{1,2})\b|(?<!'' died with <)Signals\.SIG\w{3,4}: (\d{1,2})", re.IGNORECASE)
# The exit codes that launchers report: DeepSpeed, torchrun, mpirun, srun, Composer, Horovod, Paddle, Lightning.
_LAUNCHER_CODE = LazyPattern(
    r"exits with return code = (-?\d{1,4})\b|\(exitcode: (-?\d{1,4})\)|\bexitcode {1,4}: (-?\d{1,4})\b"
    r"|(?m:^) {0,8}Exit code: {1,8}(-?\d{1,4})\b|\btask \d{1,6}: Exited with exit code (\d{1,3})\b"
    r"|\b(?:rank|process) \d{1,6}(?: \(PID \d{1,9}\))? exit(?:ed)? with (?:status |exit )?code (-?\d{1,4})\b"
    r"|\bContainer rank \d{1,6} status failed cmd \[.{0,2000}?\] code (-?\d{1,4})\b"
    r"|\bChild process with PID \d{1,9} terminated with code (-?\d{1,4})\b",
    re.IGNORECASE,
)
# The signals that they report: mpirun, multiprocessing, torchrun of itself, MPICH, srun, shells.
_LAUNCHER_SIGNAL = LazyPattern(
    r"\bprocess rank \d{1,6} .{1,200} exited on signal (\d{1,2})\b"
    r"|\brank \d{1,6} died from signal (\d{1,2})\b"
    r"|\bprocess \d{1,6} terminated with signal (SIG[A-Z]{3,4})\b|\b(?:Received (?=\d+ death)|got signal: )(1|15)\b"
    r"|\bEXIT STRING: .{1,40}\(signal (\d{1,2})\)|\bKILLED BY SIGNAL: (\d{1,2})\b"
    r"|(?:\btask \d{1,6}|\bline \d{1,6}): {1,4}(?:\d{1,9} )?(Killed|Segmentation fault|Bus error|Illegal instruction)\b"
    r"|(?m:^) {0,8}(Killed) {0,8}(?m:$)|\*{3} (SIG[A-Z]{3,4}) (?:\(@[0-9a-fnilx()]{1,18}\)(?:, see \S{1,40})? )?"
    r"received (?:by PID|at time=)"  # glog, Paddle, XLA
)
_SIGNAL_NAMES = {"SIGKILL": 9, "SIGSEGV": 11, "SIGBUS": 7, "SIGABRT": 6, "SIGTERM": 15, "SIGFPE": 8, "SIGILL": 4}
_SIGNAL_NAMES |= {"Killed": 9, "Segmentation fault": 11, "Bus error": 7, "Illegal instruction": 4}
# The exit codes that say little: the script's 1, and the SIGTERM that a launcher sends to the other ranks.
_CONSEQUENCES = (1, -15, 143)
_FIRST_FAILURE = "Root Cause (first observed failure)"  # torchrun

# Not between two letters or digits; many languages have no spaces between words.
_WORD_EDGE = r"(?a:(?<!\w)|(?!\w))"

_STRUCTURED = LazyPattern(r'\{\s{0,3}"rerail"')
# Characters of the evidence by which it is found in the error that a report names.
_QUOTED = 60
# A GPU as the agent and drivers name it.
_GPU = LazyPattern(
    r"\bGPU-[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}\b(?: \((?:serial \d{1,20}, )?driver [\d.]{1,20}\))?"
)
_FIELD = LazyPattern(r'"(cause|gpu|error|step|exit_code|rank)"\s{0,3}:\s{0,3}(?:"((?:[^"\\]|\\.)*+)|(-?\d{1,15}))')

# The step in an error, and the last one that Megatron or NeMo printed.
_STEP_OF_ERROR = LazyPattern(r"\b(?:step|iteration|iter)\b[ =:#]{1,3}(\d{1,12})\b", re.IGNORECASE)
_STEP = LazyPattern(r"\biteration {1,12}(\d{1,12})(?: {0,4}/ {0,12}\d+|\b(?= ?[|,:)]|$))", re.IGNORECASE | re.MULTILINE)
# A process that is killed while it loads weights has used up the host's memory.
_SHARDS = LazyPattern(r"\bLoading (?:checkpoint|pipeline|safetensors|model|weights)\b[^\r\n%]{0,60}?(\d{1,3})%")
# The operation that timed out, the progress of a rank that still reads its input, and ranks that wait for one to do so.
_OPERATION = LazyPattern(r"OpType=(\w+)")
_READING = LazyPattern(
    r"(?:\b(?:scann|prepar|cach|process|filter|index|preprocess|download|extract|generat)ing\b|\btokeniz\w+|\bMap\b"
    r"|\bdatasets?\b)[^|\r\n]{0,120}?(\d{1,3})%\|"
    r"|\b(\d{1,3})%\|[^|\r\n]{0,200}\|[^\[\r\n]{0,60}\[[\d:]{4,8}<[\d:]{4,8}, {1,2}[\d.]{1,15} ?"
    r"(?:[KMGT]?i?B|examples|files?|images?|samples?|lines?|rows|records|docs?|documents|tokens|ba)/s"
    r"|\bmain_process_first\(.{0,60}(?:data|token|process)",
    re.IGNORECASE,
)

# What a CUDA kernel asserted: the exception that follows says only that some assertion failed.
_KERNEL_ASSERTION = LazyPattern(r"\bAssertion [`'\"]([^`'\"\r\n]{1,160})[`'\"]? failed\b")

# Applied in this order to make two reports of one error equal.
_VOLATILE_PATTERNS: tuple[tuple[LazyPattern, str], ...] = (
    (LazyPattern(r",? exit code: -?\d+\W*$", re.IGNORECASE), ""),
    (LazyPattern(r"\b(?:s3|https?|gs|file|tcp)://[^\s\"']+|(?:/[\w.+@=~-]+){2,}/?"), "<path>"),
    (LazyPattern(r"0x[0-9a-f]+|\b[0-9a-f]{8,}(?:-[0-9a-f]{4,})*\b", re.IGNORECASE), "#"),
    (LazyPattern(r"[-+]?\d+(?:[.,:e+-]+\d+)*"), "#"),
    (LazyPattern(r"# ?(?:[KMGTP]i?B|bytes|ms|us|s|milliseconds|seconds|minutes|hours|%)(?![A-Za-z])"), "#"),
    (LazyPattern(r"\[#(?:, ?#)*\]"), "[#]"),
    # What follows the first sentence differs between versions and ranks.
    (LazyPattern(r"(?<=.{20})[.;] (?=[A-Z]).*"), ""),
)


def diagnose(
    text: str, *, logs: Sequence[str] = (), exit_code: int | None = None, secondary_status: str = "", hosts: int = 0
) -> Diagnosis:
    """Return the diagnosis of a failed job; never raises, whatever the text.

    `logs` are the ends of its hosts' logs. `exit_code` has priority over a number found in the text.
    `hosts` is their number, 0 where it is not known.
    """
    if secondary_status in ("MaxRuntimeExceeded", "MaxWaitTimeExceeded"):
        rule = "max-runtime" if secondary_status == "MaxRuntimeExceeded" else "max-wait"
        return _make_diagnosis(Cause.UNKNOWN, rule, f"{secondary_status}: a limit was reached", None, exit_code)
    text = text if len(text) <= HEAD + TAIL else f"{text[:HEAD]}\n{text[-TAIL:]}"
    report = _find_report(text)
    if report is not None:
        found = _diagnose_report(text, report, exit_code)
        return replace(found, gpu=_find_gpu(found, report))
    text, logs = read_output(text), [read_output(log[-4 * TAIL :]) for log in logs]
    found = _diagnose_text(text, tuple(logs), exit_code if exit_code is not None else _find_exit_code(text))
    if hosts == 1 and found.rank is None and found.cause is not Cause.HANG and found.rule not in CASCADES:
        local = LOCAL_RANK.search("\n".join((text, *logs)))
        return replace(found, rank=int(local[1])) if local else found
    return found


def _find_gpu(found: Diagnosis, report: Mapping[str, object]) -> str:
    """Return the GPU that a hardware failure's report names; "" where it names none, or several.

    What was found in the last lines only may be about another rank's GPU.
    """
    error = " ".join(str(report.get("error") or "").split())
    is_own = report.get("cause") == Cause.HARDWARE or found.evidence[:_QUOTED] in error
    if found.cause is not Cause.HARDWARE or not is_own:
        return ""
    named = [match[0] for match in _GPU.finditer(f"{report.get('gpu') or ''}\n{error}")]
    return max(named, key=len) if len({name.split()[0] for name in named}) == 1 else ""


def needs_log(reason: str, *, secondary_status: str = "") -> bool:
    """Return whether a FailureReason names no error, or is cut off before it."""
    if secondary_status in ("MaxRuntimeExceeded", "MaxWaitTimeExceeded") or _find_report(reason) is not None:
        return False
    if find_failure_lines(reason).is_cut:
        return True
    return not names_error(reason)


def names_error(text: str) -> bool:
    """Return whether the text names an error, not only that there was one."""
    return diagnose(text).rule in NAMED_RULES


def diagnose_job(job: Job) -> Diagnosis:
    """Return the diagnosis of a failed job: if possible the one made before secrets were removed."""
    return job.diagnosis or diagnose(job.failure_reason, secondary_status=job.secondary)


def diagnose_report(report: Report) -> Diagnosis:
    """Return the diagnosis of a crash that the container's init has reported."""
    return diagnose(report.evidence or report.reason)


def with_named_cause(found: Diagnosis, texts: Iterable[str], causes: Mapping[str, Cause]) -> Diagnosis:
    """Return the diagnosis with the cause of the first text of the policy that the reason or a log contains.

    A text does not begin or end within a word: "exit code: 4" is not in "exit code: 42". Spaces match any number.
    """
    if not causes:
        return found
    # The error of the failure file inside a FailureReason is also read where JSON has escaped it.
    ends = [(text, (_find_report(text[:HEAD]) or {}).get("error") or "") for text in texts]
    logs = [read_output(f"{text[:HEAD]}{text[HEAD:][-TAIL:]}\n{error}") for text, error in ends]
    for text, cause in causes.items():
        pattern = re.compile(_WORD_EDGE + r"[ \t]{1,9}".join(map(re.escape, text.split())) + _WORD_EDGE)
        for log in logs:
            if match := pattern.search(log):
                before = log[: match.end()].splitlines()[-1].removesuffix(match[0])
                after = (log[match.end() :] or "\n").splitlines()[0]
                evidence = _cut_before(before, EVIDENCE - len(match[0])) + match[0] + after
                named = _make_diagnosis(cause, NAMED_RULE, evidence, found.step, found.exit_code, root=text)
                return replace(named, rank=found.rank, limitation=found.limitation)
    return found


def with_redaction(diagnosis: Diagnosis, secrets: Sequence[str]) -> Diagnosis:
    """Return the diagnosis with the secrets removed from its evidence."""
    return replace(diagnosis, evidence=redact_secrets(diagnosis.evidence, secrets))


# A failure is diagnosed several times within a decision, and many runs may fail with one text.
@lru_cache(maxsize=16)
def _diagnose_text(text: str, logs: tuple[str, ...], exit_code: int | None) -> Diagnosis:
    """Diagnose from the lines that name an error, or else from the exit code, or else from ordinary words."""
    texts = (text, *(log[-TAIL:] for log in logs))
    lines, newest = find_failure_lines(*texts), tuple(map(cut_older_launches, texts))
    found = _find_rule(lines)
    # An older launch ended in another way; its faulty hardware may have been the first.
    if newest != texts and found and found[0].cause is not Cause.HARDWARE:
        last = _find_rule(latest := find_failure_lines(*newest))
        if last and last[0].name in NAMED_RULES and last[0].name not in CASCADES:
            texts, lines, found = newest, latest, last
    joined = "\n".join(texts)
    exited = _find_launcher_exit(joined)
    # MPICH prints a signal's bare number as the exit code.
    exit_code = exited if exited and exit_code in (None, *_CONSEQUENCES, -exited) else exit_code
    if lines.survived and (found is None or found[0].name in CASCADES):
        lines.exceptions += lines.survived
        found = _find_rule(lines)
    if found is not None and not _is_consequence(found, exited or 0, is_cut=lines.is_cut):
        return _make_match(found, texts, exit_code)
    all_lines = _split_lines(text)
    wrapper = _first_match(WRAPPERS, lines.exceptions) or _first_match(WRAPPERS, all_lines)
    by_exit = _find_cause_of_exit(exit_code, joined)
    if by_exit is not None and (wrapper is None or by_exit[1] != "exit-status"):
        rank = find_rank(texts, "")
        return _make_diagnosis(*by_exit, _quote_exit(joined, exit_code), None, exit_code, root="", rank=rank)
    read = () if _is_log(lines) else (*lines.errors, *lines.exceptions, *lines.others)
    # A failed assertion in C++ names source files and statuses, whose words do not tell what happened.
    words = [line for line in _clean_errors(read) if "Check failed" not in line]
    if last := wrapper or _first_match(LOOSE, words):
        return _make_match(last, texts, exit_code)
    rule, rank = "no-rule" if all_lines else "empty", find_rank(texts, "")
    quoted = lines.exceptions[-1:] or all_lines
    return _make_diagnosis(Cause.UNKNOWN, rule, " ".join(quoted), None, exit_code, rank=rank)


def _is_consequence(found: _Match, exited: int, *, is_cut: bool) -> bool:
    """Return whether an exit explains what the rule found: lost by the other ranks, or a traceback that is cut off."""
    rule, evidence, _ = found
    # What SIGKILL ended may also have been ended for a broken network.
    lost = {"peer-gone": _FATAL_SIGNALS} | dict.fromkeys(("fabric", "node-note"), _FATAL_SIGNALS - {9})
    is_lost = _signal_number(exited) in lost.get(rule.name, ())
    # srun cancels the step once one of its tasks has failed.
    is_ended = rule.name == "node-note" and 0 < exited <= 128 and "CANCELLED AT" in evidence
    return is_lost or is_ended or (rule is FALLBACKS[0] and is_cut and exited < 0)


def _find_cause_of_exit(exit_code: int | None, text: str = "") -> tuple[Cause, str] | None:
    """Return the cause and the rule that the exit code stands for; None where it stands for nothing."""
    if _signal_number(exit_code) == 9 and (shards := _SHARDS.findall(text)) and shards[-1] != "100":
        return Cause.OOM, "killed-while-loading"
    exit_code = 1 if exit_code in (16, 17) and _OF_WORKER.search(text) else exit_code
    return _EXITS.get(exit_code or 0) or _SIGNALS.get(_signal_number(exit_code))


def _make_match(found: _Match, texts: Sequence[str], exit_code: int | None) -> Diagnosis:
    """Return the diagnosis that a rule found, with the step and the rank that the texts name."""
    rule, evidence, root = found
    joined = "\n".join(texts)
    if rule.name == "collective-timeout":
        if (reading := list(_READING.finditer(joined))) and "100" not in reading[-1].groups():
            evidence = f"{reading[-1][0].strip()} while the clock of the others ran out: {evidence}"
            rule = TIMEOUT_WHILE_READING
        # The ranks print the lines of one timeout in any order.
        root = f"OpType={min(_OPERATION.findall(joined), default='')}" if WAVE.search(root) else root
    if "device-side assert" in root and (asserted := _KERNEL_ASSERTION.search(joined)):
        evidence = f"{asserted[0]} on the device: {evidence}"
    # A file of a server that did not answer, or a package of which pip could read no version.
    is_remote = rule.name == "missing-input" and "://" in root or "(from versions: none)" in root
    if is_remote and (lost := SERVICE.search(joined)):
        rule, evidence = SERVICE, f"{lost[0]} before {evidence}"
    rule = _decide_by_progress(rule, has_trained=_STEP_OF_ERROR.search(joined) is not None)
    steps = _STEP_OF_ERROR.findall(root)[:1] or _STEP.findall(joined)
    step = int(steps[-1]) if steps else None
    is_wave = rule.name in CASCADES and rule.name not in ("storage", "nccl-system-error")  # which fail each rank
    rank = None if rule is TIMEOUT_WHILE_READING else find_rank(texts, found[2], is_wave=is_wave, is_own=_is_own_root)
    return _make_diagnosis(rule.cause, rule.name, evidence, step, exit_code, root=root, rank=rank)


def _decide_by_progress(rule: SymptomRule, *, has_trained: bool) -> SymptomRule:
    """Return the rule, with NCCL's system error as the network's after a step: wrong settings fail before the first."""
    return replace(rule, cause=Cause.INFRASTRUCTURE) if has_trained and rule.name == "nccl-system-error" else rule


def _find_rule(lines: FailureLines) -> _Match | None:
    """Return the rule that the most telling lines match: exceptions and errors before the words around them."""
    exceptions, printed = _clean_errors(lines.exceptions), _clean_errors(lines.errors)
    named = exceptions or list(filter(is_exception, printed))
    if damage := _match_within(DAMAGE, [*named, *_clean(lines.replaced)], lines.loading):
        return damage
    found = _match_parsed(named, lines) or _match_exceptions(named, lines.reading)
    device = _first_match(RULES, list(filter(DEVICE.search, printed)))
    if _is_decisive(device) and device[0].cause is Cause.HARDWARE:
        return device
    if _is_decisive(found):
        return found
    # Nothing, or only what other ranks print: look for the root error around the exceptions.
    errors = [*named, *(line for line in printed if line not in named)]
    telling = _match_exceptions(errors, lines.reading)
    if _is_decisive(telling):
        return telling
    if named and not found and (replaced := _match_exceptions(_clean(lines.replaced))):
        return replaced
    around = _find_around(lines, errors, [*exceptions, *printed], telling)
    secondary = found or (around if around and around[0].name in _SECONDARY else None)
    roots = list(filter(_is_own_error, exceptions))
    if around is not None and around[0] is SERVICE and not any(map(_OF_SERVICE.search, roots)):
        secondary = around  # the service was reached in the end
    if roots and secondary:
        # The other ranks only lost this one, whose error no firm rule knows.
        replaced = _match_exceptions(_clean(lines.replaced))
        root = replaced if _is_decisive(replaced) else _first_match(FALLBACKS[:1], roots)
        return _first_match(RULES, roots) or root or secondary
    if lines.is_cut and (around is None or around[0] is FALLBACKS[0]):
        around = _match_exceptions(_clean(lines.replaced)) or around  # what the exception that is cut off came from
    return around or _first_match((NAN_LOSS,), _clean([*lines.others[-3:], *lines.noise[-3:]]))


def _clean_errors(lines: Iterable[str]) -> list[str]:
    return _clean(line for line in lines if not is_wrapper(line))


def _is_decisive(found: _Match | None) -> TypeGuard[_Match]:
    """Return whether the rule is firm and not about what ranks print when another one is gone."""
    return found is not None and found[0].firm and found[0].name not in CASCADES


def _find_around(lines: FailureLines, errors: list[str], raised: list[str], telling: _Match | None) -> _Match | None:
    """Return the rule that ordinary lines match, after the errors, whose rule is `telling`."""
    rest = _clean(lines.others)
    cut = [lines.raised or "Traceback (most recent call last): the exception is cut off"] if lines.is_cut else []
    if _is_log(lines):
        # Ordinary lines of a log only count where they are unmistakable.
        return telling or _first_match(FIRM_RULES, rest) or _first_match(FALLBACKS[:1], [*raised, *cut])
    rest += [] if errors or any(map(str.isalpha, "".join(rest))) else _clean(lines.noise)
    return _first_match(RULES, [*errors, *rest]) or _first_match(FALLBACKS, [*raised, *rest, *cut])


def _is_own_error(exception: str) -> bool:
    """Return whether the exception is not one that ranks raise because another one is gone."""
    found = _first_match(RULES, [exception])
    return found is None or not found[0].firm


def _is_own_root(exception: str) -> bool:
    """Return whether no rule says that the exception follows from another rank's failure."""
    found = _first_match(RULES, [exception])
    return not is_wrapper(exception) and (found is None or _is_decisive(found))


def _is_log(lines: FailureLines) -> bool:
    """Return whether the text is a part of a log rather than a sentence or an error message."""
    return len(lines.others) + len(lines.noise) > MAX_NOTE_LINES


def _match_within(rule: SymptomRule, lines: list[str], context: Collection[str]) -> _Match | None:
    """Return the rule's match of the first exception that was raised within the context, if there is one."""
    within = set(_clean(context))
    return next((found for line in lines if line in within and (found := _first_match((rule,), [line]))), None)


def _match_parsed(errors: list[str], lines: FailureLines) -> _Match | None:
    """Return the match of an exception that was raised while settings, or else the input, were being read."""
    return _match_within(SETTINGS, errors, lines.settings) or _match_within(RECORDS, errors, lines.reading)


def _match_exceptions(lines: list[str], reading: Collection[str] = ()) -> _Match | None:
    """Return the first rule that matches; the message of a KeyError and its like names no other cause.

    Exceptions of `reading` come from the input: no checkpoint is damaged.
    """
    if not lines:
        return None
    free = [line for line in lines if not OF_PROGRAM.match(line)]
    of_input = set(_clean(reading))
    absent = [line for line in lines if line in of_input and _ABSENT.match(line)]
    for rule in RULES:
        if absent and rule.name == "missing-input":
            return rule, absent[0], absent[0]
        is_of_input = rule.cause in (Cause.USER_CODE, Cause.DATA)
        tried = [line for line in free if line not in of_input] if rule.name == DAMAGED_CHECKPOINT else free
        if found := _first_match((rule,), lines if is_of_input else tried):
            return found
    return None


def _clean(lines: Iterable[str]) -> list[str]:
    """Return the lines with normalized whitespace and without boilerplate and irrelevant lines.

    Lines that differ only in numbers count once, and the newest are kept: a thousand ranks may print the same error.
    """
    unique: dict[str, str] = {}
    for line in lines:
        cleaned = " ".join(_BOILERPLATE.sub(" ", line).split())
        if cleaned and not any(pattern.search(cleaned) for pattern in (IRRELEVANT, _LAUNCHER_CODE, _LAUNCHER_SIGNAL)):
            unique.setdefault(_NUMBER.sub("#", cleaned), cleaned)
    kept: list[str] = []
    size = 0
    for line in reversed(unique.values()):
        kept.append(line)
        if (size := size + len(line)) > TAIL:
            break
    return kept[::-1]


def _diagnose_report(text: str, report: Mapping[str, object], exit_code: int | None) -> Diagnosis:
    """Diagnose from the training program's own report.

    Its cause counts, unless it is unknown, or it is user_code and a firm rule matches the report's text.
    """
    error = str(report.get("error") or "")
    step, reported_exit = _parse_int(report.get("step")), _parse_int(report.get("exit_code"))
    rank = _parse_int(report.get("rank"))
    if exit_code is None:
        exit_code = reported_exit if reported_exit is not None else _find_exit_code(text)
    word = str(report.get("cause") or "unknown")
    cause = Cause(word) if word in list(Cause) else Cause.UNKNOWN
    if cause in (Cause.UNKNOWN, Cause.USER_CODE):
        last_lines = report.get("last_lines")
        tail = "\n".join(str(line) for line in last_lines) if isinstance(last_lines, list) else ""
        found = _match_report(error, tail)
        if found is None and cause is Cause.UNKNOWN:
            found = _first_match(FALLBACKS, _split_lines(error))
        if found is not None and (cause is Cause.UNKNOWN or found[0].firm):
            rule, evidence, root = found
            rule = _decide_by_progress(rule, has_trained=bool(step) or _STEP_OF_ERROR.search(text) is not None)
            return _make_diagnosis(rule.cause, rule.name, evidence, step, exit_code, root=root, rank=rank)
    by_exit = _find_cause_of_exit(exit_code)
    if cause is Cause.UNKNOWN and by_exit is not None and by_exit[1] != "exit-status":
        return _make_diagnosis(*by_exit, error or f"exit code {exit_code}", step, exit_code, root="", rank=rank)
    # The remedy depends on which memory ran out.
    same = _match_report(error, "") if cause is Cause.OOM else None
    rule_name = same[0].name if same and same[0].cause is cause else "reported"
    error = error or f"the training program reported {cause}"
    return _make_diagnosis(cause, rule_name, error, step, exit_code, rank=rank)


def _match_report(error: str, tail: str) -> _Match | None:
    """Return the match of the reported error, or else of the program's last lines."""
    lines = find_failure_lines(tail)
    errors = _clean(re.split(r"[\r\n]+", error))
    loading = [*lines.loading, *(errors if lines.is_loading else ())]
    if matched := _match_within(DAMAGE, errors, loading) or _match_parsed(errors, lines):
        return matched
    if found := _match_exceptions(errors, lines.reading):
        return found
    found = _find_rule(lines)
    return found if found is not None and found[0] in (*RULES, DAMAGE, RECORDS, SETTINGS) else None


def _find_report(text: str) -> Mapping[str, object] | None:
    """Return the failure file inside a FailureReason, or None; SageMaker may have truncated it at 1,024 characters."""
    start = _STRUCTURED.search(text)
    if start is None:
        return None
    body = text[start.start() :]
    try:
        report, _ = json.JSONDecoder().raw_decode(body)
    except (ValueError, RecursionError):
        return {name: number or _unescape(string) for name, string, number in _FIELD.findall(body)}
    return report if isinstance(report, dict) else None


def _unescape(string: str) -> str:
    try:
        return str(json.loads(f'"{string}"'))
    except ValueError:
        return string


def _parse_int(value: object) -> int | None:
    if isinstance(value, int) and not isinstance(value, bool):
        return value if abs(value) < 10**15 else None
    return int(value) if isinstance(value, str) and re.fullmatch(r"-?[0-9]{1,15}", value) else None


def _split_lines(text: str) -> list[str]:
    """Return the lines with normalized whitespace, without boilerplate and, if others remain, irrelevant lines."""
    lines = [" ".join(line.split()) for line in re.split(r"[\r\n]+|\\n", _BOILERPLATE.sub(" ", text))]
    relevant = [line for line in lines if line and not IRRELEVANT.search(line)]
    return relevant or [line for line in lines if line]


def _first_match(rules: tuple[SymptomRule, ...], lines: list[str]) -> _Match | None:
    """Return the first rule that matches, the matched text as evidence, and the root error from the match on."""
    if not (joined := " ".join(lines)):
        return None
    for rule in rules:
        match = rule.search(joined)
        if match is not None:
            begin, end = _line_around(lines, match.start())
            most = EVIDENCE if match.end() - begin <= EVIDENCE else 40
            before = _cut_before(joined[begin : match.start()], most)
            return rule, before + joined[match.start() : max(end, match.end())], joined[match.start() : end]
    return None


def _cut_before(text: str, most: int) -> str:
    """Return the last words of a line, at most so many characters; of a secret, no part that would not look like it."""
    return text if len(text) <= most else redact_patterns(text)[-max(most, 1) :].partition(" ")[2]


def _line_around(lines: list[str], position: int) -> tuple[int, int]:
    begin = 0
    for line in lines:
        if position <= begin + len(line):
            return begin, begin + len(line)
        begin += len(line) + 1
    return 0, begin


def _find_exit_code(text: str) -> int | None:
    """Return the most specific exit code: of several ranks', not 1 or the SIGTERM that torchrun sends to the others."""
    codes = [int(code) for code in _EXIT_CODE.findall(text)] + [-int(a or b) for a, b in _SIGNAL.findall(text)]
    codes = [code for code in codes if code]
    return next((code for code in codes if code not in _CONSEQUENCES), codes[-1] if codes else None)


def _find_launcher_exit(text: str) -> int | None:
    """Return the exit code that a launcher reported; of several, the first failure's, unless it says little."""
    before, _, first = text.partition(_FIRST_FAILURE)
    codes: list[int] = []
    for part in (first, before):
        codes += [int("".join(groups)) for groups in _LAUNCHER_CODE.findall(part)]
        signals = ["".join(groups) for groups in _LAUNCHER_SIGNAL.findall(part)]
        codes += [-(_SIGNAL_NAMES.get(signal) or _parse_int(signal) or 0) for signal in signals]
    codes = [code for code in codes if code]
    return next((code for code in codes if code not in _CONSEQUENCES), codes[0] if codes else None)


def _quote_exit(text: str, exit_code: int | None) -> str:
    """Return the first line from which the exit code was read; or only the code, where the text does not name it."""
    for pattern in (_LAUNCHER_SIGNAL, _LAUNCHER_CODE, _EXIT_CODE, _SIGNAL):
        for named in pattern.finditer(text):
            word = "".join(filter(None, named.groups()))
            number = _SIGNAL_NAMES.get(word) or _parse_int(word)
            if number in (exit_code, _signal_number(exit_code)):
                begin, rest = text.rfind("\n", 0, named.start()) + 1, text[named.end() :].partition("\n")[0]
                return _cut_before(text[begin : named.start()], 40) + named[0] + rest  # not the command that it ended
    return f"exit code {exit_code}"


def _signal_number(exit_code: int | None) -> int:
    return 0 if exit_code is None else -exit_code if exit_code < 0 else exit_code - 128


def _make_diagnosis(
    cause: Cause,
    rule: str,
    evidence: str,
    step: int | None,
    exit_code: int | None,
    *,
    root: str | None = None,
    rank: int | None = None,
) -> Diagnosis:
    evidence = " ".join(evidence.split())[:EVIDENCE].encode(errors="replace").decode()  # logs take no half of a pair
    fingerprint = _make_fingerprint(rule, evidence if root is None else root)
    return Diagnosis(cause, evidence, rule, fingerprint, step, exit_code, rank=rank)


def _make_fingerprint(rule: str, root: str) -> str:
    for pattern, stand_in in _VOLATILE_PATTERNS:
        root = pattern.sub(stand_in, root[:2_000])
    return hashlib.sha256(f"{rule}\n{root.strip(' .;,')[:120]}".encode(errors="replace")).hexdigest()[:12]
