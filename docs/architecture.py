"""Draw the picture of docs/architecture.md from the imports: packages of the trainer, rooms of the workbench.

Run: .venv/bin/python docs/architecture.py [--check]
"""

from __future__ import annotations

import argparse
import re
import sys
from collections import defaultdict
from pathlib import Path

import grimp

PAGE = Path(__file__).resolve().parent / "architecture.md"
BEGIN, END = "<!-- picture: docs/architecture.py -->", "<!-- end of the picture -->"
LEFT_OUT = {"workbench.__main__", "workbench.opening", "workbench.text", "trainer.doctor"}
EVERYWHERE = {
    "trainer.arrays",
    "trainer.confidence",
    "trainer.errors",
    "trainer.events",
    "trainer.files",
    "trainer.maths",
    "trainer.questions",
    "trainer.reward_types",
}


def imports() -> dict[str, set[str]]:
    """Return which parts each part of the program imports; a part is what lies directly in `trainer` or `workbench`."""
    graph = grimp.build_graph("trainer", "workbench", cache_dir=None)
    found: dict[str, set[str]] = defaultdict(set)
    for module in graph.modules:
        part = _part(module)
        for imported in graph.find_modules_directly_imported_by(module):
            if (other := _part(imported)) not in (part, ""):
                found[part].add(other)
    return found


def _part(module: str) -> str:
    name = ".".join(module.split(".")[:2])
    return "" if name in LEFT_OUT | EVERYWHERE or "." not in name else name


def picture() -> str:
    """Return the picture in Mermaid: an arrow says who imports whom, and one that others imply is left out."""
    found = imports()
    parts = sorted({part for part in (*found, *(other for others in found.values() for other in others)) if part})
    reached = {part: _reached(part, found) for part in parts}
    lines = ["```mermaid", "flowchart TD"]
    for tree in ("workbench", "trainer"):
        lines.append(f"  subgraph {tree}")
        lines += [f"    {_id(part)}[{part.partition('.')[2]}]" for part in parts if part.startswith(tree)]
        lines.append("  end")
    for part in parts:
        direct = found.get(part, set())
        implied = {other for one in direct for other in reached[one]}
        lines += [f"  {_id(part)} --> {_id(other)}" for other in sorted(direct - implied)]
    return "\n".join([*lines, "```"])


def _reached(part: str, found: dict[str, set[str]]) -> set[str]:
    """Return everything that `part` imports, directly or not."""
    reached: set[str] = set()
    waiting = [*found.get(part, ())]
    while waiting:
        other = waiting.pop()
        if other not in reached:
            reached.add(other)
            waiting += found.get(other, ())
    return reached


def _id(part: str) -> str:
    return part.replace(".", "_")


def with_picture(page: str) -> str:
    """Return the text of the page with the picture of now."""
    return re.sub(f"{re.escape(BEGIN)}.*{re.escape(END)}", f"{BEGIN}\n\n{picture()}\n\n{END}", page, flags=re.DOTALL)


def main() -> None:
    """Write the page, or fail with --check where its picture is not that of now."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--check", action="store_true", help="change nothing")
    options, page = parser.parse_args(), PAGE.read_text(encoding="utf-8")
    new = with_picture(page)
    if not options.check:
        PAGE.write_text(new, encoding="utf-8")
    elif new != page:
        sys.exit(f"{PAGE.name} is not up to date: run docs/architecture.py")


if __name__ == "__main__":
    main()
