"""Build the CDK app with its checks, and write it as a cloud assembly."""

import json
import os
import sys

import aws_cdk as cdk

from rerail.model.errors import PolicyError
from stacks import ROOT
from stacks.options import BadOption, DeploymentOptions, Organization, refuse_misspelt
from stacks.organization_stack import add_organization
from stacks.supervisor_stack import SupervisorStack
from stacks.training_image_stack import TrainingImageStack

# "false" turns off cdk-nag and the CDK's own validation, which reads the variable too: for local AWS emulators only.
VALIDATION = "CDK_VALIDATION"
OBSERVE_ONLY = (
    "note: {missing}, so this template can only observe: it may stop or create no job and read no checkpoints."
    " To let it act, set trainingRoleArns and checkpointBuckets in cdk.json or with -c (`rerail deploy` proposes both)"
)


def write() -> str | None:
    """Write the assembly; return an error in one line if a file or the context is invalid, otherwise None."""
    try:
        build().synth()
    except (PolicyError, BadOption) as error:
        return f"error: {error}"
    except RuntimeError as error:  # all that comes back from Node
        if "ValidationFailed" not in str(error):
            raise
        return "error: the findings above are neither fixed nor acknowledged (see stacks/parts/permissions.py)"
    return None


def build() -> cdk.App:
    """Return the app. Raises PolicyError or BadOption if a file or the context is invalid."""
    # The CDK CLI hands over the context of cdk.json itself, and what it hands over wins.
    context = json.loads((ROOT / "cdk.json").read_text())["context"]
    app = cdk.App(outdir=os.environ.get("CDK_OUTDIR", "cdk.out"), analytics_reporting=False, context=context)
    if os.environ.get(VALIDATION) != "false":
        # Loads a second library into Node, so only where it is used.
        from cdk_nag import AwsSolutionsChecks

        cdk.Validations.of(app).add_plugins(AwsSolutionsChecks(app))
    refuse_misspelt(app.node.get_all_context())
    options = DeploymentOptions.from_context(app.node)
    if options.observe_only:
        print(OBSERVE_ONLY.format(missing=options.observe_only), file=sys.stderr)
    for name, value in options.tags.items():
        cdk.Tags.of(app).add(name, value)
    SupervisorStack(app, "Rerail", options=options, synthesizer=_synthesizer())
    TrainingImageStack(app, "RerailTrainingImage", synthesizer=_synthesizer())
    if organization := Organization.from_context(app.node):
        add_organization(app, organization, options, _synthesizer)
    return app


def _synthesizer() -> cdk.DefaultStackSynthesizer:
    # The rule would look up the version of the bootstrap stack, which a stand-in for AWS does not have.
    return cdk.DefaultStackSynthesizer(generate_bootstrap_version_rule=False)
