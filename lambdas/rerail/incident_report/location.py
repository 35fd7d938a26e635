"""Where a run's incident report lies: known to who keeps it, who links it, and the stack."""


def bucket_name(account: str, region: str) -> str:
    """The bucket of the reports, without "sagemaker" in its name: AmazonSageMakerFullAccess may write to those."""
    return f"rerail-reports-{account}-{region}"


def page_key(run: str) -> str:
    """The run's page in that bucket."""
    return f"runs/{run}/report.html"
