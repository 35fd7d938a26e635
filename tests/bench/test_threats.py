"""The bench of the threat model: its table says what pytest has said, and what was not tried does not hold."""

from bench.threats import Line, evidence, results

MODEL = [
    Line("T1", "forge", "a seal", "", ("test_a", "test_b")),
    Line("T2", "listen", "TLS", "the owner", ("test_c",)),
]
REPORT = """<testsuites><testsuite>
<testcase name="test_a[x]"/><testcase name="test_a[y]"/><testcase name="test_b"/>
<testcase name="test_c"><failure message="no"/></testcase></testsuite></testsuites>"""


def test_what_passed_holds_and_what_failed_is_named(tmp_path):
    """Cases are counted by test; one that failed is a failure of its line."""
    (tmp_path / "tests.xml").write_text(REPORT)
    found = evidence(MODEL, results(tmp_path / "tests.xml"))
    (sheet,) = found.sheets
    assert [(row[0], row[4], row[5]) for row in sheet.rows] == [("T1", 3, "holds"), ("T2", 0, "1 of 1 did not pass")]
    assert [failure.what for failure in found.failures] == ["T2: test_c did not pass"]


def test_what_was_not_run_does_not_hold():
    """A test that is gone shows nothing."""
    assert [failure.what for failure in evidence(MODEL[:1], {"test_a": {"passed": 1}}).failures] == [
        "T1: test_b did not pass"
    ]
