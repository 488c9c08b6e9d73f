"""Print the lines of Python by package beside those of the last release (`docs/sizes.toml`).

Run: .venv/bin/python docs/sizes.py [--write]
--write: make the present lines those of the release.
"""

from __future__ import annotations

import sys
import tomllib
from collections import Counter
from pathlib import Path

import tomli_w

ROOT = Path(__file__).resolve().parent.parent
RELEASE = ROOT / "docs" / "sizes.toml"


def sizes() -> dict[str, int]:
    """Return the lines of each package of `trainer` and `workbench`, and of the tests and benchmarks as wholes."""
    found: Counter[str] = Counter()
    for top in ("trainer", "workbench", "tests", "benchmarks"):
        for path in (ROOT / top).rglob("*.py"):
            parts = path.relative_to(ROOT).parts
            if any(part.startswith(".") for part in parts):  # the environment of a peer
                continue
            whole = top in ("tests", "benchmarks") or len(parts) == 2
            found[top if whole else "/".join(parts[:2])] += path.read_text(encoding="utf-8").count("\n")
    return dict(sorted(found.items()))


def main() -> None:
    """Print one line for each package whose lines have changed since the release, and the sum of the source."""
    now = sizes()
    if "--write" in sys.argv[1:]:
        RELEASE.write_text(tomli_w.dumps({"lines": now}), encoding="utf-8")
    before = tomllib.loads(RELEASE.read_text(encoding="utf-8"))["lines"]
    for name in sorted(now.keys() | before.keys()):
        lines, old = now.get(name, 0), before.get(name, 0)
        if lines != old:
            sys.stdout.write(f"{name:28}{lines:8,}{lines - old:+8,}{lines / old - 1 if old else 1:+8.1%}\n")
    total, release = (sum(found.values()) - found["tests"] - found["benchmarks"] for found in (now, before))
    sys.stdout.write(f"{'trainer and workbench':28}{total:8,}{total - release:+8,}{total / release - 1:+8.1%}\n")


if __name__ == "__main__":
    main()
