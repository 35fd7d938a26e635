"""Build what the `answer` function needs."""

from functools import cache

from rerail.aws.dynamodb import DynamoRuns
from rerail.aws.eventbridge import EventBus
from rerail.aws.signing_key import SigningKey
from rerail.notices.answering import Answering
from settings import AnswerSettings
from wiring import now


@cache
def make_answering() -> Answering:
    """Return the pages over the account's runs."""
    settings = AnswerSettings.from_environment()
    runs, key = DynamoRuns(settings.table), SigningKey(settings.answer_key)
    return Answering(runs.load, key.has_signed, EventBus(settings.bus), now)
