"""The secret scan reads the history too; bills of materials list what is shipped; an unanswered audit has failed."""

import json
import subprocess
from pathlib import Path

import pytest

from tools import audit_online, sbom, secret_scan

pytestmark = pytest.mark.slow

# Neither is complete in this file, because the scan reads it too.
KEY, PASSWORD = "AKIA" + "QYLPMN5HFIQR7XYA", "-".join(("tulip", "river", "copper"))


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    git(tmp_path, "init", "-q")
    return tmp_path


def git(folder: Path, *words: str) -> None:
    identity = ("-c", "user.name=t", "-c", "user.email=t@example.com", "-c", "commit.gpgsign=false")
    subprocess.run(["git", *identity, *words], cwd=folder, check=True, capture_output=True)


def commit(repository: Path, name: str, text: str) -> None:
    (repository / name).write_text(text)
    git(repository, "add", "-A")
    git(repository, "commit", "-q", "-m", name)


def test_a_secret_that_a_later_commit_removes_is_found(repository: Path):
    """It is reported by file, line and digest; the secret itself is not printed."""
    commit(repository, "settings.py", f"a = 1\nkey = '{KEY}'\n")
    commit(repository, "settings.py", "a = 1\n")
    found = list(secret_scan.scan(repository))
    assert any(line.startswith("settings.py:2: AWS Access Key") for line in found)
    assert KEY not in str(found)


def test_a_secret_below_a_line_that_was_there_before_is_found(repository: Path):
    commit(repository, "settings.yml", "user: a\npassword:\n")
    commit(repository, "settings.yml", f'user: a\npassword:\n  "{PASSWORD}"\n')
    (found,) = secret_scan.scan(repository)
    assert found.startswith("settings.yml:2: assignment")


def test_a_file_that_is_not_committed_is_read(repository: Path):
    (repository / "deploy.sh").write_text(f'export DATABASE_PASSWORD="{PASSWORD}"\n')
    (found,) = secret_scan.scan(repository)
    assert found.startswith("deploy.sh:1: ")


@pytest.mark.parametrize("text", ["token = ''", "token = read()", 'password = "${FROM_ENVIRONMENT}"', "a secret = x"])
def test_the_name_of_a_secret_without_a_value_is_not_reported(repository: Path, text: str):
    (repository / "settings.py").write_text(text)
    assert list(secret_scan.scan(repository)) == []


def test_what_is_shipped_is_listed_with_all_that_it_needs():
    functions, image = (sbom.closure(*sbom.SHIPPED[title]) for title in ("functions", "training-image"))
    assert functions >= {"jinja2", "markupsafe", "pygal", "aws-lambda-powertools", "aws-xray-sdk"}
    assert image >= {"boto3", "botocore", "numpy", "s3torchconnector", "xxhash"}
    assert not functions & {"boto3", "torch", "pytest"} and "torch" not in image


def test_a_bill_is_restricted_to_the_shipped_packages():
    components = [{"name": name, "version": "1", "bom-ref": name} for name in ("jinja2", "pytest")]
    edges = [{"ref": "jinja2", "dependsOn": ["pytest"]}, {"ref": "pytest"}]
    bill = sbom.restrict({"metadata": {}, "components": components, "dependencies": edges}, "functions", {"jinja2"})
    assert json.loads(json.dumps(bill))["components"] == components[:1]
    assert bill["dependencies"] == [
        {"ref": "jinja2", "dependsOn": []},
        {"ref": "rerail-functions", "dependsOn": ["jinja2"]},
    ]


def test_a_licence_that_is_not_free_is_reported():
    def component(*licences: str) -> dict:
        return {"name": "a", "version": "1", "licenses": [{"license": {"id": name}} for name in licences]}

    assert sbom.find_other_licences({"components": [component("MIT"), component("MIT", "Apache-2.0")]}) == []
    assert sbom.find_other_licences({"components": [component("GPL-3.0")]}) == ["a 1: GPL-3.0"]
    assert sbom.find_other_licences({"components": [component()]}) == ["a 1: no licence"]


@pytest.mark.parametrize(
    ("unanswered", "vulnerabilities", "said"),
    [
        (1, [], "no known vulnerability in 19 packages; 1 were not audited"),
        (2, [], "FAILED: the service did not answer for 2 of 20 packages; nothing is known of them"),
        (20, [], "FAILED: the service did not answer for 20 of 20 packages; nothing is known of them"),
        (1, [{"id": "CVE-1"}], "FAILED: known vulnerabilities: a 1: CVE-1"),
    ],
)
def test_an_audit_of_too_few_packages_has_failed(unanswered: int, vulnerabilities: list[dict], said: str):
    skipped = [{"name": "b", "skip_reason": "not found on PyPI"}] * unanswered
    audited = [{"name": "a", "version": "1", "vulns": []}] * (20 - unanswered)
    if vulnerabilities:
        audited[0] = {**audited[0], "vulns": vulnerabilities}
    assert audit_online.summarize([*audited, *skipped]) == said
    assert audit_online.summarize([]).startswith("FAILED")
