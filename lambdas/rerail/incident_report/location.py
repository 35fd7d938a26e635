"""The bucket and keys of the report pages, shared by the functions and the stack."""

# The page of all runs.
FLEET_KEY = "runs.html"


def make_bucket_name(account: str, region: str) -> str:
    """Return the bucket of the reports.

    Its name avoids "sagemaker": AmazonSageMakerFullAccess grants write access to buckets with that name part."""
    return f"rerail-reports-{account}-{region}"


def make_page_key(run: str) -> str:
    """Return the key of the run's page."""
    return f"runs/{run}/report.html"


def read_page_key(key: str) -> str:
    """Return the run whose page has the key; "" if it is not the key of a run's page."""
    run = key.removeprefix("runs/").removesuffix("/report.html")
    return run if make_page_key(run) == key else ""
