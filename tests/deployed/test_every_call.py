"""Every AWS call of a recovery, broken in every way: about an hour. tests/deployed/test_crashes.py is a small version.

The call sites are those that runs without any fault meet, so that no list of them is kept by hand. RERAIL_EVERY=100
plays each hundredth point only."""

import os
from pathlib import Path

import pytest
from botocore import xform_name

from tests.deployed.faults.faulty_aws import modelled_errors
from tests.deployed.faults.points import plans, points
from tests.deployed.faults.runners import Runners, learn
from tests.iam.sites import sites

EVERY = int(os.environ.get("RERAIL_EVERY", "1"))
# A run waits most of the time.
RUNNERS = 2 * (os.cpu_count() or 1)
# Call sites that no recovery reaches, or only after another fault.
NOT_REACHED = {
    "dynamodb.all_runs": "only the command line lists all runs",
    "dynamodb.ignore": "a job without a policy tag has no run",
    "hyperpod.recall": "an event of a HyperPod cluster belongs to no run",
    "hyperpod.keep": "an event of a HyperPod cluster belongs to no run",
    "shards.hand_on": "only a sweep of more runs than one invocation takes fans out",
    "quarantine._find_upload": "an upload is found only after a fault has left it unfinished",
    "quarantine._abort_uploads": "only a file that changes while it is copied leaves an upload behind",
    "quarantine.delete": "only files that are overwritten in place are copied, and older copies deleted",
}


@pytest.mark.slow
@pytest.mark.rehearsal
def test_a_run_survives_every_broken_call(tmp_path: Path):
    """It completes with the attempts of an undisturbed run, one at a time; nothing is lost without an alarm."""
    with Runners(tmp_path, RUNNERS) as runners:
        lessons = list(runners.lessons())
        assert [lesson.wrong for lesson in lessons if lesson.wrong] == []
        learnt = learn(lessons)
        met = {site for names in learnt.met.values() for site in names}
        chosen = list(points(learnt.met, modelled_errors(sorted(met))))[::EVERY]
        problems, known, reached = [], set(met), 0
        for plan, plan_result in runners.run_plans(plans(chosen, seed=1), learnt):
            known |= plan_result.sites
            reached += sum(outcome.reached for outcome in plan_result.outcomes)
            problems += [f"{outcome.point}: {outcome.wrong}" for outcome in plan_result.outcomes if outcome.wrong]
            if plan_result.together:
                problems.append(f"{' and '.join(map(str, plan.faults))}: {plan_result.together}")
    print(f"{len(chosen):,} points at {len(met)} call sites, {reached:,} of them reached, {len(problems)} not survived")
    assert problems == []
    # Whether a call comes at all in a phase depends on timing.
    assert reached >= 0.99 * len(chosen) - 1
    assert unmet(known) <= set(NOT_REACHED)


def test_the_calls_that_no_recovery_reaches_are_calls_in_the_code():
    assert set(NOT_REACHED) <= {site.name for site in sites()}


def unmet(known: set[str]) -> set[str]:
    """Return the call sites of the adapters that are not among these, named `function service:Operation place`."""
    called = {(name.split()[2], xform_name(name.split()[1].partition(":")[2])) for name in known}
    return {site.name for site in sites() if (site.name, site.method) not in called and "presigned" not in site.method}
