"""One question, one answer: what was looked at, how it stands, and what to do about it."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import TypeVar

from botocore.exceptions import BotoCoreError, ClientError

from cli.trouble import explain, get_code, get_permission, is_denied, is_missing
from rerail.model.errors import RerailError

Subject = TypeVar("Subject")


class CheckStatus(StrEnum):
    """How something stands; only `broken` makes the doctor's exit status 1."""

    OK = "ok"
    WARN = "warn"
    BROKEN = "broken"
    UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True)
class Check:
    """The answer to one question, in words for people; `name` is the question's, and `about` what it was asked of."""

    verdict: CheckStatus
    said: str
    remedy: str = ""
    name: str = ""
    about: str = ""


Question = Callable[[Subject], Check | None]


def ok(said: str) -> Check:
    """As it should be."""
    return Check(CheckStatus.OK, said)


def warn(said: str, remedy: str) -> Check:
    """It works, but may be unexpected during an incident."""
    return Check(CheckStatus.WARN, said, remedy)


def broken(said: str, remedy: str) -> Check:
    """Rerail cannot do for this account or job what it is there for."""
    return Check(CheckStatus.BROKEN, said, remedy)


def unknown(said: str, remedy: str) -> Check:
    """It could not be looked at."""
    return Check(CheckStatus.UNKNOWN, said, remedy)


def ask(about: str, questions: Sequence[Question[Subject]], subject: Subject) -> Iterator[Check]:
    """The answers in the order of the questions; None says that a question does not arise. What AWS refuses to answer
    becomes `unknown`, with the permission that is lacking. Whatever files are called, an answer is one line."""
    for question in questions:
        if answer := _answer(question, subject):
            said, remedy = (" ".join(text.split()) for text in (answer.said, answer.remedy))
            yield replace(answer, said=said, remedy=remedy, name=question.__name__.replace("_", " "), about=about)


def find_worst(checks: Sequence[Check]) -> CheckStatus:
    """The worst of them; unknown only where nothing at all is known."""
    verdicts = {check.verdict for check in checks}
    for worst in (CheckStatus.BROKEN, CheckStatus.WARN, CheckStatus.OK):
        if worst in verdicts:
            return worst
    return CheckStatus.UNKNOWN


def make_unanswered(error: Exception) -> Check:
    """What AWS did not want to tell, and who could make it."""
    if is_denied(error):
        permission = get_permission(error)
        return unknown(f"cannot tell without {permission}", f"ask for {permission}, or ask someone who has it")
    what, remedy = explain(error)
    if is_missing(error):
        return broken(what, "it was deleted: deploy again, `make deploy`")
    code = get_code(error)
    return unknown(f"cannot tell: {what}" + (f" ({code})" if code and code not in what else ""), remedy)


def _answer(question: Question[Subject], subject: Subject) -> Check | None:
    try:
        return question(subject)
    except (ClientError, BotoCoreError) as error:
        return make_unanswered(error)
    except RerailError as error:
        cause = error.__cause__
        if isinstance(cause, ClientError | BotoCoreError):
            return make_unanswered(cause)
        return unknown(f"cannot tell: {error}", "fix what the message names")
