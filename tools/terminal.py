"""The terminal pictures of docs/images: a fleet and a demo, as Rich drew them on a local AWS and recorded them."""

import gzip
import io
import re
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from secrets import token_hex

from playwright.sync_api import Browser
from rich.console import Console, RenderableType
from rich.terminal_theme import MONOKAI

from cli import place
from cli.demo.scenarios import SCENARIOS, Name
from cli.demo.screen import DemoScreen
from cli.demo.stage import Stage, poll_until_over, scale_policy
from cli.fleet import FleetReader, select_rows
from cli.place import Place
from cli.status import ENDED_SHOWN, make_picture
from local.sagemaker.control import inject
from local.stack import LocalAws
from rerail.aws.dynamodb import DynamoRuns
from rerail.incident_report.fleet import FleetStatus
from rerail.model.codec import dumps, loads
from rerail.model.metrics import make_definitions
from rerail.model.policy import parse_policy, to_toml
from rerail.model.run import Run, RunState
from rerail.model.signatures import VARIABLE
from rerail.requests.relaunch import POLICY_TAG
from tools.browser import ROOT

IMAGES, RECORDED = ROOT / "docs" / "images", ROOT / "tools" / "recorded"
FLEET, DEMO = RECORDED / "fleet.json.gz", RECORDED / "demo.svg.gz"
WORKER = ROOT / "tools" / "fleet_worker.py"
BUCKET, ROLE = "sagemaker-fleet", "arn:aws:iam::000000000000:role/FleetSageMakerRole"
SCALE, PATIENCE_S = 60.0, 420.0
# Each run: its policy, its machines, and the environment of its script.
RUNS = {
    "llama-3-8b-sft": ("default", "ml.p5.48xlarge", {}),
    "vit-h-14-imagenet": ("default", "ml.p4d.24xlarge", {}),
    "mixtral-pretrain": ("default", "ml.p5.48xlarge", {}),
    "whisper-large-ft": ("default", "ml.g5.12xlarge", {"OUT_OF_MEMORY_AT": "160"}),
    "dit-xl-video": ("approve", "ml.p4d.24xlarge", {}),
    "bert-base-distil": ("default", "ml.g5.12xlarge", {"STEPS": "120"}),
}
STRUCK = ("vit-h-14-imagenet", "dit-xl-video")
FONT = re.compile(r"@font-face \{[^}]*\}")
LARGEST = 300_000


def record_terminals() -> None:
    """Record both again, on a local AWS each."""
    RECORDED.mkdir(exist_ok=True)
    FLEET.write_bytes(gzip.compress(dumps(_played_fleet()).encode(), 9, mtime=0))
    DEMO.write_bytes(gzip.compress(_played_demo().encode(), 9, mtime=0))


def terminal_pictures(chromium: Browser) -> Iterator[Path]:
    """`rerail status` and the end of `rerail demo`, as they looked."""
    fleet = loads(FleetStatus, gzip.decompress(FLEET.read_bytes()).decode())
    rows = list(select_rows(fleet.rows, states=(), policy="", ended=ENDED_SHOWN))
    status = _drawn("rerail status --watch", make_picture(fleet, rows, width=118), width=118)
    for name, svg in (("status", status), ("demo", gzip.decompress(DEMO.read_bytes()).decode())):
        page = chromium.new_page(viewport={"width": 1240, "height": 900})
        page.set_content(f"<body style='margin:0'>{svg}</body>")
        path = IMAGES / f"{name}.png"
        page.locator("svg").first.screenshot(path=str(path), omit_background=True)
        page.close()
        assert path.stat().st_size < LARGEST, f"{path} is too large for the docs"
        yield path


def _drawn(title: str, *parts: RenderableType, width: int) -> str:
    """A terminal window as SVG, in the font of this machine: none is fetched from elsewhere."""
    console = Console(record=True, width=width, file=io.StringIO(), force_terminal=True, color_system="truecolor")
    console.print(*parts)
    return FONT.sub("", console.export_svg(title=title, theme=MONOKAI)).replace("Fira Code", "DejaVu Sans Mono")


def _played_fleet() -> FleetStatus:
    """Six runs: two lose their machines, one runs out of memory, one asks before it is relaunched, one completes."""
    with _local_aws() as aws:
        where = Place("stack Rerail in eu-west-1", aws.outputs)
        aws.client("s3").create_bucket(Bucket=BUCKET)
        for policy in ("default", "approve"):
            _hasten(aws, policy)
        for name, (policy, machines, environment) in RUNS.items():
            _submit(aws, name, policy, machines, environment)
        _until(where.runs, "saves", lambda runs: all(_has_saved(aws, name) for name in STRUCK))
        for name in STRUCK:
            inject(aws.endpoint_url, "internal_error", TrainingJobName=name)
        _until(where.runs, "the ends of all stories", _is_finished)
        return FleetReader(where).read()


@contextmanager
def _local_aws() -> Iterator[LocalAws]:
    """One of its own, on the fast clock; this process's clients talk to it."""
    with (
        tempfile.TemporaryDirectory() as folder,
        LocalAws(Path(folder), scale=SCALE, schedule_scale=SCALE, assemblies=place.SYNTHESES) as aws,
    ):
        place.use_local(aws.endpoint_url)
        yield aws


def _hasten(aws: LocalAws, policy: str) -> None:
    ssm, name = aws.client("ssm"), f"{aws.outputs['PolicyPrefix']}/{policy}"
    read = parse_policy(ssm.get_parameter(Name=name)["Parameter"]["Value"], name=policy)
    ssm.put_parameter(Name=name, Value=to_toml(scale_policy(read, SCALE)), Overwrite=True, Type="String")


def _submit(aws: LocalAws, name: str, policy: str, machines: str, environment: dict[str, str]) -> None:
    aws.client("sagemaker").create_training_job(
        TrainingJobName=name,
        RoleArn=ROLE,
        AlgorithmSpecification={
            "TrainingImage": "rerail-training:fleet",
            "TrainingInputMode": "File",
            "ContainerEntrypoint": ["python", str(WORKER)],
            "MetricDefinitions": make_definitions(),
        },
        ResourceConfig={"InstanceType": machines, "InstanceCount": 1, "VolumeSizeInGB": 30},
        CheckpointConfig={"S3Uri": f"s3://{BUCKET}/{name}/"},
        OutputDataConfig={"S3OutputPath": f"s3://{BUCKET}/output/"},
        StoppingCondition={"MaxRuntimeInSeconds": 86400},
        Environment={VARIABLE: token_hex(32), **environment},
        Tags=[{"Key": POLICY_TAG, "Value": policy}],
    )


def _has_saved(aws: LocalAws, name: str) -> bool:
    return bool(aws.client("s3").list_objects_v2(Bucket=BUCKET, Prefix=f"{name}/step-").get("KeyCount"))


def _is_finished(runs: dict[str, Run]) -> bool:
    """Mended, held, asking and completed, as each of them must be."""
    states = {name: run.state for name, run in runs.items()}
    recovered = runs["vit-h-14-imagenet"].incidents[-1:]
    return (
        states["whisper-large-ft"] is RunState.HELD
        and runs["dit-xl-video"].proposal is not None
        and states["bert-base-distil"] is RunState.COMPLETED
        and bool(recovered and recovered[0].recovered)
    )


def _until(runs: DynamoRuns, what: str, look: Callable[[dict[str, Run]], bool]) -> None:
    end = time.monotonic() + PATIENCE_S
    while time.monotonic() < end:
        found = {name: run for name, run in runs.all_runs() if run}
        if found.keys() == RUNS.keys() and look(found):
            return
        time.sleep(0.5)
    raise TimeoutError(f"{what}: not within {PATIENCE_S:.0f} s; the runs are {found}")


def _played_demo() -> str:
    """The live picture of `rerail demo`, at its end."""
    name = Name.CRASH
    with _local_aws() as aws:
        stage = Stage(aws, SCENARIOS[name], run_id=f"demo-{name}", scale=SCALE)
        stage.set_up()
        with DemoScreen(Console(file=io.StringIO()), steps=stage.scenario.steps) as screen:
            for looked in poll_until_over(stage, within_s=PATIENCE_S):
                screen.show(looked)
            return _drawn("rerail demo", screen.draw(stage), width=118)
