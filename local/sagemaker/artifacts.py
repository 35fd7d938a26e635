"""What is kept of a job that has ended: /opt/ml/model and /opt/ml/output/data, stored under S3OutputPath."""

import io
import tarfile
from pathlib import Path
from typing import Any

from .hosts import Host
from .storage import Storage, split_uri


def upload_artifacts(storage: Storage, request: dict[str, Any], hosts: list[Host], *, with_model: bool) -> str | None:
    """Return the S3 URI of the model; a failed job has none. Among equal names, the file of the last host is kept."""
    output = request["OutputDataConfig"]
    uri = f"{output['S3OutputPath'].rstrip('/')}/{request['TrainingJobName']}/output"
    packed = output.get("CompressionType", "GZIP") != "NONE"
    _upload(storage, _merged([host.base / "output" / "data" for host in hosts]), f"{uri}/output", packed, may_skip=True)
    if not with_model:
        return None
    return _upload(storage, _merged([host.base / "model" for host in hosts]), f"{uri}/model", packed)


def _upload(storage: Storage, files: dict[str, Path], uri: str, packed: bool, may_skip: bool = False) -> str:
    bucket, key = split_uri(uri)
    if packed:
        if files or not may_skip:
            storage.store(bucket, f"{key}.tar.gz", _archive(files))
        return f"{uri}.tar.gz"
    for name, path in files.items():
        storage.store(bucket, f"{key}/{name}", path.read_bytes())
    return f"{uri}/"


def _merged(folders: list[Path]) -> dict[str, Path]:
    return {
        path.relative_to(folder).as_posix(): path for folder in folders for path in folder.rglob("*") if path.is_file()
    }


def _archive(files: dict[str, Path]) -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w:gz") as archive:
        for name, path in sorted(files.items()):
            archive.add(path, arcname=name)
    return buffer.getvalue()
