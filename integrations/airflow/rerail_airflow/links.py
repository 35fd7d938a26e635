"""Links of a task to its training job and to the run's incident report, both in the AWS console."""

from airflow.providers.amazon.aws.links.base_aws import BASE_AWS_CONSOLE_LINK, BaseAwsLink


class TrainingJobLink(BaseAwsLink):
    """The run's newest training job that the task knows of."""

    name = "SageMaker training job"
    key = "rerail_training_job"
    format_str = BASE_AWS_CONSOLE_LINK + "/sagemaker/home?region={region_name}#/jobs/{job}"


class IncidentReportLink(BaseAwsLink):
    """The run's incident report in S3."""

    name = "Rerail incident report"
    key = "rerail_incident_report"
    format_str = BASE_AWS_CONSOLE_LINK + "/s3/object/{bucket}?region={region_name}&prefix={report_key}"
