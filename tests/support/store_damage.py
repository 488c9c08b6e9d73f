"""Changes of a store that its triggers would not allow."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path


def alter(path: Path, *statements: str) -> None:
    """Change a store without the triggers that would refuse it."""
    with closing(sqlite3.connect(path, isolation_level=None)) as raw:
        for (trigger,) in raw.execute("SELECT name FROM sqlite_master WHERE type = 'trigger'").fetchall():
            if not any(trigger in statement for statement in statements):
                raw.execute(f"DROP TRIGGER {trigger}")
        for statement in statements:
            raw.execute(statement)
