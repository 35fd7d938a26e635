"""Write what the pages of docs/ quote of the code into them, between marks: `python -m tools.quotations`.

A test compares rules, checks, causes, findings and runbooks in the pages with the code. `tools/site_parts.py` writes
the fields of a policy and the sample notices when the site is built.
"""

import argparse
import inspect
import re
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, is_dataclass
from datetime import timedelta
from enum import StrEnum
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Any, get_type_hints

from rerail.decisions.in_place_restart import IN_PLACE
from rerail.decisions.launch_checks import CHECKS
from rerail.decisions.on_finding import CAUSES
from rerail.decisions.remedies import RULES
from rerail.model.causes import Cause
from rerail.model.finding import Kind
from rerail.model.policy import Policy
from rerail.model.runbooks import Runbook

ROOT = Path(__file__).parents[1]
DOCS = ROOT / "docs"
DEFAULTS = ROOT / "policies" / "default.toml"
SECTION = re.compile(r"\[(\w+)\]\s*(?:#\s*(.*))?")
FIELD = re.compile(r"(\w+)\s*=\s*(\"[^\"]*\"|\[[^\]]*\]|[^#]*?)\s*(?:#\s*(.*))?")
# What no module of its own asks: the words of the enumeration's other members.
ASKED_ELSEWHERE = {
    Kind.STRAGGLER: "Detect ranks that are slower than their peers, and name host and GPU.",
    Kind.ALARM: "Report that a CloudWatch alarm of your own on the job fired.",
    Kind.RESUME_MISMATCH: "Detect losses after a resume that differ from those after the same checkpoint before.",
}
MEANING = "## Meaning\n"
# Notices as readers get them, letter by letter, which the tests of notices keep.
SAMPLES = ROOT / "tests" / "notices" / "golden"
MAILS = {
    "A page: a run is held": "held",
    "A page: a word is needed": "approval",
    "An inform: nothing is to be done": "relaunch",
    "An all-clear": "all_clear",
}


@dataclass(slots=True)
class PolicyField:
    """One field of the default policy: its value as written, and what its comments say."""

    value: str
    comment: str


@dataclass(frozen=True, slots=True)
class Section:
    """A table of the default policy: what its own comment says, and its fields in their order."""

    comment: str
    lines: Mapping[str, PolicyField]


def default_policy() -> dict[str, Section]:
    """`policies/default.toml` with its comments, by section; "" is what stands before the first one."""
    sections = {"": Section("", {})}
    name, lines, above, last, grouped = "", dict[str, PolicyField](), list[str](), "", False
    for row in DEFAULTS.read_text(encoding="utf-8").splitlines():
        if row.startswith("#"):
            above, grouped = [*above, row.lstrip("# ").strip()], False
        elif found := SECTION.fullmatch(row.strip()):
            name, lines, above, last, grouped = found[1], {}, [], "", False
            sections[name] = Section(found[2] or "", lines)
        elif row.strip().startswith("#"):  # the comment of the line before goes on
            text = row.strip().lstrip("# ")
            if last:
                lines[last].comment = f"{lines[last].comment} {text}".strip()
            elif name:
                sections[name] = Section(f"{sections[name].comment} {text}".strip(), lines)
        elif found := FIELD.fullmatch(row.strip()):
            last = found[1]
            said = " ".join(filter(None, (*above, found[3]))) if name else found[3] or ""
            lines[last] = PolicyField(found[2], said or ("as above" if grouped else ""))
            above, grouped = [], grouped or bool(above)
            if not name:
                sections[""] = Section("", {**sections[""].lines, last: lines[last]})
                lines = dict(sections[""].lines)
        else:
            above, grouped = [], False
    return sections


def policy_fields() -> str:
    """Every field of a policy: what it takes, its default, and why it is so."""
    written, hints = default_policy(), get_type_hints(Policy)
    plain = [f.name for f in fields(Policy) if f.name != "name" and not is_dataclass(hints[f.name])]
    examples = {"prices": '"ml.p5.48xlarge" = 40.0', "causes": '"fabric manager: lane lost" = "hardware"'}
    plain = [name for name in plain if name not in examples]
    parts = ["### At the top", _table_of(Policy, written[""], plain)]
    for field in fields(Policy):
        kind = hints[field.name]
        if is_dataclass(kind):
            section = written[field.name]
            names = [f.name for f in fields(kind)]
            said = _sentence(inspect.getdoc(kind) or "") if isinstance(kind, type) else ""
            parts += [f"### [{field.name}]", "\n".join(filter(None, (said, ""))), _table_of(kind, section, names)]
    for name, example in examples.items():
        said = written[name].comment.split(":")[0]
        parts += [f"### [{name}]", _sentence(said[:1].upper() + said[1:]), f"```toml\n[{name}]\n{example}\n```"]
    return "\n\n".join(part.strip() for part in parts if part.strip())


def _table_of(kind: Any, section: Section, names: Sequence[str]) -> str:
    hints = get_type_hints(kind)
    rows = [(f"`{n}`", _takes(hints[n]), f"`{section.lines[n].value}`", section.lines[n].comment) for n in names]
    return table(("field", "takes", "default", "what for"), rows)


def _takes(kind: Any) -> str:
    if isinstance(kind, type) and issubclass(kind, StrEnum):
        return ", ".join(f"`{member.value}`" for member in kind)
    if kind is timedelta:
        return "a duration"
    return {bool: "`true`, `false`", int: "a whole number", float: "a number", str: "a text"}.get(
        kind, "a list of texts"
    )


def rules() -> str:
    """The rules over a failure, in the order in which they are asked."""
    return table(("", "rule", "what it says"), [(str(n), f"`{_name(r)}`", _doc(r)) for n, r in enumerate(RULES, 1)])


def gate() -> str:
    """The checks in front of every launch, in their order."""
    return table(("", "check", "what it asks"), [(str(n), f"`{_name(c)}`", _doc(c)) for n, c in enumerate(CHECKS, 1)])


def causes() -> str:
    """The nine causes, and what each may cost by the default policy."""
    retries = Policy().retries
    rows = []
    for cause in Cause:
        budget = retries.of(cause)
        tries = {None: "retried as long as it makes progress", 0: "none"}.get(budget, str(budget))
        tries = "a budget of time, not of tries" if cause is Cause.CAPACITY else tries
        rows.append((f"`{cause}`", tries, "yes" if cause in IN_PLACE else ""))
    return table(("cause", "failures in a row that are tried again", "may be restarted in place"), rows)


def findings() -> str:
    """Return the table of the detectors, with what each finding may lead to."""
    rows = []
    for kind in Kind:
        cause = CAUSES.get(kind)
        acts = f"stops the job, charged to `{cause}`" if cause else "notifies; the job goes on"
        rows.append((f"`{kind}`", _question(kind), acts))
    return table(("finding", "what it detects", "what may come of it"), rows)


def runbooks() -> str:
    """Each page of the runbooks with the sentence that says what it is about."""
    rows = [(f"[{_title(page)}]({page.value}.md)", meaning(page)) for page in Runbook]
    return table(("page", "what it means"), rows)


def meaning(page: Runbook) -> str:
    """The first sentence of a runbook's page; raises ValueError where the page says none."""
    text = (DOCS / "runbooks" / f"{page.value}.md").read_text(encoding="utf-8")
    _, found, rest = text.partition(MEANING)
    if not found:
        raise ValueError(f"docs/runbooks/{page.value}.md has no section {MEANING.strip()!r}")
    paragraph = " ".join(rest.strip().split("\n\n")[0].split())
    return re.split(r"(?<=[.!?]) (?=[A-Z])", paragraph)[0]


def samples() -> str:
    """Notices as they read in an e-mail, and one as PagerDuty is sent it."""
    parts = [
        f"### {title}\n\n{_fenced('{ .text .wrapped }', SAMPLES / f'{name}.txt')}" for title, name in MAILS.items()
    ]
    body = _fenced("json", SAMPLES / "held.pagerduty.json")
    return "\n\n".join([*parts, f"### The first of these as PagerDuty is sent it\n\n{body}"])


def _fenced(language: str, path: Path) -> str:
    return f"```{language}\n{path.read_text(encoding='utf-8').strip()}\n```"


def _title(page: Runbook) -> str:
    return (DOCS / "runbooks" / f"{page.value}.md").read_text(encoding="utf-8").splitlines()[0].removeprefix("# ")


def _question(kind: Kind) -> str:
    if kind in ASKED_ELSEWHERE:
        return ASKED_ELSEWHERE[kind]
    module: ModuleType = import_module(f"rerail.detection.{kind.value}")
    return _sentence((inspect.getdoc(module) or "").split("\n\n")[0])


def _name(function: Any) -> str:
    return str(function.__name__)


def _doc(function: Any) -> str:
    return _sentence(inspect.getdoc(function) or "")


def _sentence(text: str) -> str:
    words = " ".join(text.split())
    return words if not words or words[-1] in ".?!" else f"{words}."


def table(heads: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """The rows as Markdown has them; a column that is empty throughout is left out."""
    kept = [n for n in range(len(heads)) if any(row[n] for row in rows)]
    lines = [
        [heads[n] for n in kept],
        ["---"] * len(kept),
        *([row[n].replace("|", "\\|") for n in kept] for row in rows),
    ]
    return "\n".join(f"| {' | '.join(cells)} |" for cells in lines)


BLOCKS = {
    "how-it-decides.md": {"rules": rules, "gate": gate, "causes": causes},
    "detection.md": {"findings": findings},
    "runbooks/index.md": {"runbooks": runbooks},
}


def filled(page: str, blocks: Mapping[str, str]) -> str:
    """The page with each block between `<!-- name -->` and `<!-- /name -->`; raises ValueError without these marks."""
    for name, block in blocks.items():
        begin, end = f"<!-- {name} -->", f"<!-- /{name} -->"
        before, began, rest = page.partition(begin)
        _, ended, after = rest.partition(end)
        if not began or not ended:
            raise ValueError(f"the page has no marks {begin} and {end}; write them where the block belongs")
        page = f"{before}{begin}\n\n{block}\n\n{end}{after}"
    return page


def pages() -> Iterator[tuple[Path, str]]:
    """Each page with quotations, and what it should say."""
    for name, makers in BLOCKS.items():
        path = DOCS / name
        yield path, filled(path.read_text(encoding="utf-8"), {block: make() for block, make in makers.items()})


def main() -> None:
    """Write the pages, or with --check say which are not as the code has them; exit status 1 then."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--check", action="store_true", help="write nothing; name the pages that are out of date")
    check = parser.parse_args().check
    stale = [(path, text) for path, text in pages() if path.read_text(encoding="utf-8") != text]
    for path, text in stale:
        print(f"{path.relative_to(ROOT)} {'is out of date' if check else 'written'}")
        if not check:
            path.write_text(text, encoding="utf-8")
    sys.exit(1 if check and stale else 0)


if __name__ == "__main__":
    main()
