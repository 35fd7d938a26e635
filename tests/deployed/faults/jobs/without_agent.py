"""A script that knows nothing of Rerail: saves as DeepSpeed does, and resumes from what it finds in its folder.

One file of each save is written to S3 in parts, as a large one would be. Told so by the bench, it finds its machine
broken, or prints a loss that is no number."""

import json
import os
import re
import time

from marks import BASE, RUN, SECONDS, STEPS_A_SAVE, is_requested, live, mark  # type: ignore[import-not-found]
from signed import send  # type: ignore[import-not-found]

FOLDER = BASE / "checkpoints"
BUCKET = os.environ["BUCKET"]


def s3(verb: str, key: str, body: bytes | None = None, **query: str) -> tuple[bytes, str]:
    """Send a request to the bucket; return the answer and the ETag."""
    _, content, etag = send(verb, BUCKET, key, body, **query)
    return content, etag


def upload_in_parts(key: str, content: bytes) -> None:
    begun, _ = s3("POST", key, uploads="")
    upload = re.search(rb"<UploadId>(.*?)</UploadId>", begun)[1].decode()  # type: ignore[index]
    _, etag = s3("PUT", key, content, partNumber="1", uploadId=upload)
    parts = f"<Part><PartNumber>1</PartNumber><ETag>{etag}</ETag></Part>"
    xml = f"<CompleteMultipartUpload>{parts}</CompleteMultipartUpload>"
    s3("POST", key, xml.encode(), uploadId=upload)


def save(step: int) -> None:
    """The state, and then the file that names the newest save."""
    name = f"global_step{step}"
    upload_in_parts(f"{RUN}/{name}/zero_pp_rank_0_mp_rank_00_optim_states.pt", f"{RUN} optimizer {step}".encode())
    (FOLDER / name).mkdir(parents=True, exist_ok=True)
    (FOLDER / name / "mp_rank_00_model_states.pt").write_bytes(f"{RUN} model {step}".encode())
    partial = FOLDER / "latest.tmp"
    partial.write_text(name)
    partial.rename(FOLDER / "latest")
    mark("saved", step)


def found() -> int:
    """The step that the newest save is named to be of; 0 for a start."""
    latest = FOLDER / "latest"
    return int(latest.read_text().removeprefix("global_step")) if latest.exists() else 0


def break_down(step: int) -> None:
    """The structured failure file, and a non-zero exit."""
    report = {"rerail": 1, "cause": "hardware", "error": "uncorrectable ECC error", "step": step, "rank": 0}
    (BASE / "output").mkdir(exist_ok=True)
    (BASE / "output" / "failure").write_text(json.dumps(report))
    raise SystemExit(1)


def main() -> None:
    live()
    step, ruined = found(), False
    mark("from", step)
    while not is_requested("finish"):
        step += 1
        time.sleep(SECONDS)
        bad = is_requested("nan")
        if step % STEPS_A_SAVE == 0:
            print(f"rerail step={step} loss={'nan' if bad else f'{1 / step:.9g}'} nonfinite={int(bad)}", flush=True)
        if step % STEPS_A_SAVE == 0 and (not bad or not ruined):
            save(step)
            ruined = bad
        if is_requested("broken"):
            break_down(step)
    mark("finished", step)


if __name__ == "__main__":
    main()
