"""Locate the code to deploy, the choices and policies of an account, and the folder of local state.

A checkout has its choices in cdk.json and its policies in policies/. An installed command reads
`rerail-deploy.json` of the folder in which it is called, and the policies that this file names; without that file,
what came with the package.
"""

import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rerail.model.policy import Policy

# The code and the files that came with it.
ROOT = Path(__file__).resolve().parent.parent
IS_CHECKOUT = (ROOT / "pyproject.toml").is_file()
SHIPPED_CHOICES = ROOT / "cdk.json"
CHOICES = SHIPPED_CHOICES if IS_CHECKOUT else Path.cwd() / "rerail-deploy.json"
OWN_POLICIES = "rerail-policies"
# Far more than a policy or a project's settings need; the time for a key grows with the square of its dots.
MAX_TOML_BYTES, MAX_LINE_DOTS = 1_000_000, 1_000


def find_state_folder() -> Path:
    """Return the folder of local state: RERAIL_LOCAL_STATE, the checkout's .local, or the user's data folder."""
    if chosen := os.environ.get("RERAIL_LOCAL_STATE"):
        return Path(chosen)
    if IS_CHECKOUT:
        return ROOT / ".local"
    from platformdirs import user_data_path

    return user_data_path("rerail", appauthor=False)


def read_choices(file: Path = CHOICES) -> dict[str, Any]:
    """Return the context of the account's choices, or of those that came with the package where there is no file.

    Exit with an error if the file cannot be read."""
    import json

    try:
        text = (file if file.is_file() else SHIPPED_CHOICES).read_text(encoding="utf-8")
        context: dict[str, Any] = json.loads(text)["context"]
        return dict(context)
    except (OSError, ValueError, LookupError, TypeError) as error:
        from cli import place

        place.fail(f"{file}: no JSON object `context` can be read: {error}", "correct the file, or move it away")


def find_policies() -> Path:
    """Return the folder of policy files that the choices name."""
    folder = CHOICES.parent / str(read_choices().get("policiesFolder", "policies"))
    return folder if IS_CHECKOUT or (CHOICES.is_file() and folder.is_dir()) else ROOT / "policies"


def find_policy_file(name: str) -> Path:
    """Return the file of a policy, given by its name or by its path."""
    return Path(name) if name.endswith(".toml") else find_policies() / f"{name}.toml"


def read_toml_file(file: Path) -> str:
    """Return the text of a TOML file; raise OSError for a pipe and for what would take long to read."""
    if not file.is_file() or file.stat().st_size > MAX_TOML_BYTES:
        limit = f"must be a file of at most {MAX_TOML_BYTES:,} bytes"
        raise OSError(f"{file} {limit if file.exists() else 'does not exist'}")
    try:
        text = file.read_text(encoding="utf-8-sig")
    except UnicodeDecodeError as error:
        raise OSError(f"{file} is not in UTF-8: {error.reason} at byte {error.start}") from error
    if max(line.count(".") for line in text.split("\n")) > MAX_LINE_DOTS:
        raise OSError(f"{file} has a line with more than {MAX_LINE_DOTS} dots: shorten it")
    return text


def read_policy_text(name: str) -> tuple[str, str]:
    """Return the text and the path of the policy of this name, or of this TOML file; exit with an error otherwise."""
    from cli import place
    from cli.names import find_near, list_policy_names

    file = find_policy_file(name)
    try:
        return read_toml_file(file), str(file)
    except OSError as error:
        why, known = f": {error}" if file.exists() else "", list_policy_names()
        nearest = [] if why else find_near(name, known)
        meant = f"did you mean {' or '.join(nearest)}? " if nearest else ""
        place.fail(f"no policy {name!r} can be read{why}", f"{meant}give one of {', '.join(known)}, or a TOML file")


def read_policy(name: str) -> "Policy":
    """Return the policy of this name, or of this TOML file; exit with an error if it is missing or invalid."""
    from cli import place
    from rerail.model.errors import PolicyError
    from rerail.model.policy import parse_policy

    text, source = read_policy_text(name)
    try:
        return parse_policy(text, name=Path(source).stem)
    except PolicyError as error:
        place.fail(str(error), f"correct {source}")


def write_own_files() -> list[Path]:
    """Create the choices and the policies of an installed command where they are missing; return what was created."""
    import shutil  # imports four compression libraries, and each `--help` imports this module

    if CHOICES.is_file():
        return []
    shipped = SHIPPED_CHOICES.read_text(encoding="utf-8")
    policies = CHOICES.parent / OWN_POLICIES
    if not policies.exists():
        shutil.copytree(ROOT / "policies", policies)
    CHOICES.write_text(shipped.replace('"policiesFolder": "policies"', f'"policiesFolder": "{OWN_POLICIES}"'))
    return [CHOICES, policies]
