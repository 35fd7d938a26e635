"""The audit of the templates reports what is wrong in one region alone, and what is accepted without need."""

import json

import pytest

from tools.template_audit import Acceptance, TemplateFinding, find_with_cfn_lint, report

pytestmark = pytest.mark.slow

FOUND = TemplateFinding("E3006", "AWS::Events::Connection", "full/Rerail Pager: does not exist in 'us-gov-west-1'")


@pytest.mark.parametrize(
    ("acceptance", "reported"),
    [
        (Acceptance("E3006", "AWS::Events::Connection", "r", "'us-gov-west-1'"), []),
        (Acceptance("E3006", "", "r"), []),
        (Acceptance("E3006", "AWS::Events::Connection", "r", "'cn-north-1'"), ["finding", "unused"]),
        (Acceptance("E3006", "AWS::SQS::Queue", "r"), ["finding", "unused"]),
        (Acceptance("E3001", "AWS::Events::Connection", "r"), ["finding", "unused"]),
    ],
)
def test_an_acceptance_is_for_one_rule_and_type_and_must_be_needed(acceptance: Acceptance, reported: list[str]):
    lines = report([FOUND], [acceptance])
    assert ["unused" if "is accepted, and no template has it" in line else "finding" for line in lines] == reported


def test_what_a_region_does_not_know_is_found_with_its_type(tmp_path):
    """cfn-lint is asked about each region; a finding says which resource of which template."""
    key = {"Type": "AWS::KMS::Key", "Properties": {"Enabled": "perhaps"}}
    pager = {"Type": "AWS::Events::Connection", "Properties": {"AuthorizationType": "API_KEY"}}
    template = tmp_path / "full" / "Rerail.template.json"
    template.parent.mkdir()
    template.write_text(json.dumps({"Resources": {"Key": key, "Pager": pager}}))
    regions = ("us-east-1", "us-gov-west-1")
    found = {(finding.rule, finding.kind, finding.text) for finding in find_with_cfn_lint([template], regions)}
    assert ("E3006", "AWS::Events::Connection") in {entry[:2] for entry in found}
    assert any("full/Rerail Resources/Key/Properties/Enabled: 'perhaps' is not" in text for *_, text in found)
