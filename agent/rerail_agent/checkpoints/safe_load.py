"""Load what a checkpoint contains without running code from it: pickles may only name the types listed here.

Others may be able to write where checkpoints are. Loaded without limits, a pickle runs any code in the job.
"""

import hashlib
import io
import pickle
from collections.abc import Mapping
from contextlib import AbstractContextManager, nullcontext
from importlib import import_module
from typing import Any

import torch
from torch.distributed.checkpoint import FileSystemReader
from torch.distributed.checkpoint.metadata import _MEM_FORMAT_ENCODING, Metadata

from rerail_agent.checkpoints.manifest import METADATA, DamagedCheckpoint

# What `.metadata` consists of, in PyTorch 2.4 to 2.13. Calling one of these does nothing but make a value.
METADATA_TYPES = {
    "torch": {"Size"},
    "torch.serialization": {"_get_layout"},
    "torch.distributed.checkpoint.filesystem": {"_StorageInfo"},
    "torch.distributed.checkpoint.metadata": {
        *("BytesStorageMetadata", "ChunkStorageMetadata", "Metadata", "MetadataIndex", "StorageMeta"),
        *("TensorProperties", "TensorStorageMetadata", "_MEM_FORMAT_ENCODING"),
    },
}
NUMPY_TYPES = "?bhilqBHILQefdFD"


class UnsafeValue(ValueError):
    """A plain value of a checkpoint has a type that is not loaded; the message names the key and the remedy."""


class MetadataUnpickler(pickle.Unpickler):
    """An unpickler for `.metadata` of torch.distributed.checkpoint that refuses all other types."""

    def find_class(self, module: str, name: str) -> Any:
        if name in METADATA_TYPES.get(module, ()):
            return super().find_class(module, name)
        if module == "torch" and isinstance(found := getattr(torch, name, None), torch.dtype):
            return found
        if (module, name) == ("builtins", "getattr"):
            return _get_memory_format
        raise pickle.UnpicklingError(f"{METADATA} contains {module}.{name}, which no checkpoint needs")


def _get_memory_format(owner: Any, name: Any) -> Any:
    """Return a member of PyTorch's enum of memory formats, which early releases of Python 3.11 pickle as getattr()."""
    if owner is _MEM_FORMAT_ENCODING and type(name) is str and name in owner.__members__:
        return owner[name]
    raise pickle.UnpicklingError(f"{METADATA} contains builtins.getattr, which no checkpoint needs")


class CheckpointReader(FileSystemReader):  # type: ignore[misc, unused-ignore]
    """The reader of torch.distributed.checkpoint, for one checkpoint whose manifest is known.

    `entry` is the manifest's entry for `.metadata`: what is unpickled are the bytes that it describes.
    """

    def __init__(self, path: Any, entry: Mapping[str, Any]) -> None:
        super().__init__(path)
        self._entry = entry

    def read_metadata(self, *args: Any, **kwargs: Any) -> Metadata:
        with self.fs.create_stream(self.fs.concat_path(self.path, METADATA), "rb") as file:
            content = file.read()
        expected = self._entry.get("sha256", "")
        if expected and hashlib.sha256(content).hexdigest() != expected:
            raise DamagedCheckpoint(f"{METADATA} does not match its checksum")
        metadata = load_metadata(content)
        metadata.storage_meta.load_id = self.load_id
        return metadata


def load_metadata(content: bytes) -> Metadata:
    """Return the index in `.metadata`; raises DamagedCheckpoint for anything else."""
    try:
        metadata = MetadataUnpickler(io.BytesIO(content)).load()
        if not isinstance(metadata, Metadata) or not metadata.storage_meta:
            raise TypeError(f"{METADATA} is not the index of a checkpoint")
        names = {info.relative_path for info in metadata.storage_data.values()}
        if strange := [name for name in names if not isinstance(name, str) or "/" in name or name in ("", ".", "..")]:
            raise ValueError(f"{METADATA} names a file outside the checkpoint's folder: {strange[0]!r:.100}")
    except Exception as error:  # a pickle that is not valid may cause any error
        raise DamagedCheckpoint(f"{METADATA} cannot be read: {error!s:.300}") from error
    return metadata


def load_value(content: io.BytesIO, key: str) -> Any:
    """Return a plain value; raises UnsafeValue for a type that neither PyTorch nor the script allows."""
    try:
        with _allow_numpy():
            return torch.load(content, map_location="cpu", weights_only=True)
    except pickle.UnpicklingError as error:
        reason = next((line for line in str(error).splitlines() if "GLOBAL" in line or "allowed" in line), str(error))
        raise UnsafeValue(
            f"the plain value {key} has a type that is not loaded from a checkpoint ({reason.strip()[:200]}): save it"
            " as numbers, texts, lists, tuples, dicts or tensors, or call torch.serialization.add_safe_globals([TYPE])"
            " before the state is saved and restored"
        ) from error


def find_unsafe_value(key: str, value: Any) -> str:
    """Return why a plain value of a state could not be loaded again; "" if it can, or is a tensor."""
    if value is None or isinstance(value, torch.Tensor) or type(value) in (bool, int, float, str):
        return ""
    content = io.BytesIO()
    torch.save(value, content)
    content.seek(0)
    try:
        load_value(content, key)
    except UnsafeValue as error:
        return str(error)
    return ""


def _allow_numpy() -> AbstractContextManager[Any]:
    """Allow arrays and numbers of NumPy, such as a random state, where it and PyTorch 2.5 are installed."""
    safe_globals = getattr(torch.serialization, "safe_globals", None)
    try:
        import numpy
    except ImportError:
        return nullcontext()
    if safe_globals is None:
        return nullcontext()
    try:
        # In NumPy 1.26 the package is there, and the module only once it is imported.
        multiarray = import_module("numpy._core.multiarray")
    except ImportError:
        multiarray = import_module("numpy.core.multiarray")
    kinds = {type(numpy.dtype(kind)) for kind in NUMPY_TYPES}
    functions = [multiarray._reconstruct, multiarray.scalar]
    allowed: AbstractContextManager[Any] = safe_globals([*functions, numpy.ndarray, numpy.dtype, *kinds])
    return allowed
