"""Find the metrics in a text log: by the format of a known framework, else by the names that it prints."""

import re
from bisect import bisect_left
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, lru_cache
from itertools import chain, groupby, pairwise
from pathlib import Path
from typing import NamedTuple

from cli.backtest.series import NAMES, NOT_TRAINING, BadInput, are_durations, find_losses, is_loss, normalize_name
from cli.text_files import read_text
from cli.training_logs.formats import BAR, FORMATS, LogFormat
from cli.training_logs.numbers import INTEGER, LONGEST, NUMBER, READ_END, WRAPPED, compile_reader, parse, read_number

# What decides is read in so many stretches of so many lines, spread over the log.
_STRETCHES, _STRETCH = 20, 200
# If fewer lines than one in _SELDOM have the word epoch, about _MOST_EPOCHS of these are read with _AROUND lines on
# each side.
_SELDOM, _AROUND, _MOST_EPOCHS = 20, 12, 100
_COLOURS = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")
_TOTAL = "<total>"
_NAMED_BAR = re.compile(r"[A-Za-z]: +[0-9]+%\|")
# Words and runs of spaces are bounded, and a name begins where its word does: a line of thousands of them must not take
# minutes.
_FIELD = re.compile(
    r"(?<![A-Za-z_])(?<![A-Za-z_][\w/.@-])(?P<name>[A-Za-z_][\w/.@-]{0,120}(?: \(?[A-Za-z][\w/.)-]{0,120}){0,4}?)"
    r"[\"']?(?: {0,40}[:=] {0,8}| {0,40}\| {1,8}| {1,40}| ?[:=]?\t|(?=\[))[\[(\"'#]? {0,8}"
    + WRAPPED
    + r"(?P<number>[-+]?(?:[0-9](?:[0-9.,]*[0-9])?(?:[eE][-+]?[0-9]+)?|\.[0-9]+|(?i:nan|inf(?:inity)?)))"
    + READ_END
    + "(?!:[0-9]{2})"  # a time, as in `45it [00:45, 1.01s/it]`
)
# A loss whose name says of which steps it is: `Loss at step 10: 0.5`, `Average loss for last 200 batches is 20.6`.
_COUNTED = re.compile(
    r"(?P<name>(?:[\w/.-]{1,40} ){0,4}?[\w/.-]{0,40}?loss(?:es)?) (?:\(|(?:after|at|during|for|in|of|on|over) )"
    r"(?:(?:all|every|first|last|past|previous|the) ){0,3}(?:(?P<unit>batch|epoch|iter|iteration|step|update) #?)?"
    r"(?P<count>[0-9]+)(?:/[0-9]+)?(?: [a-z]{1,20})?\)?(?: is| was)? ?[:=]? {0,8}"
    rf"(?:{WRAPPED}(?P<number>[-+]?[.0-9][-+.,0-9eE]*|(?i:nan|inf(?:inity)?)){READ_END})?",
    re.I,
)
# A name in other letters, which no expression is proposed for.
_FOREIGN = re.compile(r"([^\W\d_a-zA-Z]{1,40})[:：= ] {0,8}[-+]?[0-9]")
# What a logger writes before a name: a level, a module or a rank.
_PREFIX = re.compile(
    r"^(?:(?:[\w/.-]+[._]py|info|debug|warning|notice|root|_*main_*|trainer|logger"
    r"|(?:rank|worker|process|gpu|node)[-_ ]?[0-9]+)[_ ])+",
    re.I,
)
_VALIDATION_WORD = "(?:val|valid|validation|validate|validating|eval|evaluation|test|testing|dev)"
_VALIDATION = re.compile(rf"(?:^|[^a-z]){_VALIDATION_WORD}(?:[^a-z]|$)", re.I)
_EVALUATED = re.compile(rf"(?<![a-z]){_VALIDATION_WORD}[_ ]loss(?![a-z])", re.I)
_QUOTED = re.compile(
    r"([\"'])(?![^\"']{0,80}(?:step|epoch|iter|batch|sample))[^\"'{}]{1,80}\1 ?: ?(?=[-+.0-9]|nan|inf)", re.I
)
_ANCHOR, _COLOURED_ANCHOR = "(?:^|[^A-Za-z0-9_/.-])", r"(?:^|[^A-Za-z0-9_/.-]|\x1b\[[0-9;]*m)"
# The start of a line, a number or a sign: another word before the name may say that it is of something else.
_ALONE = r"(?:^|[^A-Za-z_/. \t-][ \t]+|[^A-Za-z0-9_/. \t-])"
_NUMBERS = re.compile(r"[-+]?\.?[0-9](?:[-+0-9.,:eE]*[0-9])?|(?<![^\s:=])(?i:nan|inf)(?![^\s,|;)])")
_COUNT_TO = re.compile(r"(?<![0-9./])[0-9]+/([0-9]+)(?![0-9./])")
_ANY_NUMBER = "[-+0-9.,:eE]+"  # one of them in an expression, which SageMaker limits to 500 characters
_WORD = re.compile("[A-Za-z]{2,}")
_DRAWN = re.compile("[█▉▊▋▌▍▎▏]+")
_MOST_CONTEXT, _MOST_SHAPES = 6, 4
# Without spaces, what scripts put before the line of an epoch that is the best one so far.
_MARK = re.compile(r"[^A-Za-z0-9]{1,10}(?:(?:new|best|saved?|improved){1,3}[^A-Za-z0-9]{1,10})?", re.I)
# One shape of line is read alone if it is this share of those with the metric: others may be of an evaluation.
_MAIN_SHAPE = 2 / 3
# A counter without a name, `[16500/50000]` or `| 200/ 2983 batches |`; of several in a line the last is taken.
_COUNTERS = (
    rf"\[[ \t]*{INTEGER}/[0-9]+\]",
    rf"(?:^|[ \t|,]){INTEGER}/[ \t]*[0-9]+(?:[ \t|,:]|$)",
    rf"(?:^|[ \t|,]){INTEGER}it \[",  # a progress bar without a total
)
_EPOCH_NAMES = NAMES["epoch"]
# An epoch that so many lines with a loss print is not taken as the step: more than several ranks would print it.
# A loss is passed over if another one is printed so many times as often.
_PRINTED_OFTEN = 10
_STEP_NAMES = ("global_step", "step", "iteration", "iter", *NAMES["step"])


@dataclass(frozen=True, slots=True)
class FoundMetrics:
    """The metrics of a log: an expression for each, and what to know before they are used."""

    # The framework; "" if it is none that is known.
    framework: str
    # By metric, with `<n>` and `<i>` for the number; `epoch` where the steps begin again with each.
    expressions: Mapping[str, str]
    notes: tuple[str, ...] = ()


def read_lines(file: Path) -> list[str]:
    """Return the lines of a log without colours."""
    return [strip(line) for line in read_raw_lines(file)]


def read_raw_lines(file: Path) -> list[str]:
    """Return the lines of a log; a progress bar's carriage returns end lines too.

    Of a folder that `rerail logs --save` has written, or of a job in it, read the largest log without its times.
    """
    try:
        logs = (*file.glob("*.log"), *file.glob("*/*.log")) if file.is_dir() else ()
        saved = sorted(logs, key=lambda path: path.stat().st_size)
        text = re.sub(r"(?m)^(?:-|\d{4}-\d\d-\d\dT\S+) ", "", read_text(saved[-1])) if saved else read_text(file)
    except OSError as error:
        raise BadInput(f"cannot read {file}: {error}", "give a file that can be read") from error
    # Not `splitlines`, which also ends lines at characters that CloudWatch does not end them at.
    return re.split(r"\r\n|\n|\r", text)


def strip(line: str) -> str:
    """Return a line without colours, and of a very long one its end."""
    return _COLOURS.sub("", line[-LONGEST:]) if "\x1b" in line else line[-LONGEST:]


def find_metrics(lines: Sequence[str], *, where: str, loss: str = "", coloured: bool = False) -> FoundMetrics:
    """Return the metrics of a log. `loss` names the one to take where it prints several.

    Raise BadInput if there is no loss, or several that may be meant.
    """
    looked_at = list(_choose_lines(lines))
    known = None if loss else _find_format(looked_at)
    if known and known.expressions.get("step"):
        return known
    rows = _drop_evaluations([(line, list(_find_fields(line))) for line in looked_at])
    try:
        found = _find_by_name(rows, where=where, loss=loss, coloured=coloured)
    except BadInput:
        if known:
            return known
        raise
    return known if known and "step" not in found.expressions else found


def _choose_lines(lines: Sequence[str]) -> Iterator[str]:
    if len(lines) <= _STRETCHES * _STRETCH:
        yield from lines
        return
    starts = [number * (len(lines) - _STRETCH) // (_STRETCHES - 1) for number in range(_STRETCHES)]
    stretches = [range(start, start + _STRETCH) for start in starts]
    epochs = [number for number, line in enumerate(lines) if "epoch" in line[-LONGEST:].lower()]
    if _SELDOM * len(epochs) < len(lines):
        chosen = epochs[:: 1 + len(epochs) // _MOST_EPOCHS]
        stretches += [range(max(0, number - _AROUND), min(len(lines), number + _AROUND)) for number in chosen]
    for number in sorted({number for stretch in stretches for number in stretch}):
        yield lines[number]


@cache
def _compile(expression: str) -> re.Pattern[str]:
    return compile_reader(expression)


def _find_format(lines: Sequence[str]) -> FoundMetrics | None:
    """Return what the known format reads that has the most losses and then the most steps; None if none has any."""
    best: tuple[int, int, int] = (0, 0, 0)
    found = None
    for number, log_format in enumerate(FORMATS):
        loss = _compile(log_format.loss)
        losses = [row for row, line in enumerate(lines) if loss.search(line)]
        if not losses or len(losses) < best[0]:
            continue
        step = log_format.step.replace(_TOTAL, _find_total(lines, losses)) if log_format.step else ""
        printed = [row for row, line in enumerate(lines) if _compile(step).search(line)] if step else []
        steps = len({bisect_left(losses, row) for row in printed} - {len(losses)})
        steps = steps if _PRINTED_OFTEN * steps >= len(losses) else 0  # a bar of downloads stands before few losses
        if (len(losses), steps, -number) > best:
            best, found = (len(losses), steps, -number), log_format._replace(step=step if steps else "")
    return _make_known(found, lines) if found else None


def _find_total(lines: Sequence[str], losses: Sequence[int]) -> str:
    """Return the total of the progress bar that stands before most losses; bars of evaluations have others.

    A named bar on another line than the loss counts other things, such as the shards of a save. Return "" if all bars
    are of that kind.
    """
    bar = _compile(BAR.replace(INTEGER, "[0-9]+").replace(_TOTAL, INTEGER))
    totals: Counter[str] = Counter()
    for row in losses:
        for line in reversed(lines[max(0, row - 5) : row + 1]):
            if match := bar.search(line):
                totals["" if line is not lines[row] and _NAMED_BAR.search(line) else match[1]] += 1
                break
    return max(totals, key=lambda total: (total != "", totals[total])) if totals else "[0-9]+"


def _make_known(log_format: LogFormat, lines: Sequence[str]) -> FoundMetrics:
    metrics = {name: text for name, text in log_format._asdict().items() if name not in ("name", "note") and text}
    found = {name: text for name, text in metrics.items() if any(_compile(text).search(line) for line in lines)}
    epochs = {read_number(_compile(found["epoch"]), line) for line in lines} - {None} if "epoch" in found else set()
    if len(epochs) == 1:
        del found["epoch"]  # one epoch so far: its steps are the run's
    if log_format.epoch and not epochs and "step" in found:
        step = _compile(found["step"])
        steps = [read_number(step, line) for line in lines if step.search(line)]
        if len(set(steps)) == 1 < len(steps):
            del found["step"]  # the last batch of epochs without a number, `227/227`
    return FoundMetrics(log_format.name, found, (log_format.note,) if log_format.note else ())


class _Field(NamedTuple):
    """A number with its name in a line that is not of a validation, and where name and number begin."""

    name: str
    number: str
    start: int
    number_start: int


_Rows = Sequence[tuple[str, Sequence[_Field]]]


def _find_fields(line: str) -> Iterator[_Field]:
    # A name in quotes is that of its own number alone: `"test_acc": 0.9, "loss": 0.1`.
    validation = _VALIDATION.search(_QUOTED.sub(lambda quoted: " " * len(quoted[0]), line))
    for match in _FIELD.finditer(line):
        start = match.start("name")
        if validation and validation.start() < start:
            return
        if _VALIDATION.search(match["name"].replace("_", " ")):
            continue
        counted = _COUNTED.match(line, start)
        if counted and counted.start("count") == match.start("number"):
            if counted["unit"]:
                yield _Field(counted["unit"].lower(), counted["count"], counted.start("unit"), counted.start("count"))
            if counted["number"]:
                yield _Field(_normalize(counted["name"]), counted["number"], start, counted.start("number"))
        else:
            yield _Field(_normalize(match["name"]), match["number"], start, match.start("number"))


def _drop_evaluations(rows: _Rows) -> _Rows:
    """Return the rows without the numbers of evaluations whose lines look like those of training.

    Such lines count to another total, `step 10/88 - loss: 0.3`, and begin behind a line such as `Eval begin...`.
    """
    behind, counts = Counter[str](), Counter[str]()
    is_announced, last = False, ""
    for line, found in rows:
        if any(is_loss(field.name) for field in found) and (match := _COUNT_TO.search(line)):
            total = match[1]
            if total != last:
                behind[total] += 1 if is_announced else -1
            counts[total] += 1
            is_announced, last = False, total
        elif _VALIDATION.search(line) and not _NUMBERS.search(line):
            is_announced = True
    evaluations = {total for total in counts if behind[total] > 0 and 2 * counts[total] < counts.total()}
    return [(line, () if evaluations and evaluations & {*_COUNT_TO.findall(line)} else found) for line, found in rows]


@lru_cache(maxsize=10_000)
def _normalize(name: str) -> str:
    return _PREFIX.sub("", normalize_name(name))


def _find_by_name(rows: _Rows, *, where: str, loss: str, coloured: bool) -> FoundMetrics:
    names = Counter(field.name for _, found in rows for field in found)
    chosen = _choose_names(names, rows, where=where, loss=loss)
    built = {metric: _build(name, metric, rows, chosen["loss"], coloured=coloured) for metric, name in chosen.items()}
    if (epoch := chosen.get("step", "epoch")) in _EPOCH_NAMES:
        _count_within_epochs(built, epoch, chosen["loss"], rows)
    notes = [note for metric, (_, note) in built.items() if note and metric in ("loss", "step")]
    others = sorted(name for name in names if is_loss(name) and name != chosen["loss"])
    if others:
        notes.append(f"also printed and not read: {', '.join(others[:10])}")
    return FoundMetrics("", {metric: expression for metric, (expression, _) in built.items()}, tuple(notes))


def _choose_names(names: Counter[str], rows: _Rows, *, where: str, loss: str) -> dict[str, str]:
    """Return the name under which the log prints each metric that it has."""
    chosen = {"loss": _choose_loss(names, rows, where=where, wanted=loss)}
    if step := _choose_step(names, rows, chosen["loss"]):
        chosen["step"] = step
        if step not in _EPOCH_NAMES and (epoch := _find_epoch(names, step, rows)):
            chosen["epoch"] = epoch
    for metric in ("grad_norm", "step_time_s", "step_time_ms", "tokens_per_s", "lr"):
        if name := next((alias for alias in NAMES[metric] if alias in names), ""):
            chosen[metric] = name
    speeds = [line[field.number_start :] for line, found in rows for field in found if field.name == "speed"]
    if "tokens_per_s" not in chosen and any(re.match(r"[0-9.]+ samples/s", text) for text in speeds):
        chosen["tokens_per_s"] = "speed"  # MXNet
    if not {"step_time_s", "step_time_ms"} & set(chosen):
        beside = [row for row in rows if any(field.name == chosen["loss"] for field in row[1])]
        times = [(line, field) for line, found in beside for field in found if field.name == "time"]
        if are_durations(field.number for _, field in times):
            has_ms = any(re.match("[0-9.]+ ms", line[field.number_start :]) for line, field in times)
            chosen["step_time_ms" if has_ms else "step_time_s"] = "time"
    return chosen


def _count_within_epochs(built: dict[str, tuple[str, str]], epoch: str, loss: str, rows: _Rows) -> None:
    """Replace the expression of the step by that of a counter within the epochs, where the log has one."""
    with_loss = [row for row in rows if any(field.name == loss for field in row[1])]
    epochs = _list_values(epoch, with_loss)
    counter, counts = _find_counter([line for line, _ in with_loss], epochs)
    others = [line for line, found in rows if all(field.name != loss for field in found)]
    if counter and any(_VALIDATION.search(line) and _compile(counter).search(line) for line in others):
        # Read the counter behind the epoch only: a step without a loss would count as a loss that is not finite.
        epoch_number = built["step"][0].replace(INTEGER, "[0-9]+") if "step" in built else ""
        counter = f"{epoch_number}.*{counter}" if epoch_number else ""
        counter = counter if any(_compile(counter).search(line) for line, _ in with_loss) else ""
    if "step" in built and _begin_again(counts, epochs):
        built["epoch"] = built["step"]
    if counter:
        built["step"] = counter, ""
    elif "step" in built and len(epochs) >= _PRINTED_OFTEN * sum(1 for _ in groupby(epochs)):
        built["epoch"] = built.pop("step")  # as the step, only one minute of each epoch would be evaluated


def _has_step(found: Sequence[_Field]) -> bool:
    return any(field.name in (*_STEP_NAMES, *_EPOCH_NAMES) for field in found)


def _choose_loss(names: Counter[str], rows: _Rows, *, where: str, wanted: str) -> str:
    most = max((names[name] for name in find_losses(names)), default=0)
    losses = [name for name in names if is_loss(name) and _PRINTED_OFTEN * names[name] >= most]
    listed = ", ".join(sorted(losses)[:12])
    if wanted:
        if normalize_name(wanted) in names:
            return normalize_name(wanted)
        reason = " of training steps; values of an evaluation are not read" if NOT_TRAINING.search(wanted) else ""
        choices = listed or "the names that it prints"
        raise BadInput(f"{where} prints no {wanted!r:.100}{reason}", f"give --loss one of {choices}")
    usual = [name for name in NAMES["loss"] if name in losses]
    # One that is printed seldom is of an epoch. One that repeats few values, never beside a step, is not measured.
    varied = {name: len({field.number for _, found in rows for field in found if field.name == name}) for name in usual}
    stepped = {field.name for _, found in rows if _has_step(found) for field in found}
    usual = [name for name in usual if name in stepped or _PRINTED_OFTEN * varied[name] > max(varied.values())]
    regular = [name for name in usual if 2 * names[name] >= max(names[other] for other in usual)]
    for choice in (regular[:1], find_losses(losses), losses):
        if len(choice) == 1:
            return choice[0]
        if choice:
            raise BadInput(f"{where} prints several losses: {listed}", "say which is trained on: --loss NAME")
    # One that varies beside the steps may be it; others are settings.
    fields = [field for _, found in rows if _has_step(found) for field in found] or list(chain(*(f for _, f in rows)))
    counts = Counter(field.name for field in fields if field.name not in chain(*NAMES.values()))
    varied = Counter(name for name, _ in {(field.name, field.number) for field in fields})
    often = max(counts.values(), default=0)
    beside = [name for name, count in counts.items() if 2 * count > often and (count == 1 or varied[name] > 1)]
    remedy = "give --metric loss=REGEX with a ( ) around the number"
    remedy += f", or --loss if the loss is one of {', '.join(beside[:12])}" if beside else ""
    if foreign := Counter(name for line, _ in rows for name in _FOREIGN.findall(line)):
        remedy += f". If it is one of {', '.join(list(foreign)[:12])}: --metric 'loss=NAME[:： ]+([-+.0-9eE]+)'"
    evaluated = next((match[0] for line, _ in rows if (match := _EVALUATED.search(line))), "")
    but = f", only one of an evaluation: {evaluated!r}" if evaluated else ""
    raise BadInput(f"no line of {where} has a loss with its name{but}", remedy)


def _choose_step(names: Counter[str], rows: _Rows, loss: str) -> str:
    """Return the name of the step that is printed often and falls least, "" if there is none; epochs are the last.

    One that falls often and never stands beside the loss is of a text that a model wrote: `Step 1: add them`.
    """
    seldom = names[loss] // _PRINTED_OFTEN
    beside = {field.name for _, found in rows if any(field.name == loss for field in found) for field in found}
    most_falls = seldom + max(sum(1 for _ in groupby(_list_values(name, rows))) for name in _EPOCH_NAMES)
    steps = [name for name in dict.fromkeys(_STEP_NAMES) if names[name] > seldom]  # others are settings
    for candidates in (steps, _EPOCH_NAMES):
        listed = {name: _list_values(name, rows) for name in candidates if name in names}
        # One that never changes is a setting, such as the size of a batch.
        whole = [name for name, values in listed.items() if len(set(values)) > (len(values) > 1)]
        whole = [name for name in whole if name in beside or _count_falls(listed[name]) <= most_falls]
        often = [name for name in whole if names[name] >= 0.5 * max(names[other] for other in whole)]
        if often:
            return min(often, key=lambda name: _count_falls(listed[name]))
    return ""


def _find_epoch(names: Mapping[str, int], step: str, rows: _Rows) -> str:
    """Return the name of the epochs with which the steps begin again; "" if they go on, or fall with launches alone."""
    epoch = max(_EPOCH_NAMES, key=lambda name: names[name])
    steps, epochs = _list_values(step, rows), _list_values(epoch, rows)
    # The epoch may be on a line of its own, above its steps. One with fractions, `Epoch 0.15`, has no values.
    is_printed = names[epoch] >= 0.5 * names[step] or _count_falls(steps) <= 2 * sum(1 for _ in groupby(epochs))
    return epoch if epochs and is_printed and _begin_again(steps, epochs) else ""


def _find_counter(lines: Sequence[str], epochs: Sequence[int]) -> tuple[str, Sequence[float]]:
    """Return the expression of a nameless counter in most lines, with its counts; "" without one other than epochs."""
    for expression in _COUNTERS:
        counts = [count for line in lines if (count := read_number(_compile(expression), line)) is not None]
        is_counting = len(set(counts)) > min(0.5 * len(counts), 8) and not set(counts) <= set(epochs)
        if len(counts) > 0.9 * len(lines) and is_counting:
            return expression, counts
    return "", ()


def _list_values(name: str, rows: _Rows) -> list[int]:
    """Return the whole numbers printed by this name; none if more than a few are not whole, such as settings."""
    texts = [field.number.replace(",", "") for _, found in rows for field in found if field.name == name]
    whole = [int(text) for text in texts if text.isdigit()]
    return whole if _PRINTED_OFTEN * (len(texts) - len(whole)) < len(texts) else []


def _count_falls(values: Sequence[float]) -> int:
    return sum(later < before for before, later in pairwise(values))


def _begin_again(steps: Sequence[float], epochs: Sequence[int]) -> bool:
    """Return whether the steps fall more than half as often as the epochs rise."""
    return _count_falls(steps) > 0.5 * sum(later > before for before, later in pairwise(epochs))


def _build(name: str, metric: str, rows: _Rows, loss: str, *, coloured: bool) -> tuple[str, str]:
    """Return the shortest expression that reads this name and nothing else, and a note if no expression does.

    Lines with the loss matter most: a log may count something else by the same name.
    """
    shapes: Counter[str] = Counter()
    beside_loss: Counter[str] = Counter()
    examples: dict[str, tuple[str, _Field]] = {}
    # By line: its shape before the number, and the number, "" and None without this name; whether it has the loss.
    printed: list[tuple[str, str, float | None, bool]] = []
    for line, found in rows:
        has_loss = any(field.name == loss for field in found)
        field = next((field for field in reversed(found) if field.name == name), None)
        shape = "".join(_NUMBERS.sub("0", line[: field.number_start]).split()) if field else ""
        shape = _DRAWN.sub("", shape).replace("s/it", "it/s")  # however far a progress bar is, and how slow
        printed.append((line, shape, parse(field.number) if field else None, has_loss))
        if field:
            shapes[shape] += 1
            beside_loss[shape] += has_loss
            examples.setdefault(shape, (line, field))
    common = sorted(shapes, key=lambda shape: (-beside_loss[shape], -shapes[shape]))[:_MOST_SHAPES]
    is_alone = len(shapes) > 1 and shapes[common[0]] >= _MAIN_SHAPE * shapes.total()
    launches = _find_launches(common[0], [shape for _, shape, _, _ in printed], rows, name) if is_alone else set(shapes)
    wanted = [(line, value if shape in launches else None, has) for line, shape, value, has in printed]
    place = INTEGER if metric in ("step", "epoch") else NUMBER
    anchor = _COLOURED_ANCHOR if coloured else _ANCHOR
    best = (len(wanted) + 1, 0, 0, 0, "")
    places = (_list_places(*examples[shape], anchor, place) for shape in common if shape in launches)
    for depth, read in chain.from_iterable(enumerate(expressions) for expressions in places):
        best = min(best, (*_compare(_compile(read), wanted), depth, read))
        if best[:3] == (0, 0, 0):
            break
    wrong, missed_beside, missed, _, expression = best
    if wrong:
        return expression, f"{metric}: {wrong} line(s) are read wrongly by any short expression"
    missed = missed_beside if beside_loss.total() else missed
    missed += sum(count for shape, count in shapes.items() if shape not in launches)
    is_many = missed > 0.1 * (beside_loss.total() or shapes.total())
    return expression, f"{metric}: {missed} line(s) that print it in another way are not read" if is_many else ""


def _find_launches(main: str, shapes: Sequence[str], rows: _Rows, name: str) -> set[str]:
    """Return the main shape of line with those of other launches: printed often, but never between its lines.

    Such a line has another name of the main one: a final evaluation may print the loss too. A line that is the main one
    behind a mark, such as `[NEW BEST]`, is of the same launch; one behind another word may be of another model.
    """
    first, last = shapes.index(main), len(shapes) - 1 - shapes[::-1].index(main)
    apart = set(shapes) - set(shapes[first : last + 1]) - {""}
    beside = [{field.name for field in fields} - {name} for _, fields in rows]
    counts = Counter(
        shape for shape, names in zip(shapes, beside, strict=True) if shape in apart and names & beside[first]
    )
    marked = {shape for shape in shapes if shape.endswith(main) and _MARK.fullmatch(shape.removesuffix(main))}
    return {main, *marked, *(shape for shape, count in counts.items() if count >= _PRINTED_OFTEN)}


def _compare(pattern: re.Pattern[str], wanted: Iterable[tuple[str, float | None, bool]]) -> tuple[int, int, int]:
    """Return how many lines the pattern reads wrongly, how many beside the loss it misses, and how many of all."""
    wrong = missed_beside = missed = 0
    for line, value, has_loss in wanted:
        got = read_number(pattern, line)
        if got is None:
            missed += value is not None
            missed_beside += value is not None and has_loss
        elif value is None or not (got == value or got != got and value != value):
            wrong += 1
    return wrong, missed_beside, missed


def _list_places(line: str, field: _Field, anchor: str, place: str) -> Iterator[str]:
    """Yield expressions for a number in a line; the last ones read only counts to the same total as in this line."""
    contexts = list(_list_contexts(line, field, anchor))
    yield from (f"{context}{place}" for context in contexts)
    end = field.number_start + len(field.number)
    if total := re.match("/[0-9]+", line[end:]):
        yield from (f"{context}{place}{total[0]}(?:[^0-9]|$)" for context in contexts)
    for total in _COUNT_TO.finditer(line, 0, field.start):
        yield f"/{total[1]}{_escape(line[total.end() : field.number_start])}{place}"


def _list_contexts(line: str, field: _Field, anchor: str) -> Iterator[str]:
    """Yield expressions for what stands before a number: the name, back to each number, or a word before the name."""
    before, name = line[: field.number_start], _escape(line[field.start : field.number_start])
    # A validation, which the log may not have yet, prints `valid loss`.
    yield f"{_ALONE}{name}"
    yield f"{anchor}{name}"
    # Another launch may have another logger.
    yield f"{anchor}{_escape(_PREFIX.sub('', line[field.start : field.number_start]))}"
    ends = [match.end() for match in _NUMBERS.finditer(line, 0, field.start)]
    for end in list(reversed(ends))[:_MOST_CONTEXT]:
        yield f"[0-9]{_escape(before[end:])}"
    yield f"^{_escape(before)}"
    yield f"{anchor}{_escape(before)}"  # behind a mark
    for word in dict.fromkeys(_WORD.findall(before[: field.start])):
        yield f"{anchor}{word}[^A-Za-z].*{anchor}{name}"


def _escape(text: str) -> str:
    """Return an expression for a text with any numbers in it and any number of spaces.

    Behind an opening bracket a number may be padded: `[  10/120]`, `[100/120]`.
    """
    return _ANY_NUMBER.join(_escape_part(part) for part in _NUMBERS.split(text))


def _escape_part(text: str) -> str:
    opened = text.rstrip()
    if opened.endswith(("[", "(")):
        return f"{_escape_part(opened[:-1])}{re.escape(opened[-1])}[ \\t]*"
    return re.sub(r"(?:\\ |\\\t)+", "[ \\\\t]+", re.escape(text))
