"""Send requests to S3 with the credentials of the job; boto3 would take longer to import than the job trains."""

import http.client
import os
from urllib.parse import urlencode

from botocore.auth import S3SigV4Auth
from botocore.awsrequest import AWSRequest
from botocore.credentials import Credentials

KEY = Credentials(os.environ["AWS_ACCESS_KEY_ID"], os.environ["AWS_SECRET_ACCESS_KEY"])
ENDPOINT = os.environ["AWS_ENDPOINT_URL"]
REGION = os.environ.get("AWS_REGION") or os.environ.get("AWS_DEFAULT_REGION") or "us-east-1"


def send(verb: str, bucket: str, key: str, body: bytes | None = None, **query: str) -> tuple[int, bytes, str]:
    """Return the status, the content and the ETag of the answer; raise an error if S3 refuses the request."""
    place = f"/{bucket}/{key}" + (f"?{urlencode(query)}" if query else "")
    request = AWSRequest(verb, f"{ENDPOINT}{place}", data=body or b"")
    S3SigV4Auth(KEY, "s3", REGION).add_auth(request)
    connection = http.client.HTTPConnection(ENDPOINT.removeprefix("http://"), timeout=10)
    connection.request(verb, place, body, dict(request.headers.items()))
    answer = connection.getresponse()
    content = answer.read()
    connection.close()
    if answer.status not in (200, 204, 404):
        raise RuntimeError(f"{verb} {place}: {answer.status} {content[:300]!r}")
    return answer.status, content, answer.headers.get("ETag", "")
