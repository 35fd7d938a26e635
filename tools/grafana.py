"""Write the stack's CloudWatch dashboard as a Grafana dashboard: `python -m tools.grafana FILE`.

Grafana reads the same metrics through its CloudWatch data source. Widgets that show the names of one deployment's
functions, queues or alarms are left out: they mean nothing in another account.
"""

import json
import re
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from cli.deploy.choices import with_example_scope
from local import deploy

ROOT = Path(__file__).resolve().parent.parent
NAMESPACE = "Rerail"
DATASOURCE = {"type": "cloudwatch", "uid": "${datasource}"}
SEARCH = re.compile(r"SEARCH\('\{Rerail,(\w+),service\} MetricName=\"(\w+)\"', '(\w+)', (\d+)\)")
# Period and statistic where a widget states none.
PERIOD_S, STATISTIC = 300, "Average"


def main(target: Path) -> None:
    """Write the dashboard into the file."""
    assembly = deploy.synthesize(ROOT, ROOT / ".local" / "assemblies", context=with_example_scope())
    template = json.loads((assembly / "Rerail.template.json").read_text())
    target.write_text(json.dumps(make_dashboard(read_widgets(template)), indent=1) + "\n", encoding="utf-8")


def read_widgets(template: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return the widgets of the template's CloudWatch dashboard, with `?` for what a deployment fills in."""
    (board,) = [part for part in template["Resources"].values() if part["Type"] == "AWS::CloudWatch::Dashboard"]
    pieces = board["Properties"]["DashboardBody"]["Fn::Join"][1]
    widgets: list[dict[str, Any]] = json.loads("".join(part if isinstance(part, str) else "?" for part in pieces))[
        "widgets"
    ]
    return widgets


def make_dashboard(widgets: list[dict[str, Any]]) -> dict[str, Any]:
    """Return a Grafana dashboard with a panel for each widget of Rerail's own metrics, at the same place."""
    panels: list[dict[str, Any]] = []
    for widget in widgets:
        targets = list(list_targets(widget))
        if not targets:
            continue
        is_number = widget["properties"].get("view") == "singleValue"
        panels.append(
            {
                "id": len(panels) + 1,
                "type": "stat" if is_number else "timeseries",
                "title": widget["properties"]["title"],
                "datasource": DATASOURCE,
                "gridPos": {"x": widget["x"], "y": widget["y"], "w": widget["width"], "h": widget["height"]},
                "targets": targets,
                "fieldConfig": {"defaults": {"min": 0, "custom": make_stacking(widget)}, "overrides": []},
            }
        )
    region = {"name": "region", "label": "Region", "type": "query", "datasource": DATASOURCE, "query": "regions()"}
    source = {"name": "datasource", "label": "Data source", "type": "datasource", "query": "cloudwatch"}
    return {
        "title": "Rerail",
        "uid": "rerail",
        "schemaVersion": 39,
        "refresh": "1m",
        "time": {"from": "now-12h", "to": "now"},
        "templating": {"list": [source, region]},
        "panels": panels,
    }


def make_stacking(widget: Mapping[str, Any]) -> dict[str, Any]:
    """Return the panel's options for stacked areas; none for lines and numbers."""
    stacked = widget["properties"].get("stacked")
    return {"stacking": {"mode": "normal"}, "fillOpacity": 30} if stacked else {}


def list_targets(widget: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    """Yield a query for each of the widget's metrics in Rerail's namespace; none if it has other metrics too."""
    metrics = [flatten(metric) for metric in widget["properties"].get("metrics", [])]
    if not all(words[:1] == [NAMESPACE] or "expression" in options for words, options in metrics):
        return
    for number, (words, options) in enumerate(metrics):
        query: dict[str, Any] = {"refId": chr(ord("A") + number), "datasource": DATASOURCE}
        query |= {"region": "$region", "namespace": NAMESPACE, "matchExact": True}
        if found := SEARCH.fullmatch(options.get("expression", "")):
            dimension, name, statistic, period = found.groups()
            query |= {"metricName": name, "dimensions": {dimension: "*", "service": "*"}}
            query |= {"statistic": statistic, "period": period, "label": f"${{PROP('Dim.{dimension}')}}"}
        else:
            _, name, *pairs = words
            query |= {"metricName": name, "dimensions": dict(zip(pairs[::2], pairs[1::2], strict=True))}
            query |= {"statistic": options.get("stat", STATISTIC), "period": str(options.get("period", PERIOD_S))}
            query["label"] = options.get("label", name)
        yield query


def flatten(metric: list[Any]) -> tuple[list[str], dict[str, Any]]:
    """Return a metric's words and its options, as CloudWatch writes them in one list."""
    options = metric[-1] if isinstance(metric[-1], dict) else {}
    return [word for word in metric if isinstance(word, str)], options


if __name__ == "__main__":
    main(Path(sys.argv[1]))
