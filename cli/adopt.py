"""`rerail adopt`: have a running job supervised that was tagged after its start."""

import getpass
import json
from typing import Annotated

import typer

from cli import place
from cli.operators import put_command, say
from cli.place import AsJson, Local
from rerail.messages.messages import ADOPT, JOB_NAME
from rerail.model.errors import JobNotFound
from rerail.requests.relaunch import POLICY_TAG


def adopt(
    job: Annotated[str, typer.Argument(help="The training job.")], local: Local = False, as_json: AsJson = False
) -> None:
    """Supervise a running job that was tagged after its start: SageMaker sends no event about a tag."""
    where = place.find(local=local)
    if not JOB_NAME.fullmatch(job):
        place.fail(f"{job!r} is not a valid training job name", "use 1-63 letters, digits or hyphens")
    if run := where.runs.run_of(job):
        show = where.complete_text(f"rerail show {run}")
        place.fail(f"{job} is supervised already, as the run {run}", f"see `{show}`")
    from rerail.aws.sagemaker import SageMakerJobs

    jobs = SageMakerJobs()
    try:
        found, _ = jobs.describe(job)
        tags = jobs.tags(found.arn)
    except JobNotFound as error:
        place.fail(str(error), "`aws sagemaker list-training-jobs` lists them")
    if POLICY_TAG not in tags:
        tag = f"Key={POLICY_TAG},Value=default"
        place.fail(
            f"{job} has no tag {POLICY_TAG}", f"`aws sagemaker add-tags --tags {tag} --resource-arn {found.arn}`"
        )
    detail = {"job": job, "verb": ADOPT, "who": getpass.getuser()}
    id = put_command(where, detail)
    if as_json:
        typer.echo(json.dumps({**detail, "event": id}, indent=2))
    else:
        say(f"asked: adopt {job}. `{where.complete_text(f'rerail show {job}')}` shows the run within a minute.")
