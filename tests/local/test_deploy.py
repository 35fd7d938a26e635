"""Synthesis with its cache, and deployment through CloudFormation."""

import compileall
import io
import json
import subprocess
import sys
import zipfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from local import deploy
from local.stack import LocalAws

pytestmark = pytest.mark.slow

# Stands for a CDK app: writes an assembly, and counts how often it was run.
APP = """
import json, os, pathlib
out = pathlib.Path(os.environ["CDK_OUTDIR"])
out.mkdir()
template = {"Resources": {"Topic": {"Type": "AWS::SNS::Topic", "Properties": {}}},
            "Outputs": {"Flag": {"Value": json.loads(os.environ["CDK_CONTEXT_JSON"])["flag"]}}}
(out / "Small.template.json").write_text(json.dumps(template))
(out / "Small.assets.json").write_text('{"files": {}}')
(out / "manifest.json").write_text("{}")
with open("runs", "a") as runs:
    runs.write("x")
"""


@pytest.fixture
def project(tmp_path: Path) -> Path:
    (tmp_path / "app.py").write_text(APP)
    (tmp_path / "cdk.json").write_text(json.dumps({"context": {"flag": "on"}}))
    (tmp_path / "lambdas").mkdir()
    (tmp_path / "lambdas" / "one.py").write_text("1")
    return tmp_path


def test_unchanged_tree_is_not_synthesized_again(project: Path) -> None:
    """A second synthesis reuses the first one's assembly, also once modules are compiled; a changed one does not."""
    first = deploy.synthesize(project, project / "cache")
    compileall.compile_dir(project / "lambdas", quiet=2)
    assert deploy.synthesize(project, project / "cache") == first
    assert (project / "runs").read_text() == "x"
    (project / "lambdas" / "one.py").write_text("2")
    assert deploy.synthesize(project, project / "cache") != first


def test_what_several_synthesize_at_once_is_made_once(project: Path) -> None:
    """The others wait for the first, and take its assembly."""
    with ThreadPoolExecutor() as pool:
        running = [pool.submit(deploy.synthesize, project, project / "cache") for _ in range(3)]
    assert len({assembly.result() for assembly in running}) == 1
    assert (project / "runs").read_text() == "x"


def test_published_code_is_compiled_and_runs_without_its_source_being_read(aws: LocalAws, project: Path) -> None:
    """A worker that starts need not compile; the archive for a real account holds the sources alone."""
    assembly = deploy.synthesize(project, project / "cache")
    code = assembly / "code"
    code.mkdir()
    (code / "answer.py").write_text("VALUE = 42\n")
    destination = {"bucketName": "cdk-assets", "objectKey": "code.zip"}
    asset = {"source": {"path": "code", "packaging": "zip"}, "destinations": {"here": destination}}
    (assembly / "Code.assets.json").write_text(json.dumps({"files": {"code": asset}}))
    aws.client("s3").create_bucket(Bucket="cdk-assets")
    deploy.publish_assets(assembly, "Code", aws.client, {"AccountId": "0", "Region": "us-east-1"})
    archive = aws.client("s3").get_object(Bucket="cdk-assets", Key="code.zip")["Body"].read()
    with zipfile.ZipFile(io.BytesIO(archive)) as files:
        files.extractall(project / "extracted")
    (compiled,) = (project / "extracted" / "__pycache__").iterdir()
    (project / "extracted" / "answer.py").write_text("raise AssertionError('compiled again')\n")
    imported = [sys.executable, "-c", "import answer; print(answer.VALUE)"]
    assert subprocess.check_output(imported, cwd=project / "extracted", text=True) == "42\n", compiled
    with zipfile.ZipFile(io.BytesIO(deploy.zipped(code))) as files:
        assert files.namelist() == ["answer.py"]


def test_an_app_that_does_not_end_is_named(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (project / "app.py").write_text("import time; time.sleep(600)")
    monkeypatch.setattr(deploy, "SYNTHESIS_S", 0.5)
    with pytest.raises(deploy.DeployError, match=r"app\.py did not end within 0\.5 s"):
        deploy.synthesize(project, project / "cache")


def test_broken_app_is_shown(project: Path) -> None:
    """The app's own error is the message."""
    (project / "app.py").write_text("raise ValueError('policies/default.toml: budget must be positive')")
    with pytest.raises(deploy.DeployError, match="budget must be positive"):
        deploy.synthesize(project, project / "cache")


def test_deploy_returns_outputs_and_knows_when_nothing_changed(aws: LocalAws, project: Path) -> None:
    """Context of cdk.json reaches the app, outputs come back, and a second deployment changes nothing."""
    assembly = deploy.synthesize(project, project / "cache")
    said: list[str] = []
    for _ in range(2):
        assert deploy.deploy(assembly, "Small", aws.client, progress=said.append) == {"Flag": "on"}
    assert "deployed" in said[1]
    assert "up to date" in said[3]


def test_a_local_stack_notifies_no_external_receiver(aws: LocalAws, project: Path) -> None:
    """An account's pager and webhook stand in cdk.json; their secrets are not here, and a trial must wake nobody."""
    asked = {"flag": "on", "pagerDutySecret": "rerail/pagerduty", "webhookUrl": "https://hooks.example.com"}
    (project / "cdk.json").write_text(json.dumps({"context": asked}))
    (project / "app.py").write_text(APP.replace('["flag"]', '["pagerDutySecret"] or "nobody"'))
    here = LocalAws.attach(aws.state_dir)
    here.root, here.assemblies = project, project / "cache"
    assert here._deploy("Small", lambda line: None) == {"Flag": "nobody"}


def test_failed_deployment_shows_its_cause(aws: LocalAws, project: Path) -> None:
    """The failed resource and its reason are in the message."""
    assembly = deploy.synthesize(project, project / "cache")
    alarm = {"Type": "AWS::CloudWatch::Alarm", "Properties": {"Namespace": "Nothing", "Threshold": 1}}
    (assembly / "Broken.template.json").write_text(json.dumps({"Resources": {"Bad": alarm}}))
    (assembly / "Broken.assets.json").write_text('{"files": {}}')
    with pytest.raises(deploy.DeployError, match="Bad .*MetricName"):
        deploy.deploy(assembly, "Broken", aws.client)
