"""``make audit``: are the installed versions those of constraints.txt, do they fit, and is anything known against them?

Exit code 0: nothing found. 1: something is wrong. 2: what is installed is as it should be, but known vulnerabilities
could not be looked up.
"""

import re
import shutil
import subprocess
import sys
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

CONSTRAINTS = Path(__file__).parents[1] / "constraints.txt"


def main() -> int:
    """Offline first, then pip-audit."""
    wrong = unlike(CONSTRAINTS.read_text(encoding="utf-8"))
    for line in wrong:
        print(line)
    fits = subprocess.run([sys.executable, "-m", "pip", "check"]).returncode == 0
    if wrong or not fits:
        return 1
    print("installed versions are those of constraints.txt, and fit")
    return _known_vulnerabilities()


def unlike(constraints: str) -> list[str]:
    """Pinned versions that are installed in another one; what is not installed is an extra that was not wanted."""
    found = []
    for name, pinned in re.findall(r"(?m)^([A-Za-z0-9._-]+)==([^\s;#]+)", constraints):
        try:
            installed = version(name)
        except PackageNotFoundError:
            continue
        if installed.partition("+")[0] != pinned.partition("+")[0]:
            found.append(f"{name}: {installed} is installed, constraints.txt says {pinned}; run `make setup`")
    return found


def _known_vulnerabilities() -> int:
    tool = shutil.which("pip-audit", path=str(Path(sys.executable).parent)) or shutil.which("pip-audit")
    if tool is None:
        print("known vulnerabilities were not looked up: pip-audit is not installed (pip install pip-audit)")
        return 2
    done = subprocess.run([tool, "--requirement", str(CONSTRAINTS), "--no-deps", "--disable-pip"])
    if done.returncode > 1:
        print("known vulnerabilities were not looked up: pip-audit could not reach its database")
        return 2
    return done.returncode


if __name__ == "__main__":
    sys.exit(main())
