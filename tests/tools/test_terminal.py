"""The terminal pictures: what was recorded of a fleet and of a demo is still read and drawn by this version."""

import gzip

from cli.fleet import FleetStatus
from cli.status import make_picture
from rerail.model.codec import loads
from tools.terminal import DEMO, FLEET, RUNS, _drawn


def test_the_recorded_fleet_is_drawn_in_its_width():
    """All its runs, who needs somebody first; no font is fetched from elsewhere."""
    fleet = loads(FleetStatus, gzip.decompress(FLEET.read_bytes()).decode())
    assert {row.run.id for row in fleet.rows} == set(RUNS)
    assert [bool(row.todo) for row in fleet.rows][:3] == [True, True, False]
    svg = _drawn("rerail status", make_picture(fleet, fleet.rows, width=118), width=118)
    assert "supervisor" in svg and "http" not in svg.replace("http://www.w3.org", "").replace(
        "https://www.textualize.io", ""
    )


def test_the_recorded_demo_is_a_picture():
    svg = gzip.decompress(DEMO.read_bytes()).decode()
    assert svg.startswith("<svg") and "demo-crash-a002" in svg
