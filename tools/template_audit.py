"""Check every template with cfn-lint and checkov: `python -m tools.template_audit`; `make audit` calls it.

Each finding is fixed, or accepted below with its reason. An acceptance that no finding needs is an error too.
"""

import json
import shutil
import subprocess
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from local import deploy
from tools import standalone_template
from tools.variants import VARIANTS, find_templates

ROOT = Path(__file__).resolve().parent.parent
FOLDER = ROOT / ".local" / "template-audit"
# Three partitions, and the oldest and the youngest regions of AWS's own.
REGIONS = ("us-east-1", "eu-west-1", "ap-northeast-1", "mx-central-1", "us-gov-west-1", "cn-north-1")
CFN_LINT = Path(sys.executable).parent / "cfn-lint"
CHECKOV = Path(sys.prefix) / "checkov" / "bin" / "checkov"
# It guesses secrets from the path of the template too; tools/secret_scan.py reads all that git keeps.
NOT_CHECKED = "CKV_AWS_45"

Resources = Mapping[str, Mapping[str, Any]]


@dataclass(frozen=True, slots=True)
class TemplateFinding:
    """A finding of a checker about one resource of a template."""

    # The rule, such as E3006 or CKV_AWS_18.
    rule: str
    # The type of the resource; "" for a finding outside of the resources.
    kind: str
    # Where it is and what is wrong, for people.
    text: str


@dataclass(frozen=True, slots=True)
class Acceptance:
    """A finding that is accepted for one type of resource, or for all types."""

    rule: str
    # "" for every type.
    kind: str
    reason: str
    # Part of the finding's text, such as the one region that it is accepted for.
    within: str = ""

    def covers(self, finding: TemplateFinding) -> bool:
        """Return whether the finding is of this rule and type, and has that text."""
        return self.rule == finding.rule and self.kind in ("", finding.kind) and self.within in finding.text


ACCEPTED = (
    Acceptance("I1022", "", "The CDK writes Fn::Join where people would write Fn::Sub; both mean the same."),
    Acceptance("W3005", "AWS::Lambda::Function", "The CDK lists the role of a function; it is harmless."),
    Acceptance("W3005", "AWS::Scheduler::Schedule", "The CDK lists a role together with its policy; it is harmless."),
    *(
        Acceptance("E3006", kind, "Off by default; docs/limits.md lists the regions.", f"not exist in '{region}'")
        for kind in ("AWS::Events::Connection", "AWS::Events::ApiDestination")
        for region in ("mx-central-1", "us-gov-west-1")
    ),
    Acceptance("W3005", "AWS::StepFunctions::StateMachine", "The CDK lists the role of a state machine; harmless."),
    Acceptance("I3010", "AWS::Events::Connection", "One of two kinds of authorization, and PagerDuty's key."),
    Acceptance("CKV_AWS_7", "AWS::KMS::Key", "AWS rotates no keys for HMAC; the data's key is rotated."),
    Acceptance("CKV_AWS_27", "AWS::SQS::Queue", "Encrypted by SQS; pipelines would need the key.", "WaitsCallbacks"),
    Acceptance(
        "CKV_AWS_18", "AWS::S3::Bucket", "Access logs of mailbox, reports and code would cost more than they tell."
    ),
    Acceptance(
        "CKV_AWS_21", "AWS::S3::Bucket", "Mailbox objects and reports are replaced, and expire; code is versioned."
    ),
    Acceptance(
        "CKV_AWS_115",
        "AWS::Lambda::Function",
        "Event sources limit it; reserved concurrency would be taken from the account.",
    ),
    Acceptance("CKV_AWS_116", "AWS::Lambda::Function", "Fed by a queue with dead letters, or by a person's request."),
    Acceptance(
        "CKV_AWS_117", "AWS::Lambda::Function", "It calls AWS only; a VPC would need an endpoint for each service."
    ),
    Acceptance(
        "CKV_AWS_111", "AWS::IAM::Policy", "A function's own network interfaces, as in AWS's policy.", "full/Rerail"
    ),
    Acceptance("CKV_AWS_136", "AWS::ECR::Repository", "Encrypted by ECR; every training role would need the key."),
    Acceptance("CKV_AWS_158", "AWS::Logs::LogGroup", "Encrypted by CloudWatch; it holds no secret."),
    Acceptance("CKV_AWS_173", "AWS::Lambda::Function", "Names only, encrypted with Lambda's key."),
)


def collect(folder: Path) -> list[Path]:
    """Write every template into a folder of its variant; return them."""
    shutil.rmtree(folder, ignore_errors=True)
    cache = folder.parent / "audited-assemblies"
    for name, context in VARIANTS.items():
        assembly = deploy.synthesize(ROOT, cache, context=context, validate=False)
        for template in find_templates(assembly):
            (folder / name).mkdir(parents=True, exist_ok=True)
            shutil.copy(template, folder / name / template.name)
    standalone_template.write(ROOT, cache, folder / "standalone")
    shutil.rmtree(folder / "standalone" / "assets")
    return list(find_templates(folder))


def find_with_cfn_lint(templates: Sequence[Path], regions: Sequence[str] = REGIONS) -> Iterator[TemplateFinding]:
    """Yield what cfn-lint finds with the resource specifications of these regions, informational findings too."""
    files = [str(template) for template in templates]
    options = ["--format", "json", "--include-checks", "I", "--regions", *regions, "--template", *files]
    for finding in _run([str(CFN_LINT), *options], ended_with=range(0, 16, 2)):
        path = [str(step) for step in finding["Location"]["Path"] or ()]
        resource = path[1] if path[:1] == ["Resources"] else ""
        yield TemplateFinding(
            finding["Rule"]["Id"],
            _resources(Path(finding["Filename"])).get(resource, {}).get("Type", ""),
            f"{_name(Path(finding['Filename']))} {'/'.join(path)}: {finding['Message']}",
        )


def find_with_checkov(templates: Sequence[Path]) -> Iterator[TemplateFinding]:
    """Yield what checkov finds; it has an environment of its own, and uses no network."""
    files = [option for template in templates for option in ("--file", str(template))]
    options = ["--framework", "cloudformation", "--compact", "--quiet", "--skip-download", "--output", "json"]
    answer = _run([str(CHECKOV), *options, "--skip-check", NOT_CHECKED, *files], ended_with=(0, 1))
    for result in answer if isinstance(answer, list) else [answer]:
        if result["summary"]["parsing_errors"] or not result["summary"]["resource_count"]:
            raise SystemExit(f"template_audit: checkov could not read a template: {result['summary']}")
        for finding in result["results"]["failed_checks"]:
            kind, _, resource = finding["resource"].partition(".")
            file = Path(finding["file_abs_path"])
            yield TemplateFinding(finding["check_id"], kind, f"{_name(file)} {resource}: {finding['check_name']}")


def report(findings: Iterable[TemplateFinding], accepted: Sequence[Acceptance] = ACCEPTED) -> list[str]:
    """Return a line for each finding that is not accepted, and for each acceptance that no finding needs."""
    found = list(findings)
    lines = [
        f"{finding.rule} {finding.text}"
        for finding in found
        if not any(acceptance.covers(finding) for acceptance in accepted)
    ]
    unused = [acceptance for acceptance in accepted if not any(map(acceptance.covers, found))]
    return sorted(set(lines)) + [
        f"{acceptance.rule} of {acceptance.kind or 'any type'} is accepted, and no template has it: "
        "remove it from ACCEPTED of tools/template_audit.py"
        for acceptance in unused
    ]


def _run(command: list[str], *, ended_with: Iterable[int]) -> Any:
    ran = subprocess.run(command, capture_output=True, text=True)
    try:
        answer = json.loads(ran.stdout)
    except ValueError:
        answer = None
    if ran.returncode not in ended_with or answer is None:
        raise SystemExit(f"template_audit: {' '.join(command[:3])} ended with {ran.returncode}: {ran.stderr[-2000:]}")
    return answer


def _resources(template: Path) -> Resources:
    resources: Resources = json.loads(template.read_text())["Resources"]
    return resources


def _name(template: Path) -> str:
    return f"{template.parent.name}/{template.name.partition('.')[0]}"


def main() -> int:
    """Print the findings that are not accepted; return 1 if there are any."""
    templates = collect(FOLDER)
    with ThreadPoolExecutor() as pool:  # each waits for a process of its own
        linted = pool.submit(lambda: list(find_with_cfn_lint(templates)))
        lines = report([*find_with_checkov(templates), *linted.result()])
    for line in lines:
        print(line)
    print(f"cfn-lint in {len(REGIONS)} regions and checkov: {len(templates)} templates, {len(lines)} findings")
    return 1 if lines else 0


if __name__ == "__main__":
    sys.exit(main())
