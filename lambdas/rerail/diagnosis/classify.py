"""Answers why a training job died, from the words it left behind: FailureReason, a log tail or an operator's note."""

import hashlib
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass

from rerail.diagnosis.symptoms import FALLBACKS, LOOSE, RULES, WRAPPERS, SymptomRule
from rerail.model.causes import Cause

HEAD, TAIL, EVIDENCE = 4_000, 12_000, 200  # characters: a huge log costs no more than a small one


@dataclass(frozen=True, slots=True)
class Diagnosis:
    """What killed the job; `fingerprint` is equal for the same root error on other ranks, hosts and days."""

    cause: Cause
    evidence: str
    rule: str
    fingerprint: str
    step: int | None = None
    exit_code: int | None = None


_SIGNALS: Mapping[int, tuple[Cause, str]] = {
    4: (Cause.USER_CODE, "sigill"),
    6: (Cause.UNKNOWN, "sigabrt"),  # a watchdog, a C++ assertion and glibc all end so: without words it proves nothing
    7: (Cause.OOM, "sigbus"),  # a full /dev/shm
    8: (Cause.USER_CODE, "sigfpe"),
    9: (Cause.UNKNOWN, "sigkill"),  # the kernel's memory killer does so, but so does everybody else
    11: (Cause.USER_CODE, "sigsegv"),
    15: (Cause.INFRASTRUCTURE, "sigterm"),  # asked from outside to go
}
_EXITS: Mapping[int, tuple[Cause, str]] = {
    16: (Cause.HARDWARE, "megatron-rerun-elsewhere"),  # "same wrong result twice here, try this step on other GPUs"
    17: (Cause.DIVERGED, "megatron-result-invalid"),
} | dict.fromkeys((1, 2, 126, 127), (Cause.USER_CODE, "exit-status"))

# Words that are printed with every failure of a kind, whatever its cause, and lines that are only chatter.
_BOILERPLATE = re.compile(
    r'Command "[^"]{0,2000}"?|\b(?:[\w.]+: )?Error (?:for|training)\b[^:]{0,200}: (?:Failed\.? )?Reason: '
    r"|Due to the asynchronous nature of CUDA kernels[^.]{0,200}\.?|To avoid (?:data inconsistency|this)[^.]{0,200}\.?"
    r"|might run on corrupted/incomplete data|CUDA kernel errors might be[^.]{0,200}\.?"
    r"|Compile with `?TORCH_USE_CUDA_DSA[^.]{0,100}\.?|\(run with NCCL_DEBUG=INFO[^)]{0,60}\)"
    r"|It can be also caused by unexpected exit of a remote peer[^.]{0,200}\.?"
    r"|\b(?:TORCH_)?NCCL_(?:ASYNC|BLOCKING|HEARTBEAT|ENABLE)\w+"
    # What somebody says it was not: "stuck without any CUDA error", "not because it is out of memory".
    r"|\b(?:without|no) (?:any |an? )?(?:\w+ )?(?:errors?|exceptions?|tracebacks?|warnings?|OOMs?)\b"
    r"|(?:\bnot|n't) (?:because|due to|caused by)\b[^.;,]{0,60}|\bnothing to do with\b[^.;,]{0,40}"
    r"|(?:\b(?:is|was|are|were|it's) not|(?:is|was|are|were)n't) (?:an? |the )?(?:\w+ ){1,3}?(?:issue|problem|fault)\b"
    r"|\b(?:memory|disk|space|network|bandwidth)(?: usage)? (?:is|was|are) (?!not\b)(?:\w+ )?"
    r"(?:enough|sufficient|fine|ok|normal)\b",
    re.IGNORECASE,
)
_CHATTER = re.compile(
    r"NCCL INFO|\[W[ :].{0,80}errno: 97|(?:User|Future|Deprecation|Runtime)Warning|OMP_NUM_THREADS"
    r"|Sending process \d+ closing signal|leaked semaphore|\b[Rr]etrying in\b|will retry|Attempted loss scale"
    r"|[Gg]radient overflow\. Skipping"
)
_EXIT_CODE = re.compile(r"exit[ _-]?(?:code|status)\"?\s{0,2}[:=]?\s{0,2}\(?(-?\d{1,4})\b", re.IGNORECASE)
_SIGNAL = re.compile(r"\bsignal:? \(?(\d{1,2})\b|Signals\.SIG\w{3,4}: (\d{1,2})", re.IGNORECASE)

_STRUCTURED = re.compile(r'\{\s{0,3}"rerail"')
_FIELD = re.compile(r'"(cause|error|step|exit_code)"\s{0,3}:\s{0,3}(?:"((?:[^"\\]|\\.)*+)|(-?\d{1,15}))')

# Applied in this order to make two reports of one error equal.
_VOLATILE: tuple[tuple[re.Pattern[str], str], ...] = (
    (re.compile(r",? exit code: -?\d+\W*$", re.IGNORECASE), ""),
    (re.compile(r"\b(?:s3|https?|gs|file|tcp)://[^\s\"']+|(?:/[\w.+@=~-]+){2,}/?"), "<path>"),
    (re.compile(r"0x[0-9a-f]+|\b[0-9a-f]{8,}(?:-[0-9a-f]{4,})*\b", re.IGNORECASE), "#"),
    (re.compile(r"[-+]?\d+(?:[.,:e+-]+\d+)*"), "#"),
    (re.compile(r"# ?(?:[KMGTP]i?B|bytes|ms|us|s|milliseconds|seconds|minutes|hours|%)(?![A-Za-z])"), "#"),
    (re.compile(r"\[#(?:, ?#)*\]"), "[#]"),
)


def diagnose(text: str, *, exit_code: int | None = None, secondary_status: str | None = None) -> Diagnosis:
    """Says what killed a job. Never raises, whatever the text; `exit_code` outranks a number found in the text."""
    if secondary_status in ("MaxRuntimeExceeded", "MaxWaitTimeExceeded"):
        rule = "max-runtime" if secondary_status == "MaxRuntimeExceeded" else "max-wait"
        return _diagnosis(Cause.UNKNOWN, rule, f"{secondary_status}: a limit was reached", None, exit_code)
    text = text if len(text) <= HEAD + TAIL else f"{text[:HEAD]}\n{text[-TAIL:]}"
    report = _structured(text)
    if report is not None:
        return _diagnose_report(text, report, exit_code)
    return _diagnose_text(text, exit_code if exit_code is not None else _find_exit_code(text))


def _diagnose_text(text: str, exit_code: int | None) -> Diagnosis:
    lines = _lines(text)
    found = _first_match(RULES + FALLBACKS, lines)
    if found is not None:
        rule, evidence, root = found
        return _diagnosis(rule.cause, rule.name, evidence, None, exit_code, root=root)
    by_exit = _EXITS.get(exit_code or 0) or _SIGNALS.get(_signal(exit_code))
    wrapper = _first_match(WRAPPERS, lines)
    if by_exit is not None and (wrapper is None or by_exit[1] != "exit-status"):
        return _diagnosis(*by_exit, f"exit code {exit_code}", None, exit_code, root="")
    last = wrapper or _first_match(LOOSE, lines)
    if last is not None:
        rule, evidence, root = last
        return _diagnosis(rule.cause, rule.name, evidence, None, exit_code, root=root)
    return _diagnosis(Cause.UNKNOWN, "no-rule" if lines else "empty", " ".join(lines), None, exit_code)


def _diagnose_report(text: str, report: Mapping[str, object], exit_code: int | None) -> Diagnosis:
    """Believes the training program's own report, unless it shrugs or blames itself while its words say otherwise."""
    error = str(report.get("error") or "")
    step, reported_exit = _whole(report.get("step")), _whole(report.get("exit_code"))
    if exit_code is None:
        exit_code = reported_exit if reported_exit is not None else _find_exit_code(text)
    word = str(report.get("cause") or "unknown")
    cause = Cause(word) if word in list(Cause) else Cause.UNKNOWN
    if cause in (Cause.UNKNOWN, Cause.USER_CODE):
        last_lines = report.get("last_lines")
        tail = "\n".join(str(line) for line in last_lines) if isinstance(last_lines, list) else ""
        found = _first_match(RULES, _lines(error)) or _first_match(RULES, _lines(tail))
        if found is None and cause is Cause.UNKNOWN:
            found = _first_match(FALLBACKS, _lines(error))
        if found is not None and (cause is Cause.UNKNOWN or found[0].firm):
            rule, evidence, root = found
            return _diagnosis(rule.cause, rule.name, evidence, step, exit_code, root=root)
    by_exit = _EXITS.get(exit_code or 0) or _SIGNALS.get(_signal(exit_code))
    if cause is Cause.UNKNOWN and by_exit is not None and by_exit[1] != "exit-status":
        return _diagnosis(*by_exit, error or f"exit code {exit_code}", step, exit_code, root="")
    return _diagnosis(cause, "reported", error or f"the training program reported {cause}", step, exit_code)


def _structured(text: str) -> Mapping[str, object] | None:
    """The failure file inside a FailureReason, as far as SageMaker's 1,024 characters let it through."""
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


def _whole(value: object) -> int | None:
    if isinstance(value, int) and not isinstance(value, bool):
        return value
    return int(value) if isinstance(value, str) and re.fullmatch(r"-?[0-9]{1,15}", value) else None


def _lines(text: str) -> list[str]:
    """Lines, whitespace normalised, without boilerplate; chatter goes too unless there is nothing else."""
    lines = [" ".join(line.split()) for line in re.split(r"[\r\n]+|\\n", _BOILERPLATE.sub(" ", text))]
    spoken = [line for line in lines if line and not _CHATTER.search(line)]
    return spoken or [line for line in lines if line]


def _first_match(rules: tuple[SymptomRule, ...], lines: list[str]) -> tuple[SymptomRule, str, str] | None:
    """The first rule that matches, the words that decided, and the root error from its first decisive word on."""
    joined = " ".join(lines)
    for rule in rules:
        match = rule.search(joined)
        if match is not None:
            begin, end = _line_around(lines, match.start())
            first = begin if match.end() - begin <= EVIDENCE else max(begin, match.start() - 40)
            return rule, joined[first : max(end, match.end())], joined[match.start() : end]
    return None


def _line_around(lines: list[str], position: int) -> tuple[int, int]:
    begin = 0
    for line in lines:
        if position <= begin + len(line):
            return begin, begin + len(line)
        begin += len(line) + 1
    return 0, begin


def _find_exit_code(text: str) -> int | None:
    """The exit code that tells most: of several ranks', neither 1 nor the SIGTERM that torchrun sent the others."""
    codes = [int(code) for code in _EXIT_CODE.findall(text)] + [-int(a or b) for a, b in _SIGNAL.findall(text)]
    codes = [code for code in codes if code]
    return next((code for code in codes if code not in (1, -15, 143)), codes[-1] if codes else None)


def _signal(exit_code: int | None) -> int:
    if exit_code is None:
        return 0
    return -exit_code if exit_code < 0 else exit_code - 128


def _diagnosis(
    cause: Cause, rule: str, evidence: str, step: int | None, exit_code: int | None, *, root: str | None = None
) -> Diagnosis:
    evidence = " ".join(evidence.split())[:EVIDENCE]
    return Diagnosis(cause, evidence, rule, _fingerprint(rule, evidence if root is None else root), step, exit_code)


def _fingerprint(rule: str, root: str) -> str:
    for pattern, stand_in in _VOLATILE:
        root = pattern.sub(stand_in, root[:2_000])
    return hashlib.sha256(f"{rule}\n{root.strip()[:120]}".encode(errors="replace")).hexdigest()[:12]
