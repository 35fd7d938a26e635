"""The Grafana dashboard shows the metrics that Rerail publishes, as the CloudWatch dashboard does."""

import json

from rerail.messages import service_metrics
from rerail.messages.service_metrics import ServiceMetric
from tests.stacks.template import Template
from tools import grafana


def test_every_panel_asks_for_metrics_that_are_published(template: Template) -> None:
    """With the dimension that each has, and the period and statistic of the stack's own dashboard."""
    widgets = grafana.read_widgets(template.body)
    dashboard = json.loads(json.dumps(grafana.make_dashboard(widgets)))
    own = [widget for widget in widgets if "Rerail," in json.dumps(widget) or '"Rerail"' in json.dumps(widget)]
    assert len(dashboard["panels"]) == len(own) >= 20
    published = {metric.name: metric for metric in vars(service_metrics).values() if isinstance(metric, ServiceMetric)}
    for target in (target for panel in dashboard["panels"] for target in panel["targets"]):
        dimension, _, name = target["metricName"].rpartition(".")
        assert dimension == "Notices" or name in published, target["metricName"]
        if "*" in target["dimensions"].values():
            assert published[name].dimension in target["dimensions"]
