"""The deployed report: a run that was mended has a page in its bucket, and `rerail report` makes the same one here."""

import json
from pathlib import Path

import pytest

from rerail.incident_report.location import FLEET_KEY, make_page_key
from tests.deployed.jobs import Account, rerail

pytestmark = pytest.mark.slow


def wait_for_page(account: Account, key: str, text: str) -> str:
    """Return the page of this key, once it has the text."""
    s3, bucket = account.aws.client("s3"), account.aws.outputs["ReportsBucket"]

    def read() -> str | None:
        try:
            page: str = s3.get_object(Bucket=bucket, Key=key)["Body"].read().decode()
        except s3.exceptions.NoSuchKey:
            return None
        return page if text in page else None

    return account.wait(f"{text} on the page {key}", read)


def test_a_recovered_run_has_its_report_in_the_bucket_and_on_disk(
    account: Account, environment: dict[str, str], tmp_path: Path
):
    """The function draws it from the notices alone, with the incident, its last log lines and the resumed attempt."""
    name = account.submit_struck("reported", "kill")
    run = account.run_in(name, "completed")
    resumed = run.attempts[1].resumed_from_step
    s3, bucket = account.aws.client("s3"), account.aws.outputs["ReportsBucket"]
    page = wait_for_page(account, make_page_key(name), "Completed after 1 incident")
    head = s3.head_object(Bucket=bucket, Key=make_page_key(name))
    assert head["ContentType"] == "text/html; charset=utf-8"
    assert f"attempt 2 from step {resumed}" in page
    assert "exit code: 137" in page
    assert "What could not be read" not in page
    assert "<script" not in page

    made = rerail(environment, "report", name, "--local", "--out", str(tmp_path / "page.html"))
    assert made.returncode == 0, made.stderr
    assert f"attempt 2 from step {resumed}" in (tmp_path / "page.html").read_text()
    report = json.loads(rerail(environment, "report", name, "--local", "--json").stdout)
    assert (report["state"], report["tone"]) == ("completed", "none")
    assert [mark["kind"] for mark in report["marks"]] == ["saved", "failed", "relaunched"]
    missing = rerail(environment, "report", "reportet", "--local")
    assert missing.returncode == 2
    assert f"did you mean {name}" in missing.stderr


def test_a_run_that_waits_for_a_person_is_on_the_page_of_all_runs(account: Account):
    """It stays there until it is released; of ended runs only the newest are listed."""
    name = account.submit("to-be-listed", script=Path(__file__).parent / "bare_script.py", DIES_OF="oom")
    account.run_in(name, "held")
    wait_for_page(account, FLEET_KEY, name)
