"""The audits find what they are there for, and say it when they could not ask."""

import json
import subprocess
from pathlib import Path
from typing import Any

import pytest

from bench import audit, sbom, secret_scan
from bench.audit import Found, evidence, told_by_pip_audit

# Neither stands whole in this file, for the scan reads it too.
KEY, PASSWORD = "AKIA" + "QYLPMN5HFIQR7XYA", "-".join(("tulip", "river", "copper"))


def git(folder: Path, *words: str) -> None:
    who = ("-c", "user.name=t", "-c", "user.email=t@example.com", "-c", "commit.gpgsign=false")
    subprocess.run(["git", *who, *words], cwd=folder, check=True, capture_output=True)


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    git(tmp_path, "init", "-q")
    return tmp_path


def commit(repository: Path, name: str, text: str) -> None:
    (repository / name).write_text(text)
    git(repository, "add", "-A")
    git(repository, "commit", "-q", "-m", name)


def test_a_secret_that_was_taken_out_again_is_found_in_the_history(repository: Path):
    """Told by file, line and digest; the secret itself is not told."""
    commit(repository, "settings.py", f"a = 1\nkey = '{KEY}'\n")
    commit(repository, "settings.py", "a = 1\n")
    finds = list(secret_scan.scan(repository))
    assert {(find.path, find.line, find.kind) for find in finds} >= {("settings.py", 2, "AWS Access Key")}
    assert KEY not in str(finds)


def test_a_file_that_is_not_committed_yet_is_looked_at(repository: Path):
    (repository / "deploy.sh").write_text(f'export DATABASE_PASSWORD="{PASSWORD}"\n')
    (find,) = secret_scan.scan(repository)
    assert (find.path, find.line) == ("deploy.sh", 1)


@pytest.mark.parametrize("text", ["token = ''", "token = read()", 'password = "${FROM_ENVIRONMENT}"', "a secret = x"])
def test_what_names_a_secret_without_one_is_none(repository: Path, text: str):
    (repository / "settings.py").write_text(text)
    assert list(secret_scan.scan(repository)) == []


def test_a_find_that_is_known_to_be_none_is_not_told(repository: Path, monkeypatch: pytest.MonkeyPatch):
    commit(repository, "settings.py", f"key = '{KEY}'\n")
    digests = {find.digest for find in secret_scan.scan(repository)}
    assert digests
    monkeypatch.setattr(secret_scan, "KNOWN", dict.fromkeys(digests, "made up"))
    assert list(secret_scan.scan(repository)) == []


def dependency(name: str, **more: Any) -> dict[str, Any]:
    return {"name": name, "version": "1.0", "vulns": [], **more}


def test_a_known_vulnerability_is_told_with_the_version_that_mends_it():
    hole = {"id": "PYSEC-2026-1", "fix_versions": ["1.1"], "aliases": [], "description": "bad"}
    found = told_by_pip_audit(json.dumps({"dependencies": [dependency("a"), dependency("b", vulns=[hole])]}), "")
    assert found == Found("2 packages", ("b 1.0: PYSEC-2026-1, mended in 1.1",))
    assert not evidence({"packages": found}).holds


def test_what_the_index_cannot_say_is_told_and_fails_nothing():
    """Half an answer is told as half of one; no answer as none."""
    skipped = {"name": "torch", "skip_reason": "not found"}
    half = told_by_pip_audit(json.dumps({"dependencies": [dependency("a"), skipped]}), "")
    assert half.unasked == "the package index knows no advisories of 1 of 2 packages (torch)"
    none = told_by_pip_audit("", "Traceback\nConnectionError: nobody is there")
    assert none.unasked == "ConnectionError: nobody is there"
    assert evidence({"packages": half}).holds and evidence({"packages": none}).holds


def test_what_could_not_be_asked_is_never_silent(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]):
    monkeypatch.setitem(audit.AUDITS, "packages", lambda: Found("none", unasked="nobody answered"))  # type: ignore[arg-type]
    assert audit.main(["--only", "packages"]) == 0
    assert "not asked: packages: nobody answered" in capsys.readouterr().out


def test_what_an_audit_finds_fails_it(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]):
    monkeypatch.setitem(audit.AUDITS, "code", lambda: Found("1 line", ("a.py:1: B999: bad",)))  # type: ignore[arg-type]
    assert audit.main(["--only", "code"]) == 1
    assert "a.py:1: B999: bad" in capsys.readouterr().out


@pytest.mark.slow
def test_the_bills_are_as_cyclonedx_has_them(tmp_path: Path):
    """With what is shipped in them, no more, and nothing of this machine."""
    *chosen, everything = sbom.shipped()
    files = {file.name: file.read_text() for file in sbom.write(tmp_path, chosen=chosen)}
    bills = {name.removesuffix(sbom.ENDING): json.loads(text) for name, text in files.items()}
    assert set(bills) == {"functions", "training-image"}
    assert sbom.faults({**bills["functions"], "components": [{"name": "no type"}]}), "the schema is asked"
    bills[everything.name] = sbom.bill_of(everything, sbom.environment())
    names = {name: {component["name"].lower() for component in bill["components"]} for name, bill in bills.items()}
    assert names["functions"] >= {"jinja2", "pygal", "aws_lambda_powertools", "aws-xray-sdk"}
    assert names["training-image"] >= {"boto3", "numpy", "s3torchconnector", "xxhash"}
    assert not names["functions"] & {"boto3", "torch", "pytest"} and "torch" not in names["training-image"]
    assert names["development"] > names["functions"] | names["training-image"] | {"pytest", "aws-cdk-lib"}
    assert all(str(Path.home()) not in text and "file:" not in text for text in files.values())
