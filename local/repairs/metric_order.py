"""Return the datapoints of GetMetricData newest first, unless asked otherwise.

MiniStack ignores ScanBy and always answers oldest first. AWS answers newest first (TimestampDescending) by default, so
a reader that relies on either order is found out only with this.
"""

from contextvars import ContextVar
from typing import Any

from ministack.services import cloudwatch

Answer = tuple[int, dict[str, str], bytes]
_oldest_first: ContextVar[bool] = ContextVar("oldest_first", default=True)


def apply() -> None:
    stock = cloudwatch._get_metric_data

    def get_metric_data(params: Any, request: dict[str, Any], is_cbor: bool, is_json: bool = False) -> Answer:
        asked = request.get("ScanBy") if is_cbor or is_json else cloudwatch._p(params, "ScanBy")
        token = _oldest_first.set(asked == "TimestampAscending")
        try:
            answer: Answer = stock(params, request, is_cbor, is_json)
            return answer
        finally:
            _oldest_first.reset(token)

    cloudwatch._get_metric_data = get_metric_data
    cloudwatch._cbor_ok = _ordered(cloudwatch._cbor_ok)
    cloudwatch._json_ok = _ordered(cloudwatch._json_ok)


def _ordered(stock: Any) -> Any:
    def ok(data: dict[str, Any]) -> Any:
        if not _oldest_first.get():
            for result in data["MetricDataResults"]:
                result["Timestamps"] = result["Timestamps"][::-1]
                result["Values"] = result["Values"][::-1]
        return stock(data)

    return ok
