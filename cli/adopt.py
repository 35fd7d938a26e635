"""`rerail adopt`: have a running job supervised that was tagged after its start."""

import getpass
import json
from typing import Annotated

import typer
from botocore.exceptions import ClientError

from cli import place
from cli.operators import say
from cli.place import AsJson, Local
from rerail.messages.messages import ADOPT, COMMAND, JOB_NAME, OPERATOR
from rerail.requests.relaunch import POLICY_TAG


def adopt(
    job: Annotated[str, typer.Argument(help="The training job.")], local: Local = False, as_json: AsJson = False
) -> None:
    """Supervise a running job that was tagged after its start: SageMaker sends no event about a tag."""
    where = place.find(local=local)
    if not JOB_NAME.fullmatch(job):
        place.fail(f"{job!r} is not a valid training job name", "use 1-63 letters, digits or hyphens")
    if run := where.runs.run_of(job):
        show = where.complete_command(f"rerail show {run}")
        place.fail(f"{job} is supervised already, as the run {run}", f"see `{show}`")
    sagemaker = where.client("sagemaker")
    try:
        arn = sagemaker.describe_training_job(TrainingJobName=job)["TrainingJobArn"]
    except ClientError as error:
        if error.response["Error"]["Code"] not in ("ValidationException", "ResourceNotFound"):
            raise
        place.fail(f"SageMaker has no training job {job}", "`aws sagemaker list-training-jobs` lists them")
    pages = sagemaker.get_paginator("list_tags").paginate(ResourceArn=arn)
    if POLICY_TAG not in {tag["Key"] for page in pages for tag in page["Tags"]}:
        tag = f"Key={POLICY_TAG},Value=default"
        place.fail(f"{job} has no tag {POLICY_TAG}", f"`aws sagemaker add-tags --tags {tag} --resource-arn {arn}`")
    detail = {"job": job, "verb": ADOPT, "who": getpass.getuser()}
    entry = {"Source": OPERATOR, "DetailType": COMMAND, "Detail": json.dumps(detail)}
    answer = where.client("events").put_events(Entries=[{"EventBusName": where.outputs["BusName"], **entry}])
    if answer["FailedEntryCount"]:
        place.fail(f"the bus refused the command: {answer['Entries'][0].get('ErrorMessage')}", "try again")
    if as_json:
        typer.echo(json.dumps({**detail, "event": answer["Entries"][0]["EventId"]}, indent=2))
    else:
        say(f"asked: adopt {job}. `{where.complete_command(f'rerail show {job}')}` shows the run within a minute.")
