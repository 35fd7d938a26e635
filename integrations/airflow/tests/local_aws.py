"""A program in Rerail's own environment: the local AWS with the deployed template, for tests in Airflow's.

It prints one line of JSON with what clients need, then answers one line of JSON for each line that it reads: the name
of a method of Account and its arguments. It ends when its input does.
"""

import json
import sys
from pathlib import Path

from local import deploy
from local.pace import measure_pace
from local.stack import ACCOUNT, REGION, ROOT
from tests.deployed.conftest import ASSEMBLIES
from tests.deployed.jobs import Account, apart

METHODS = ("make_request", "inject_at_step", "jobs")


def main() -> None:
    """Serve until the input ends."""
    answers, sys.stdout = sys.stdout, sys.stderr
    pace = measure_pace()
    with apart(Path(sys.argv[1]), scale=pace.scale, schedule_scale=pace.scale, stack=None) as aws:
        assembly = deploy.synthesize(ROOT, ASSEMBLIES, context=deploy.LOCAL_SCOPE)
        aws.redeployed(deploy.deploy(assembly, "Rerail", aws.client))
        account = Account(aws, pace)
        account.set_up_for_tests()
        ready = {"endpoint": aws.endpoint_url, "region": REGION, "account": ACCOUNT, "real_s": pace.real(1.0)}
        print(json.dumps(ready), file=answers, flush=True)
        for line in sys.stdin:
            method, arguments, options = json.loads(line)
            if method not in METHODS:
                raise ValueError(f"method {method!r}: must be one of {', '.join(METHODS)}")
            print(json.dumps(getattr(account, method)(*arguments, **options)), file=answers, flush=True)
        letters = account.dead_letters()
        if letters:
            raise SystemExit(f"dead letters: {letters}")


if __name__ == "__main__":
    main()
