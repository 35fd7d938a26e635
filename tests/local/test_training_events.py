"""The training API is part of the same AWS: its events reach the rules of the template."""

from local.stack import LocalAws
from tests.local.waiting import Mailbox


def test_change_of_a_job_reaches_the_rule_of_the_product(aws: LocalAws) -> None:
    """A job that fails at once, since its image is not known here, is heard of through the default bus, in order."""
    aws.client("s3").create_bucket(Bucket="training-output")
    aws.client("sagemaker").create_training_job(
        TrainingJobName="heard-of",
        AlgorithmSpecification={"TrainingImage": "unknown:1", "TrainingInputMode": "File"},
        RoleArn="arn:aws:iam::000000000000:role/training",
        OutputDataConfig={"S3OutputPath": "s3://training-output/"},
        ResourceConfig={"InstanceType": "ml.m5.large", "InstanceCount": 1, "VolumeSizeInGB": 1},
        StoppingCondition={"MaxRuntimeInSeconds": 60},
    )
    mailbox = Mailbox(aws, "Heard")
    [failed] = mailbox.find(lambda message: message["body"]["detail"]["TrainingJobStatus"] == "Failed")
    assert failed["body"]["source"] == "aws.sagemaker"
    assert failed["body"]["resources"] == ["arn:aws:sagemaker:us-east-1:000000000000:training-job/heard-of"]
    assert mailbox.messages[0]["body"]["detail"]["SecondaryStatus"] == "Starting"
