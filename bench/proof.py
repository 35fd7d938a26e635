"""Every proof, one after the other, and docs/proof.md from what they found.

    python -m bench.proof [NAME ...] [--quick]
    python -m bench.proof --page

Each proof is a program of its own that leaves its evidence in a file; the page is written from these files alone, so
that one proof can be made again without the others."""

import argparse
import shlex
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.console import Console

from bench.evidence import ROOT, Evidence, Sheet, read, section, sheet_as_markdown

RECORDED = ROOT / "bench" / "recorded" / "proof"
PAGE = ROOT / "docs" / "proof.md"
INTRODUCTION = """# Proof: faults, attacks, scale, speed and cost, measured

<!-- Written by `make proof` from bench/recorded/proof; what you change here is lost. -->

What Rerail promises, put to the test by programs that you can run yourself, without an AWS account:

    make proof                                   # everything below, written into this page ({minutes} minutes)
    .venv/bin/python -m bench.proof fuzz speed   # only these
    .venv/bin/python -m bench.proof --quick      # a small version of each, written nowhere

Times are ratios of things measured side by side in one run; seconds are there for orientation. A goal that is missed
and a point that did not hold are said in the table and named below. What no program of this page can show is said in
[limits](limits.md): none of it ran on real AWS."""


@dataclass(frozen=True, slots=True)
class Proof:
    """A program that leaves evidence: `minutes` on two cores, `small` the options of a version that takes a few."""

    name: str
    title: str
    minutes: int
    small: tuple[str, ...] = ()
    module: str = ""
    full: tuple[str, ...] = ()

    def command(self, *, quick: bool) -> list[str]:
        """What is run, but for the file of its evidence."""
        options = self.small if quick else self.full
        return ["python", "-m", f"bench.{self.module or self.name}", *options]


PROOFS = (
    Proof("crashes", "Every AWS call of a recovery, broken in every way", 60, ("--every", "100")),
    Proof("chaos", "Nights in a hostile world", 8, ("--nights", "1", "--hours", "4")),
    Proof("fuzz", "A million bad inputs", 12, ("--inputs", "500")),
    Proof("threats", "Threats, each with its test", 2),
    Proof("permissions", "Permissions, beside the calls that were made", 6),
    Proof("scale", "Ten thousand runs, a thousand deaths", 17, ("--runs", "10", "--jobs", "20")),
    Proof("speed", "Speed, beside the floor", 5, ("--starts", "2", "--deaths", "4", "--handshakes", "2")),
    Proof("cost", "What it costs, beside other designs", 5),
    Proof("soak", "The loop closed on real learning", 15, ("--scenario", "crash", "--scenario", "rank-killed")),
)


def page(found: Mapping[str, tuple[Evidence, dict[str, Any]]], proofs: Sequence[Proof] = PROOFS) -> str:
    """The page: a line a proof, then what each has found. One that has not been measured yet says so."""
    rows, sections = [], []
    for proof in proofs:
        if proof.name not in found:
            rows.append((proof.title, "", "not measured yet"))
            continue
        evidence, measured = found[proof.name]
        missed = sum(not goal.met for goal in evidence.goals)
        goals = f"{len(evidence.goals) - missed} of {len(evidence.goals)}" if evidence.goals else ""
        broken = f"{len(evidence.failures)} named below" if evidence.failures else "none"
        rows.append((f"[{proof.title}](#{anchor(proof.title)})", goals, broken))
        sections.append(section(proof.title, evidence, measured, shlex.join(proof.command(quick=False))))
    summary = sheet_as_markdown(Sheet("", ("proof", "goals met", "failures"), tuple(rows)))
    introduction = INTRODUCTION.format(minutes=sum(proof.minutes for proof in proofs))
    return "\n\n".join([introduction, summary, *sections]) + "\n"


def anchor(title: str) -> str:
    """The name under which MkDocs lets a heading be found."""
    kept = "".join(letter for letter in title.lower() if letter.isalnum() or letter in " -_")
    return "-".join(kept.split())


def recorded(folder: Path = RECORDED, proofs: Sequence[Proof] = PROOFS) -> dict[str, tuple[Evidence, dict[str, Any]]]:
    """What has been found so far, by the names of the proofs."""
    files = {proof.name: folder / f"{proof.name}.json" for proof in proofs}
    return {name: read(file) for name, file in files.items() if file.exists()}


def prove(proofs: Sequence[Proof], folder: Path, console: Console, *, quick: bool) -> list[str]:
    """Run each proof, its evidence into the folder; the names of those that did not hold, or left no evidence."""
    total, done, broken = sum(proof.minutes for proof in proofs), 0, []
    folder.mkdir(parents=True, exist_ok=True)
    for number, proof in enumerate(proofs, 1):
        console.rule(f"{number} of {len(proofs)}: {proof.title}")
        console.print(_bar(done, total), "a small version" if quick else f"this one: about {proof.minutes} minutes")
        began = time.monotonic()
        with tempfile.TemporaryDirectory() as fresh:
            left = Path(fresh) / "evidence.json"
            command = [sys.executable, *proof.command(quick=quick)[1:], "--evidence", str(left)]
            status = subprocess.run(command, cwd=ROOT).returncode
            if left.exists():  # a proof that did not hold says why in its evidence
                shutil.copyfile(left, folder / f"{proof.name}.json")
            else:
                console.print(f"{proof.name} left no evidence", style="red")
            if status or not left.exists():
                broken.append(proof.name)
        done += proof.minutes
        console.print(f"{proof.name}: {(time.monotonic() - began) / 60:.1f} minutes", highlight=False)
    return broken


def _bar(done: int, total: int) -> str:
    full = round(40 * done / total)
    return f"{'━' * full}{'─' * (40 - full)} {100 * done // total} % of all;"


def main(arguments: Sequence[str] | None = None) -> int:
    known = {proof.name: proof for proof in PROOFS}
    parser = argparse.ArgumentParser(prog="python -m bench.proof", description=__doc__)
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"only these of {', '.join(known)}")
    parser.add_argument("--quick", action="store_true", help="a small version of each, into .local/proof")
    parser.add_argument("--page", action="store_true", help="run nothing: write the page from what is recorded")
    options = parser.parse_args(arguments)
    if unknown := sorted({*options.names} - {*known}):
        parser.error(f"there is no proof {', '.join(unknown)}; there are {', '.join(known)}")
    console, folder = Console(), ROOT / ".local" / "proof" if options.quick else RECORDED
    chosen = [known[name] for name in options.names] or list(PROOFS)
    broken = [] if options.page else prove(chosen, folder, console, quick=options.quick)
    if not options.quick:
        PAGE.write_text(page(recorded()), encoding="utf-8")
        console.print(f"written: {PAGE.relative_to(ROOT)}")
    if broken:
        console.print(f"did not hold: {', '.join(broken)}")
    return 1 if broken else 0


if __name__ == "__main__":
    sys.exit(main())
