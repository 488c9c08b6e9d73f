"""Differences between runs, as text: a table if there is room, else one setting below the other."""

from __future__ import annotations

from rich.cells import cell_len
from textual.content import Content

from workbench.kit.cells import fit
from workbench.run.config_differences import Comparison, value_text
from workbench.text import visible

_MOST = 100  # settings; configurations have fewer
_LONGEST = 200  # characters of a value, at most
_LEAST = 8
_GAP = 2


def differences_content(comparison: Comparison, width: int) -> Content:
    """Return `comparison` as text, problems first, in lines of at most `width` columns if possible."""
    lines = [Content.styled(f"✖ {visible(problem)}", "$text-error") for problem in comparison.problems]
    names = [visible(name) for name in comparison.names]
    rows = [
        (visible(key[:_LONGEST]), [visible(value_text(value)[:_LONGEST]) for value in values.values()])
        for key, values in comparison.differences[:_MOST]
    ]
    if not rows:
        if len(names) > 1 and not comparison.problems:
            lines.append(Content.styled("their configurations are the same", "$text-muted"))
        return Content("\n").join(lines)
    keys = max(cell_len(key) for key, _ in rows)
    room = (width - keys) // len(names) - _GAP
    widest = max(cell_len(text) for text in [*names, *(value for _, values in rows for value in values)])
    if room >= min(_LEAST, widest):
        lines += _table(names, rows, keys, min(room, widest))
    else:
        lines += _list(names, rows)
    if (more := len(comparison.differences) - _MOST) > 0:
        lines.append(Content.styled(f"and {more} more settings", "$text-muted"))
    return Content("\n").join(lines)


def _table(names: list[str], rows: list[tuple[str, list[str]]], keys: int, values: int) -> list[Content]:
    gap = " " * _GAP
    heading = " " * keys + "".join(gap + fit(name, values) for name in names)
    return [Content.styled(heading.rstrip(), "$text-muted")] + [
        Content.assemble((fit(key, keys), "$text-muted"), "".join(gap + fit(text, values) for text in texts).rstrip())
        for key, texts in rows
    ]


def _list(names: list[str], rows: list[tuple[str, list[str]]]) -> list[Content]:
    lines = []
    for key, texts in rows:
        lines.append(Content.styled(key, "bold"))
        lines += [
            Content.assemble((f"  {name} ", "$text-muted"), text) for name, text in zip(names, texts, strict=True)
        ]
    return lines
