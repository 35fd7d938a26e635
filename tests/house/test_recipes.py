"""Perform each recipe of the README on a copy of the tree: all its steps are named there, and each is needed."""

import os
import re
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.house.sources import ROOT

pytestmark = pytest.mark.slow

COPIED = ("lambdas", "agent", "cli", "policies", "docs/runbooks", "tests/fakes.py", "tests/__init__.py")
RECIPES = ROOT / "README.md"
DETECTION = ROOT / "docs" / "detection.md"


@dataclass(frozen=True)
class Step:
    """An edit of one file: `text` follows the line that begins with `after`, or is the content of a new file."""

    path: str
    text: str
    after: str = ""

    def apply(self, tree: Path) -> None:
        path = tree / self.path
        if not self.after:
            path.write_text(self.text)
            return
        lines = path.read_text().splitlines(keepends=True)
        index = next(index for index, line in enumerate(lines) if line.startswith(self.after))
        path.write_text("".join([*lines[: index + 1], self.text, *lines[index + 1 :]]))


@dataclass(frozen=True)
class Recipe:
    """A recipe: its steps, and a script that exits with 0 once all of them are done."""

    name: str
    steps: tuple[Step, ...]
    script: str
    page: Path = RECIPES


CORE = "lambdas/rerail"
ACTION = '''

@dataclass(frozen=True, slots=True)
class RebootNode(ActionTraits):
    """Reboot a node."""

    RANK = 7
    METRIC_LABEL = "reboot"

    node: str


Action = Action | RebootNode
'''
BRANCH = """            case action if type(action).__name__ == "RebootNode":
                self.jobs.reboot(action.node)
"""
RUN_ACTION = """
from dataclasses import replace
from rerail.messages.messages import JobStateChanged
from rerail.messages.service_metrics import ActionLabel
from rerail.model import actions
from rerail.ports import Jobs
from tests.fakes import World

world, rebooted = World(), []
world.sagemaker.submit("gpt")
world.supervisor().handle(JobStateChanged("gpt"))
assert hasattr(Jobs, "reboot")
world.sagemaker.reboot = rebooted.append
assert ActionLabel(actions.RebootNode.METRIC_LABEL)
run = world.run()
world.supervisor()._act(replace(run, pending=(*run.pending, actions.RebootNode("i-1"))), found=())
assert rebooted == ["i-1"], rebooted
"""
RECIPE_LIST = (
    Recipe(
        "A sign of a cause",
        (
            Step(
                f"{CORE}/diagnosis/symptoms.py",
                '    _rule("coolant", Cause.HARDWARE, r"coolant pressure is low"),\n',
                "RULES: tuple",
            ),
        ),
        "from rerail.diagnosis.classify import diagnose\n"
        "assert diagnose('RuntimeError: coolant pressure is low').rule == 'coolant'",
    ),
    Recipe(
        "A cause",
        (
            Step(f"{CORE}/model/causes.py", '    COOLING = "cooling"\n', "    INFRASTRUCTURE ="),
            Step(
                f"{CORE}/model/policy.py",
                "            case Cause.COOLING:\n                return self.hardware\n",
                "        match cause:",
            ),
            Step(
                f"{CORE}/diagnosis/symptoms.py",
                '    _rule("coolant", Cause.COOLING, r"coolant pressure is low"),\n',
                "RULES: tuple",
            ),
        ),
        "from rerail.diagnosis.classify import diagnose\nfrom rerail.model.policy import Retries\n"
        "assert Retries().of(diagnose('coolant pressure is low').cause) == Retries().hardware\n"
        "assert diagnose('coolant pressure is low').cause == 'cooling'",
    ),
    Recipe(
        "A detector",
        (
            Step(
                f"{CORE}/detection/cold_loss.py",
                '"""Detect a loss below zero."""\n\nfrom rerail.model.finding import Finding, Kind, Level\n\n\n'
                "def find_overdue(liveness, now, detection):\n"
                '    """Return a warning."""\n'
                '    return Finding(Kind.COLD_LOSS, Level.WARN, None, None, "cold", now)\n',
            ),
            Step(f"{CORE}/model/finding.py", '    COLD_LOSS = "cold_loss"\n', "    NON_FINITE ="),
            Step(f"{CORE}/detection/detectors.py", "    cold_loss.find_overdue,\n", "OVERDUE_DETECTORS ="),
            Step(f"{CORE}/detection/detectors.py", "from rerail.detection import cold_loss\n", "from typing import"),
        ),
        "from datetime import UTC, datetime\nfrom rerail.detection.detectors import DetectorState, find_overdue\n"
        "from rerail.model.thresholds import Thresholds\n"
        "findings = find_overdue(DetectorState(), datetime(2026, 1, 1, tzinfo=UTC), Thresholds())\n"
        "assert [finding.kind for finding in findings] == ['cold_loss']",
        DETECTION,
    ),
    Recipe(
        "A remedy",
        (
            Step(
                f"{CORE}/decisions/remedies.py",
                '    lambda run, failure, policy: Hold("the new rule applies", "do nothing"),\n',
                "RULES: tuple",
            ),
        ),
        "from datetime import datetime\n"
        "from rerail.decisions.remedies import Failure, choose_remedy\n"
        "from rerail.diagnosis.classify import diagnose\n"
        "failure = Failure(diagnose('killed'), None, None, datetime.min)\n"
        "assert choose_remedy(None, failure, None).why == 'the new rule applies'",
    ),
    Recipe(
        "An action",
        (
            Step(f"{CORE}/model/actions.py", ACTION, "Action = "),
            Step(f"{CORE}/messages/service_metrics.py", '    REBOOT = "reboot"\n', "    CREATE ="),
            Step(f"{CORE}/supervisor/supervisor.py", BRANCH, "        match action:"),
            Step(f"{CORE}/ports.py", "    def reboot(self, node: str) -> None:\n        ...\n\n", "class Jobs("),
        ),
        RUN_ACTION,
    ),
    Recipe(
        "A notification target",
        (
            Step(
                f"{CORE}/notices/notifiers/targets.py",
                'NOTIFIERS = (*NOTIFIERS, NotificationTarget("siren", "Rerail Siren", lambda notice, links: {}))\n',
                "NOTIFIERS =",
            ),
        ),
        "import wiring.notify\nassert 'siren' in [target.name for target in wiring.notify.NOTIFIERS]",
    ),
    Recipe(
        "A runbook",
        (
            Step(f"{CORE}/model/runbooks.py", '    LEAK = "leak"\n', "class Runbook("),
            Step("docs/runbooks/leak.md", "# Coolant leaks\n"),
        ),
        "from pathlib import Path\nfrom rerail.model.runbooks import Runbook\n"
        "assert Runbook('leak')\n"
        "assert {book.value for book in Runbook} <= {path.stem for path in Path('docs/runbooks').glob('*.md')}",
    ),
    Recipe(
        "A command",
        (
            Step("cli/greet.py", '"""Greet."""\n\n\ndef greet() -> None:\n    """Greet."""\n    print("hello")\n'),
            Step("cli/commands.py", "greet        Greet.\n", "SUMMARIES = "),
            Step("cli/keys.py", "greet: none\n", "TEXT = "),
        ),
        "import subprocess, sys\nfrom cli.commands import COMMANDS\nfrom cli.keys import KEYS\n"
        "assert 'greet' in KEYS and 'greet' in COMMANDS\n"
        "said = subprocess.run([sys.executable, '-m', 'cli.main', 'greet'], capture_output=True, text=True)\n"
        "assert said.stdout == 'hello\\n', said",
    ),
    Recipe(
        "A budget",
        (
            Step(f"{CORE}/model/policy.py", "    # Leaks per run.\n    leaks: int = 3\n", "class Limits"),
            Step("policies/default.toml", "leaks = 3\n", "[limits]"),
        ),
        "from pathlib import Path\nfrom rerail.model.policy import Policy, parse_policy, to_toml\n"
        "text = Path('policies/default.toml').read_text()\n"
        "assert parse_policy(text, name='default').limits.leaks == 3 and 'leaks = 3' in text",
    ),
)


def copy_tree(target: Path) -> Path:
    """Copy what the recipes change or run."""
    for name in COPIED:
        source = ROOT / name
        if source.is_dir():
            shutil.copytree(source, target / name, ignore=shutil.ignore_patterns("__pycache__"))
        elif source.exists():
            (target / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(source, target / name)
    return target


def run_script(tree: Path, script: str) -> subprocess.CompletedProcess[str]:
    """Run a script on the copy, with the copy's modules only."""
    path = os.pathsep.join(str(tree / name) for name in ("lambdas", "agent", "."))
    environment = {**os.environ, "PYTHONPATH": path, "PYTHONDONTWRITEBYTECODE": "1", "AWS_DEFAULT_REGION": "eu-west-1"}
    return subprocess.run([sys.executable, "-c", script], cwd=tree, env=environment, capture_output=True, text=True)


def read_recipe(recipe: Recipe) -> str:
    """Return the text of the recipe as a reader finds it."""
    text = recipe.page.read_text()
    if recipe.page == DETECTION:
        return text.partition("## Write a new detector")[2]
    match = re.search(rf"^- \*\*{recipe.name}:\*\*(.*?)(?=^- \*\*|^## )", text, re.MULTILINE | re.DOTALL)
    assert match, f"the README has no recipe '{recipe.name}'"
    return match[1]


@pytest.mark.parametrize("recipe", RECIPE_LIST, ids=lambda recipe: recipe.name)
def test_a_recipe_names_every_step_and_needs_it(recipe: Recipe, tmp_path: Path) -> None:
    """With all steps the change works; without any one of them it does not; the page names the file of each."""
    tree, text = copy_tree(tmp_path), read_recipe(recipe)
    originals = {step.path: (tree / step.path).read_text() for step in recipe.steps if (tree / step.path).exists()}
    assert run_script(tree, recipe.script).returncode != 0, "the check must fail before the first step"
    for left_out in (*recipe.steps, None):
        for step in recipe.steps:
            (tree / step.path).unlink(missing_ok=True)
            if step.path in originals:
                (tree / step.path).write_text(originals[step.path])
        for step in recipe.steps:
            if step is not left_out:
                step.apply(tree)
        done = run_script(tree, recipe.script)
        assert (done.returncode == 0) is (left_out is None), f"without {left_out and left_out.path}: {done.stderr}"
    for step in recipe.steps:
        folder, _, name = step.path.removeprefix(f"{CORE}/").rpartition("/")
        assert name in text or f"{folder}/" in text, f"'{recipe.name}' does not name {step.path}"
