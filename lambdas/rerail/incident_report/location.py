"""The bucket and key of a run's incident report, shared by the functions and the stack."""


def make_bucket_name(account: str, region: str) -> str:
    """Return the bucket of the reports.

    Its name avoids "sagemaker": AmazonSageMakerFullAccess grants write access to buckets with that name part."""
    return f"rerail-reports-{account}-{region}"


def make_page_key(run: str) -> str:
    """Return the key of the run's page."""
    return f"runs/{run}/report.html"
