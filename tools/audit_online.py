"""Ask the vulnerability service about every installed package: `make audit-online`. It needs the internet.

pip-audit passes over a package that the service does not answer for, and still exits 0: here that is a failure.
"""

import json
import sys
import tempfile
from contextlib import closing
from pathlib import Path
from typing import Any

from tools.deadlines import LimitedCommand, make_records

LIMIT_S = 900.0
UNAUDITED_SHARE = 0.05


def main(options: list[str]) -> int:
    """Return 0 if nearly every package was audited and none has a known vulnerability."""
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "audit.json"
        command = [sys.executable, "-m", "pip_audit", "--skip-editable", "--progress-spinner", "off"]
        command += ["--timeout", "15", "--format", "json", "--output", str(file), *options]
        with closing(LimitedCommand("pip-audit", command, limit_s=LIMIT_S, records=make_records())) as audit:
            status = audit.wait()
        packages = json.loads(file.read_text())["dependencies"] if file.exists() else []
    print(summary := summarize(packages))
    return status or int(summary.startswith("FAILED"))


def summarize(packages: list[dict[str, Any]]) -> str:
    """Return a line for people about the packages of pip-audit's report; it begins with FAILED if they do not pass."""
    audited = [package for package in packages if "vulns" in package]
    missing = len(packages) - len(audited)
    vulnerable = [f"{p['name']} {p['version']}: {v['id']}" for p in audited for v in p["vulns"]]
    if vulnerable:
        return f"FAILED: known vulnerabilities: {', '.join(vulnerable)}"
    if missing > UNAUDITED_SHARE * len(packages) or not packages:
        return f"FAILED: the service did not answer for {missing} of {len(packages)} packages; nothing is known of them"
    return f"no known vulnerability in {len(audited)} packages; {missing} were not audited"


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
