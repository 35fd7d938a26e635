"""What others know to be wrong with code, packages and secrets: python -m bench.audit [--only NAME] [--evidence FILE]

`packages`: known vulnerabilities in all that is installed here, asked of PyPI by pip-audit. `code`: bandit over all
that is not a test (`[tool.bandit]` in pyproject.toml says what it does not look for, and why). `secrets`: everything
that git ever kept (`bench.secret_scan`). `licences`: of what is shipped. `policies`: each permission of the template as
AWS's service authorization reference knows it (`bench.reference`).

What cannot be asked without the internet is said in yellow and fails nothing; whatever else is found fails."""

import argparse
import json
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from bench import sbom, secret_scan
from bench.evidence import Evidence, Failure, Sheet, finish

ROOT = Path(__file__).resolve().parent.parent
PROGRAMS = ("agent", "app.py", "bench", "cli", "container", "lambdas", "local", "stacks")
ANSWERS_WITHIN_S = 90
# Vulnerabilities that do not concern us, by their id: why.
BEARABLE: dict[str, str] = {}
# Licences that what is shipped may have, as packages declare them.
FREE = frozenset(
    {"MIT", "MIT-0", "Apache-2.0", "Apache Software License", "BSD License", "BSD-2-Clause", "BSD-3-Clause", "PSF-2.0"}
    | {"0BSD", "Zlib", "CC0-1.0"}
)
# Others, and why they are borne.
BORNE = {"LGPL-3.0-or-later": "pygal, unchanged and replaceable, in a layer of its own"}


@dataclass(frozen=True, slots=True)
class Found:
    """What one audit has to say: how much it looked at, what is wrong, and what it could not ask."""

    looked_at: str
    wrong: tuple[str, ...] = ()
    unasked: str = ""


def packages() -> Found:
    """Known vulnerabilities of what is installed."""
    words = ["--skip-editable", "--progress-spinner", "off", "--timeout", "10", "--format", "json"]
    for id in BEARABLE:
        words += ["--ignore-vuln", id]
    command = [sys.executable, "-m", "pip_audit", *words]
    try:
        run = subprocess.run(command, capture_output=True, text=True, timeout=ANSWERS_WITHIN_S)
    except subprocess.TimeoutExpired:
        return Found("none", unasked=f"PyPI did not answer within {ANSWERS_WITHIN_S} s")
    return told_by_pip_audit(run.stdout, run.stderr)


def told_by_pip_audit(answer: str, errors: str) -> Found:
    """Its JSON; where there is none, nobody could be asked."""
    try:
        told = json.loads(answer)["dependencies"]
    except (ValueError, KeyError):
        return Found("none", unasked=(errors.strip().splitlines() or ["pip-audit said nothing"])[-1][:200])
    # Ours are not on PyPI, and a build of PyTorch for one device goes by a version that PyPI does not know.
    skipped = [each["name"] for each in told if "skip_reason" in each]
    asked = [each for each in told if "skip_reason" not in each]
    wrong = [
        f"{each['name']} {each['version']}: {hole['id']}, mended in {', '.join(hole['fix_versions']) or 'no version'}"
        for each in asked
        for hole in each["vulns"]
    ]
    few = ", ".join(skipped[:5]) + (", ..." if len(skipped) > 5 else "")
    unasked = f"the package index knows no advisories of {len(skipped)} of {len(told)} packages ({few})"
    return Found(f"{len(asked)} packages", tuple(wrong), unasked if skipped else "")


def code() -> Found:
    """Bandit's findings that nobody has answered for."""
    words = ["-c", "pyproject.toml", "-r", *PROGRAMS, "-f", "json", "-q"]
    run = subprocess.run([sys.executable, "-m", "bandit", *words], cwd=ROOT, capture_output=True, text=True)
    told = json.loads(run.stdout)
    wrong = [
        f"{each['filename']}:{each['line_number']}: {each['test_id']}: {each['issue_text']}" for each in told["results"]
    ]
    wrong += [f"{each['filename']}: {each['reason']}" for each in told["errors"]]
    lines, answered = told["metrics"]["_totals"]["loc"], told["metrics"]["_totals"]["skipped_tests"]
    return Found(f"{lines:,} lines, {answered} of them with a reason why bandit errs", tuple(wrong))


def secrets() -> Found:
    """Secrets that nobody knows to be none."""
    found = [f"{each.path}:{each.line}: {each.kind} ({each.digest})" for each in secret_scan.scan()]
    return Found("this tree and all that git keeps", tuple(found))


def licences() -> Found:
    """Of what is put into Lambda and into the image."""
    everything, wrong, count = sbom.environment(), [], 0
    for each in sbom.shipped():
        if not each.requires:
            continue
        for component, licence in sbom.licences(sbom.bill_of(each, everything)).items():
            count += 1
            parts = licence.replace(" AND ", " or ").split(" or ")
            if not all(part in FREE or part in BORNE for part in parts):
                wrong.append(f"{component} in the {each.name}: {licence or 'no licence'}")
    return Found(f"{count} packages that are shipped", tuple(wrong))


def policies() -> Found:
    """Permissions that AWS would not know, or would take otherwise."""
    from bench.grants import Granted
    from bench.reference import objections
    from cli.place import SYNTHESES
    from local import deploy
    from local.emulator import ACCOUNT, REGION

    assembly = deploy.synthesize(ROOT, SYNTHESES)
    template: Mapping[str, Any] = json.loads((assembly / "Rerail.template.json").read_text(encoding="utf-8"))
    grants = Granted(template, account=ACCOUNT, region=REGION, names={}).grants
    wrong = [f"{grant.who}: {grant.action} on {grant.on}: {word}" for grant in grants for word in objections(grant)]
    return Found(f"{len(grants)} permissions", tuple(wrong))


AUDITS: Mapping[str, Callable[[], Found]] = {
    "code": code,
    "secrets": secrets,
    "policies": policies,
    "licences": licences,
    "packages": packages,
}


def evidence(found: Mapping[str, Found]) -> Evidence:
    """All of it, as every proof tells what it found."""
    rows = tuple(
        (name, each.looked_at, str(len(each.wrong)), each.unasked or "nothing") for name, each in found.items()
    )
    sheet = Sheet("Audits", ("audit", "looked at", "found", "could not be asked"), rows, words=4)
    failures = [
        Failure(f"{name}: {what}", "neither mended nor answered for") for name in found for what in found[name].wrong
    ]
    reasons = {**BEARABLE, **BORNE}
    known = "; ".join(f"{what}: {why}" for what, why in reasons.items())
    notes = (
        f"Borne with a reason: {known}. Finds of the secret scan that are none: {len(secret_scan.KNOWN)}, by digest.",
    )
    claim = "No known vulnerability, no secret, no unanswered finding, no permission that AWS does not know."
    return Evidence(claim, (sheet,), notes=notes, failures=tuple(failures))


def main(arguments: Sequence[str] | None = None) -> int:
    """Look, and say what was found."""
    parser = argparse.ArgumentParser(prog="python -m bench.audit", description=__doc__.partition("\n")[0])
    parser.add_argument("--only", choices=AUDITS, action="append", help="this audit alone (may be repeated)")
    parser.add_argument("--evidence", type=Path, help="write what was found to this file of JSON")
    options = parser.parse_args(arguments)
    console, found = Console(), {}
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, console=console, transient=True) as progress:
        chosen = options.only or list(AUDITS)
        task = progress.add_task("", total=len(chosen))
        for name in chosen:
            progress.update(task, description=name)
            found[name] = AUDITS[name]()
            progress.advance(task)
    for name, each in found.items():
        if each.unasked:
            console.print(
                f"not asked: {name}: {each.unasked}", style="yellow", markup=False, highlight=False, soft_wrap=True
            )
    return finish(evidence(found), options.evidence, console)


if __name__ == "__main__":
    sys.exit(main())
