"""Lambda function: the page behind the link of a proposal. Its form sends an operator's command to the bus."""

from typing import Any
from urllib.parse import parse_qsl

from loading import loaded

# isort: split

from aws_lambda_powertools.event_handler import APIGatewayHttpResolver, Response

from observability import logger, metrics, traced
from rerail.notices.answer_links import PATH
from rerail.notices.answer_pages import HEADERS
from rerail.notices.answering import Page
from wiring import clients
from wiring.answer import make_answering

app = APIGatewayHttpResolver()
# A form has some hundred characters.
MAX_BODY = 4_000


@app.get(PATH)
def show() -> Response[str]:
    """Show the proposal with its form; this changes nothing."""
    return _respond(make_answering().show(app.current_event.query_string_parameters))


@app.post(PATH)
def send() -> Response[str]:
    """Send the answer of the form."""
    try:
        body = app.current_event.decoded_body or ""
    except ValueError:  # bytes that are no text, or no base64: anybody may send them
        body = ""
    return _respond(make_answering().answer(dict(parse_qsl(body)) if len(body) <= MAX_BODY else {}))


@logger.inject_lambda_context(clear_state=True)
@metrics.log_metrics
@traced
def handler(event: dict[str, Any], context: Any) -> dict[str, Any]:
    return app.resolve(event, context)


def _respond(page: Page) -> Response[str]:
    metrics.add_metric(name="Answers", unit="Count", value=1 if page.sent else 0)
    logger.info("responded", extra={"status": page.status, "sent": page.sent})
    return Response(page.status, content_type="text/html; charset=utf-8", body=page.html, headers=dict(HEADERS))


loaded(make_answering, clients("kms", "dynamodb", "events"))
