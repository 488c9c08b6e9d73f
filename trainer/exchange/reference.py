"""Table of docs/other-engines.md: what each setting becomes in the other trainers.

`python -m trainer.exchange.reference` prints it.
"""

from __future__ import annotations

from collections.abc import Iterator

from trainer.config.problems import setting_keys
from trainer.exchange import openrlhf, trl, verl
from trainer.exchange.settings import No, Table, To, row_of

_COLUMNS: dict[str, list[Table]] = {
    "PPO in TRL": [trl.PPO],
    "GRPO and RLOO in TRL": [trl.GRPO, trl.RLOO],
    "OpenRLHF": [openrlhf.SETTINGS],
    "verl": [verl.SETTINGS],
}
_SHORT = {"actor_rollout_ref": "a_r_r"}


def settings_table() -> Iterator[str]:
    """Yield the table as Markdown: names of settings, - where there is no counterpart, nothing where none is needed."""
    yield f"| setting | {' | '.join(_COLUMNS)} |"
    yield "|---" * (len(_COLUMNS) + 1) + "|"
    for key in setting_keys():
        cells = [_cell(key, tables) for tables in _COLUMNS.values()]
        if any(cells):
            yield f"| {key} | {' | '.join(cells)} |"


def _cell(key: str, tables: list[Table]) -> str:
    rows = [one for table in tables for one in row_of(key, table)]
    if names := dict.fromkeys(one.name for one in rows if isinstance(one, To)):
        return ", ".join(f"`{_shortened(name)}`" for name in names)
    return "-" if any(isinstance(one, No) for one in rows) else ""


def _shortened(name: str) -> str:
    first, dot, rest = name.partition(".")
    return _SHORT.get(first, first) + dot + rest


if __name__ == "__main__":
    print("\n".join(settings_table()))  # noqa: T201
