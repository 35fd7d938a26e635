"""`rerail deploy` and `rerail destroy` against an AWS of their own: first, again, away, and back with what was left."""

import json
import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from cli import place
from cli.deploy import organization, target
from cli.deploy.assembly import synthesize
from cli.deploy.changes import find_refused
from cli.deploy.first import make_first_template
from cli.deploy.formation import Formation
from cli.deploy.permissions import strip_hash
from local import deploy
from local.deploy import LOCAL_BOOTSTRAP, LOCAL_SCOPE, DeployError
from local.pace import Pace
from local.stack import LOCAL_CHOICES, LocalAws
from rerail.aws import clients
from rerail.aws.sagemaker import SageMakerJobs
from rerail.model.run import Run, RunState
from rerail.requests.relaunch import POLICY_TAG, rebuild
from tests.deployed.conftest import ASSEMBLIES
from tests.deployed.jobs import BUCKET, ROOT, Account, apart, rerail

pytestmark = pytest.mark.slow

OLD_RECORDS = ROOT / "tests" / "core" / "data" / "records" / "4045398" / "runs.jsonl"
NAME = "from-an-older-version"
ROLE = "arn:aws:iam::000000000000:role/SageMakerRole"
PAGED = "on-call@example.com"


@pytest.fixture(scope="module")
def empty(tmp_path_factory: pytest.TempPathFactory, pace: Pace) -> Iterator[LocalAws]:
    """An AWS in which nothing is deployed."""
    folder = tmp_path_factory.mktemp("deploying")
    with apart(folder, scale=pace.scale, schedule_scale=pace.scale, stack=None) as aws:
        yield aws


@pytest.fixture(scope="module")
def surroundings(empty: LocalAws) -> dict[str, str]:
    return {**os.environ, "RERAIL_LOCAL_STATE": str(empty.state_dir), "COLUMNS": "200"}


@pytest.fixture(scope="module")
def first(empty: LocalAws, surroundings: dict[str, str]) -> dict[str, Any]:
    """What the first deployment said of itself."""
    answer = rerail(surroundings, "deploy", "--local", "--yes", "--json")
    assert answer.returncode == 0, answer.stderr
    facts: dict[str, Any] = json.loads(answer.stdout)
    return {**facts, "said": answer.stderr}


def store_as_the_first_version(account: Account, name: str) -> None:
    """A run as the first version stored it, for a job that trains now, put where that version put it."""
    job, description = SageMakerJobs().describe(name)
    begun = job.created_at.isoformat()
    (line,) = (line for line in OLD_RECORDS.read_text().splitlines() if '"secondary":"Starting"' in line)
    record = json.loads(line)
    record |= {"id": name, "created_at": begun, "checkpoint_uri": f"s3://{BUCKET}/{name}"}
    record["attempts"][0] |= {"job_name": name, "created_at": begun, "training_started_at": begun}
    request = rebuild(description, {POLICY_TAG: "default"}, members=SageMakerJobs().request_members())
    key, job_key = f"run#{name}", f"job#{name}"
    run = {"doc": {"S": json.dumps(record)}, "version": {"N": str(record["version"])}, "state": {"S": record["state"]}}
    items = [
        {"pk": {"S": key}, "sk": {"S": "run"}, **run, "open": {"S": "open#0"}},
        {"pk": {"S": key}, "sk": {"S": "request"}, "doc": {"S": json.dumps(request, default=str)}},
        {"pk": {"S": job_key}, "sk": {"S": "job"}, "run": {"S": name}},
    ]
    for item in items:
        account.aws.client("dynamodb").put_item(TableName=account.aws.outputs["TableName"], Item=item)


def test_a_first_deployment_lists_what_it_grants_and_the_next_steps(first: dict[str, Any]):
    assert first["action"] == "created"
    assert first["account"] == "000000000000"
    assert {"TableName", "MailboxBucket", "PageTopicArn"} <= set(first["outputs"])
    wild = [grant for grant in first["permissions"]["added"] if grant["may"] and "*" in grant["on"]]
    assert wild
    assert [grant for grant in wild if not grant["because"]] == []
    assert "No one is paged by e-mail yet" in first["said"]
    assert first["delivery"].startswith("an event came through bus, rule and queue in ")
    assert "rerail doctor --local" in first["said"]


def test_a_first_deployment_ends_with_protection_and_without_an_alarm(first: dict[str, Any], empty: LocalAws):
    """The alarm on missing sweeps is in force only after the first one."""
    table = empty.client("dynamodb").describe_table(TableName=first["outputs"]["TableName"])["Table"]
    assert table["DeletionProtectionEnabled"] is True
    alarms = empty.client("cloudwatch").describe_alarms()["MetricAlarms"]
    assert [alarm["TreatMissingData"] for alarm in alarms if "NoSweep" in alarm["AlarmName"]] == ["breaching"]
    assert all(alarm["OKActions"] for alarm in alarms), "whoever is paged hears of the end"
    assert "waiting for the first sweep, before its absence may page\n  it has come\n" in first["said"]
    assert [alarm["AlarmName"] for alarm in alarms if alarm["StateValue"] == "ALARM"] == []


def test_a_first_deployment_that_fails_leaves_nothing_behind(first: dict[str, Any], empty: LocalAws):
    """The last resource fails: the bucket has a policy already. Table and key are removed, although they are kept."""
    formation = Formation(empty.client("cloudformation"), "Failing", pause_s=0.1)
    template = Formation(empty.client("cloudformation"), "Rerail").read_template()
    assert template
    kinds = {"AWS::DynamoDB::Table", "AWS::KMS::Key"}
    resources = {id: resource for id, resource in template["Resources"].items() if resource["Type"] in kinds}
    assert {resource["DeletionPolicy"] for resource in resources.values()} == {"Retain"}
    second_policy = {"Bucket": first["outputs"]["MailboxBucket"], "PolicyDocument": {"Statement": []}}
    resources["Second"] = {"Type": "AWS::S3::BucketPolicy", "Properties": second_policy, "DependsOn": list(resources)}
    tables = empty.client("dynamodb").list_tables()["TableNames"]
    keys = list_enabled_keys(empty)
    formation.propose("CREATE", json.dumps(make_first_template({"Resources": resources}, is_import=False)))
    with pytest.raises(DeployError, match="ROLLBACK_COMPLETE(.|\n)*already exists"):
        formation.execute(lambda event: None)
    assert empty.client("dynamodb").list_tables()["TableNames"] == tables
    assert list_enabled_keys(empty) == keys
    formation.delete(lambda event: None)


def list_enabled_keys(aws: LocalAws) -> set[str]:
    """Return the keys that are not about to be deleted."""
    kms = aws.client("kms")
    described = [kms.describe_key(KeyId=key["KeyId"])["KeyMetadata"] for key in kms.list_keys()["Keys"]]
    return {key["KeyId"] for key in described if key["KeyState"] == "Enabled"}


def test_deploying_again_changes_nothing(first: dict[str, Any], surroundings: dict[str, str]):
    answer = rerail(surroundings, "deploy", "--local", "--yes", "--json")
    again = json.loads(answer.stdout)
    assert again["action"] == "unchanged"
    assert again["resources"] == []
    assert again["permissions"] == {"added": [], "removed": []}
    assert again["outputs"] == first["outputs"]


def test_nothing_goes_without_the_stacks_name(first: dict[str, Any], surroundings: dict[str, str]):
    answer = rerail(surroundings, "destroy", "--local")
    assert answer.returncode == 2
    assert "--confirm Rerail" in answer.stderr
    assert first["outputs"]["TableName"] in answer.stdout


def test_what_is_destroyed_comes_back_with_the_runs_of_before(
    first: dict[str, Any], empty: LocalAws, surroundings: dict[str, str], pace: Pace
):
    """Destroyed and deployed again while a job trains: the same table, in which an older version's run is taken up."""
    account = Account(LocalAws.attach(empty.state_dir), pace)
    account.set_up_for_tests()
    gone = rerail(surroundings, "destroy", "--local", "--confirm", "Rerail", "--json")
    assert gone.returncode == 0, gone.stderr
    kept = json.loads(gone.stdout)["kept"].values()
    assert {first["outputs"]["TableName"], first["outputs"]["MailboxBucket"]} <= set(kept)
    guarded = empty.client("s3").get_bucket_policy(Bucket=first["outputs"]["MailboxBucket"])["Policy"]
    assert "OnlyTheSupervisorCommands" in guarded
    account.submit(NAME, steps=1_000_000)  # nobody hears of it
    account.has_saved(NAME, steps=20)
    store_as_the_first_version(account, NAME)

    back = rerail(surroundings, "deploy", "--local", "--yes", "--json")
    assert back.returncode == 0, back.stderr
    outputs = json.loads(back.stdout)["outputs"]
    policy = json.loads(empty.client("s3").get_bucket_policy(Bucket=outputs["MailboxBucket"])["Policy"])
    assert "OnlyTheSupervisorCommands" in {statement.get("Sid") for statement in policy["Statement"]}
    for name in ("TableName", "MailboxBucket"):
        assert outputs[name] == first["outputs"][name]
    names = Formation(empty.client("cloudformation"), "Rerail").list_names()
    assert set(kept) <= set(names.values())  # the key, the logs and the dead letters too

    account = Account(LocalAws.attach(empty.state_dir), pace)
    account.set_up_for_tests()
    assert account.run_in(NAME, "watching").id == NAME


def test_an_open_run_keeps_its_supervisor(first: dict[str, Any], surroundings: dict[str, str]):
    answer = rerail(surroundings, "destroy", "--local", "--confirm", "Rerail")
    assert answer.returncode == 2
    assert f"1 runs are open: {NAME}" in answer.stderr
    assert "--force" in answer.stderr


def test_an_update_lists_its_changes_and_the_open_run_recovers_after_it(
    first: dict[str, Any], empty: LocalAws, surroundings: dict[str, str], pace: Pace
):
    """Permissions in plain words, then the new stack; the older version's run loses its job, and gets another."""
    chosen = ("-c", f"pageEmail={PAGED}", "-c", f"trainingRoleArns={ROLE}")
    answer = rerail(surroundings, "deploy", "--local", "--yes", *chosen)
    assert answer.returncode == 0, answer.stderr
    before, after = (
        f"iam:PassRole on {arn}, where" for arn in ("arn:aws:iam::<AWS::AccountId>:role/*SageMaker*", ROLE)
    )
    assert f"- may {before}" in answer.stdout
    assert f"+ may {after}" in answer.stdout
    assert f"confirm the mail that AWS sends to {PAGED}" in answer.stdout
    account = Account(LocalAws.attach(empty.state_dir), pace)
    assert account.aws.outputs["TableName"] == first["outputs"]["TableName"]
    account.set_up_for_tests()
    account.inject("kill", TrainingJobName=NAME)
    run = account.wait("the successor", lambda: r if (r := account.runs.load(NAME)).current.number == 2 else None)
    assert run.current.resumed_from_step >= 20
    assert rerail(surroundings, "stop", NAME, "--local").returncode == 0
    account.run_in(NAME, "stopped")


def test_a_later_update_forgets_nobody_who_is_paged(first: dict[str, Any], surroundings: dict[str, str]):
    """A checkout that does not know the address keeps the subscription that is there."""
    answer = rerail(surroundings, "deploy", "--local", "--plan", "--json", "-c", f"trainingRoleArns={ROLE}")
    planned = json.loads(answer.stdout)
    assert planned["action"] == "planned"
    assert [resource for resource in planned["resources"] if resource["kind"] == "AWS::SNS::Subscription"] == []


def find_this_version() -> Path:
    """Return the assembly of this version, with the choices of the suite's own AWS: it is synthesized once for both."""
    choices = LOCAL_CHOICES | LOCAL_SCOPE | LOCAL_BOOTSTRAP
    return deploy.synthesize(ROOT, ASSEMBLIES, context=choices, validate=False)


def make_next_version(current: Path, folder: Path) -> Path:
    """Return a copy of the assembly whose functions write a field that this version does not know."""
    shutil.copytree(current, folder, ignore=shutil.ignore_patterns(deploy.COMPILED))
    (code,) = (path.parent for path in folder.glob("asset.*/supervise.py"))
    patches = {
        "model/run.py": ('    hold_reason: str = ""', '    hold_reason: str = ""\n    noted_next: str = ""'),
        "decisions/decide.py": (
            "    return decision\n",
            '    return replace(decision, run=replace(decision.run, noted_next="kept"))\n',
        ),
    }
    for name, (before, after) in patches.items():
        replace_text(code / "rerail" / name, before, after)
    # Assets are named after their content: another name is another version.
    digest = code.name.removeprefix("asset.")
    code.rename(folder / f"asset.{digest[::-1]}")
    for name in ("Rerail.template.json", "Rerail.assets.json"):
        replace_text(folder / name, digest, digest[::-1])
    return folder


def replace_text(file: Path, before: str, after: str) -> None:
    text = file.read_text()
    assert before in text
    file.write_text(text.replace(before, after))


def deploy_version(aws: LocalAws, assembly: Path) -> None:
    """Deploy the functions of another version into the stack, as `cdk deploy` of that version would."""
    aws.redeployed(deploy.deploy(assembly, "Rerail", aws.client))


def fail_without_capacity(account: Account, name: str, job: str) -> None:
    """Kill the job, and refuse its successor until capacity returns: the run stays in the middle of a recovery."""
    account.inject("resource_limit", Count=10_000, TrainingJobName=name)
    account.inject("kill", TrainingJobName=job)
    account.run_in(name, "waiting")


def test_a_run_in_recovery_survives_an_upgrade_and_a_rollback(
    first: dict[str, Any], empty: LocalAws, surroundings: dict[str, str], pace: Pace, tmp_path: Path
):
    """Each version finishes the recovery that the other began, and no field of the newer one is lost."""
    account, name = Account(LocalAws.attach(empty.state_dir), pace), "between-versions"
    account.set_up_for_tests()
    account.submit(name, steps=1_000_000)
    account.has_saved(name, steps=20)

    def recover(number: int, version: Path) -> Run:
        """Deploy the version in the middle of the recovery; return the run with its next attempt in training."""
        fail_without_capacity(account, name, account.runs.load(name).current.job_name)
        deploy_version(account.aws, version)
        account.inject("resource_limit", Count=0, TrainingJobName=name)

        def find_trained() -> Run | None:
            run = account.runs.load(name)
            return run if (run.current.number, run.state) == (number, RunState.WATCHING) else None

        return account.wait(f"attempt {number}", find_trained)

    this_version = find_this_version()
    upgraded = recover(2, make_next_version(this_version, tmp_path / "next"))
    assert "noted_next" in upgraded.newer_fields and upgraded.current.resumed_from_step >= 20
    rolled_back = recover(3, this_version)
    assert "noted_next" in rolled_back.newer_fields
    assert rolled_back.current.resumed_from_step >= upgraded.current.resumed_from_step
    assert rerail(surroundings, "stop", name, "--local").returncode == 0
    account.run_in(name, "stopped")
    assert account.dead_letters() == []


def test_what_would_lose_the_runs_is_refused(first: dict[str, Any], empty: LocalAws):
    """CloudFormation itself says that the table would be another one; unless it is allowed by name, that is the end."""
    formation = Formation(empty.client("cloudformation"), "Rerail", pause_s=0.1)
    template = json.loads(json.dumps(formation.read_template()))
    ((id, table),) = ((i, r) for i, r in template["Resources"].items() if r["Type"] == "AWS::DynamoDB::Table")
    table["Properties"]["TableName"] = "another"
    text = json.dumps(template)
    s3, bucket = empty.client("s3"), "cdk-hnb659fds-assets-000000000000-us-east-1"
    s3.put_object(Bucket=bucket, Key="another.json", Body=text.encode())
    found = formation.propose("UPDATE", text, url=f"{empty.endpoint_url}/{bucket}/another.json")
    formation.forget()
    (loss,) = find_refused(found, [])
    assert (loss.id, loss.replaced, loss.danger) == (id, True, "every run, open or ended")
    assert list(find_refused(found, [strip_hash(id)])) == []
    assert formation.read_outputs()["TableName"] == first["outputs"]["TableName"]


def bootstrap(region: str) -> None:
    """The two things of the CDK's bootstrap that a deployment looks at."""
    where = {"CreateBucketConfiguration": {"LocationConstraint": region}} if region != "us-east-1" else {}
    clients.client("s3").create_bucket(Bucket=f"cdk-hnb659fds-assets-000000000000-{region}", **where)
    clients.client("ssm").put_parameter(
        Name="/cdk-bootstrap/hnb659fds/version", Value="21", Type="String", Overwrite=True
    )


def test_the_code_of_an_organizations_functions_is_put_into_each_region(empty: LocalAws):
    """A bucket a region, with every file that the members' template names."""
    place.use_local(empty.endpoint_url)
    units = {"organizationId": "o-a1b2c3d4e5", "organizationalUnits": "ou-ab12-c3d4e5f6"}
    folder = synthesize({**units, "organizationRegions": "us-east-1,eu-west-1", **LOCAL_SCOPE})
    resources = organization.find_member(folder).template["Resources"].values()
    properties = [resource["Properties"] for resource in resources]
    code = [item[name] for item in properties for name in ("Code", "Content") if "S3Key" in item.get(name, {})]
    for region in ("us-east-1", "eu-west-1"):
        os.environ |= {"AWS_REGION": region, "AWS_DEFAULT_REGION": region}
        clients.client.cache_clear()
        bootstrap(region)
        here = target.Target("000000000000", region, "arn:aws:iam::000000000000:root", aws=empty)
        bucket = organization.prepare(here, folder, Console(quiet=True))
        assert bucket == f"rerail-assets-000000000000-{region}"
        listed = clients.client("s3").list_objects_v2(Bucket=bucket)["Contents"]
        assert {source["S3Key"] for source in code} <= {stored["Key"] for stored in listed}
        assert all(stored["Size"] for stored in listed)
    place.use_local(empty.endpoint_url)
