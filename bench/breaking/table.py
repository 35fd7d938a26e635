"""The outcomes as tables, and each that is not as it should be by its name."""

from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence

from bench.breaking.adapters import ELSEWHERE, Adapter, adapter_of, adapters
from bench.breaking.points import HUNG, KILLED, LOST, REFUSED, Findings, Outcome, Place, Point
from bench.evidence import Cell, Evidence, Failure, Goal, Sheet

CLAIM = (
    "Each AWS call that the functions make while a run lives through its recoveries is broken in every way: the "
    "function is killed before or after it, the call is not reached, hangs or loses its answer, it is throttled, "
    "denied, refused, or fails with an error that its service declares. The run ends as it would have, with exactly "
    "one live attempt at any time; nothing is lost, and no letter is left without an alarm."
)
NOTES = (
    "The template is deployed into the local AWS; the call sites are noted by a hook in the function workers while two "
    "lives are played without any fault. *With an agent*: adopted; its agent finds a loss that is no number, saves "
    "when asked, the job is stopped and rolled back; a machine dies, and it is relaunched; completed. *Without*: a "
    "machine breaks, and its warm pool is given back before the relaunch; the loss turns into no number in CloudWatch, "
    "and the run is rolled back; an operator rolls it back once more; what the script must not find is set aside. Each "
    "phase of a life is a column of its own: a site that is met in three phases is broken in each of them.",
    "A run survives if it completes with the very attempts of an undisturbed life, each created after SageMaker had "
    "ended the one before; if no process of it ever lived beside another (each holds a lock for as long as it lives); "
    "if each attempt began where an earlier one had saved, and before the trouble; if every save is still there, in "
    "its place or aside; if people were told all that they are told of an undisturbed life; and if a letter in any "
    "queue of dead letters has set off that queue's alarm.",
    "A call is broken above the SDK's own retries: what is thrown is what the function sees when these are used up. "
    "Only hanging is done below them: each try hangs for as long as the SDK reads, for one try, or for all of them "
    "until the function's own time is up and Lambda ends it. Both pass 15 times as fast as they are deployed; jobs "
    "start, and asynchronous calls are retried, 300 times as fast, the sweep goes round 60 times as fast.",
    "A life has one fault in each of its phases. Where a run does not survive them, each is played alone, and that is "
    "what counts. The errors that a service declares are dealt out to the phases in which the site occurs, and so are "
    "the four refusals where the function only reads, tells or draws.",
    "Where the refusal of a launch, or of a move, looks final, the run is held and a human is asked; the bench says go "
    "on, and the run must end as it would have. Such points are counted apart.",
)
MISSED = "its call came in this phase of an undisturbed life, and in none of those in which it was to be broken"


def evidence(found: Findings, *, left: int = 0) -> Evidence:
    """All of it; `left` are the points that were not played yet."""
    outcomes, met, known = found.outcomes, found.met, found.known
    reached = sum(outcome.reached for outcome in outcomes)
    survived = sum(_survived(outcome) for outcome in outcomes)
    share = f"{reached:,} of {len(outcomes):,}"
    goals = (
        Goal("points that are played", "all of them", f"{len(outcomes):,} of {len(outcomes) + left:,}", not left),
        Goal("points that are reached", "all of them", share, reached == len(outcomes)),
        Goal("reached points that are survived", "all of them", f"{survived:,} of {reached:,}", survived == reached),
    )
    return Evidence(
        claim=CLAIM,
        sheets=(
            _by("Points, by the way in which the call is broken", "way", outcomes, lambda point: _way(point.how)),
            _by("By function", "function", outcomes, lambda point: point.function),
            _by("By service", "service", outcomes, lambda point: point.service),
            _by("By the part of the run's life", "life, phase", outcomes, lambda p: f"{p.life}, {p.phase}"),
            _unmet(known),
            *_unreached(outcomes),
        ),
        goals=goals,
        notes=(
            *NOTES,
            *_asides(met, known),
            *(f"Once, and not when it was repeated: {each}" for each in found.passing),
        ),
        failures=tuple(_failures(found)),
    )


def _survived(outcome: Outcome) -> bool:
    return outcome.reached and not outcome.wrong


def _way(how: str) -> str:
    return how if how in (*KILLED, *LOST, *HUNG, *REFUSED) else "an error of the service's model"


def _by(title: str, name: str, outcomes: Sequence[Outcome], key: Callable[[Point], str]) -> Sheet:
    """A row a word: the sites, the points tried, reached and survived, and how."""
    counts: dict[str, Counter[str]] = {}
    sites: dict[str, set[str]] = {}
    for outcome in outcomes:
        word = key(outcome.point)
        sites.setdefault(word, set()).add(outcome.point.site)
        counts.setdefault(word, Counter()).update(
            tried=1,
            reached=int(outcome.reached),
            survived=int(_survived(outcome)),
            held=int(outcome.held),
            letters=int(bool(outcome.letters)),
        )
    columns = ("tried", "reached", "survived", "held", "letters")
    rows: list[tuple[Cell, ...]] = [
        (word, len(sites[word]), *(counts[word][each] for each in columns)) for word in sorted(counts)
    ]
    total = sum(counts.values(), Counter[str]())
    every = len({outcome.point.site for outcome in outcomes})
    rows.append(("all", every, *(total[each] for each in columns)))
    shown = (name, "call sites", "tried", "reached", "survived", "asked a human first", "left a letter, with its alarm")
    return Sheet(title, shown, tuple(rows))


def _unmet(known: Collection[str]) -> Sheet:
    unmet = sorted(adapters() - {adapter_of(site) for site in known})
    rows = tuple((str(adapter), ELSEWHERE.get(adapter, "not known")) for adapter in unmet)
    return Sheet("Calls in the source of the adapters that no life has met", ("call", "why"), rows, words=2)


def _unreached(outcomes: Sequence[Outcome]) -> Iterator[Sheet]:
    """Each of them, where there are any: whether a call comes at all in a phase may be a matter of time."""
    rows = [(str(outcome.point), MISSED) for outcome in outcomes if not outcome.reached and not outcome.wrong]
    if rows:
        yield Sheet("Points that were not reached", ("point", "why"), tuple(rows), words=2)


def _asides(met: Mapping[Place, Collection[str]], known: Collection[str]) -> Iterator[str]:
    """Sites that are met only once something else has gone wrong (a second fault is not made), or only now and then."""
    undisturbed = {site for sites in met.values() for site in sites}
    later = sorted(set(known) - undisturbed)
    if later:
        yield (
            "Met only once another call had been broken, or now and then, and not broken themselves: "
            + "; ".join(f"`{site}`" for site in later)
            + "."
        )


def _failures(found: Findings) -> Iterator[Failure]:
    for outcome in found.outcomes:
        if outcome.wrong:
            yield Failure(f"{outcome.point}: {outcome.wrong}")
    for each in found.together:
        yield Failure(f"only with several faults in one life: {each}")
    unmet: set[Adapter] = adapters() - {adapter_of(site) for site in found.known}
    for adapter in sorted(unmet - ELSEWHERE.keys()):
        yield Failure(f"{adapter} was never met")
