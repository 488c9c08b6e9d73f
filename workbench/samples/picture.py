"""Pictures of coloured text as SVG or HTML, which any browser shows and which load nothing from elsewhere."""

from __future__ import annotations

import io
import re
from collections.abc import Iterator, Sequence
from html import escape
from itertools import groupby
from pathlib import Path

from rich.cells import cell_len
from rich.console import Console
from rich.segment import Segment, Segments
from rich.style import Style
from rich.terminal_theme import SVG_EXPORT_THEME

from trainer.errors import StorageError
from workbench.samples.export import write_new
from workbench.text import visible

SUFFIXES = (".svg", ".html")

_JOINER = "\u200d"  # of emoji
_NOT_XML = re.compile("[\ufffe\uffff]")  # the only text from `visible` that XML does not allow
_FONT_FACE = re.compile(r"@font-face \{.*?\}\s*", re.DOTALL)  # rich's SVG fetches its font from the network
_HTML = """<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="UTF-8">
<title>{title}</title>
<style>
body {{{{ color: {{foreground}}; background-color: {{background}}; }}}}
pre {{{{ font-family: Menlo, 'DejaVu Sans Mono', Consolas, monospace; }}}}
{{stylesheet}}
</style>
</head>
<body>
<pre><code>{{code}}</code></pre>
</body>
</html>
"""


def save_picture(path: Path, lines: Sequence[Sequence[tuple[str, Style]]], title: str, width: int) -> Path:
    """Draw `lines` of styled text, at least `width` columns, in the format that the suffix of `path` names.

    Returns the path written: `path`, or with a number after its name where that exists. Raises StorageError for
    another suffix, or when the file cannot be written.
    """
    if path.suffix not in SUFFIXES:
        raise StorageError(f"cannot draw '{path}': a picture's name ends in {' or '.join(SUFFIXES)}")
    safe = [[(_drawable(text), style) for text, style in line] for line in lines]
    width = max([width, *(sum(cell_len(text) for text, _ in line) for line in safe)])
    console = Console(record=True, width=width, file=io.StringIO())
    for line in safe:
        console.print(Segments(list(_segments(line))))
    title = _drawable(title)
    if path.suffix == ".svg":
        picture = _FONT_FACE.sub("", console.export_svg(title=title, theme=SVG_EXPORT_THEME))
    else:
        title = escape(title).replace("{", "{{").replace("}", "}}")  # rich calls str.format on it
        picture = console.export_html(theme=SVG_EXPORT_THEME, code_format=_HTML.format(title=title))
    return write_new(path, [picture])


def _drawable(text: str) -> str:
    return _NOT_XML.sub("\ufffd", visible(text))


def _segments(line: Sequence[tuple[str, Style]]) -> Iterator[Segment]:
    """Yield the line as segments.

    A cluster that is not a single character of one column gets its own segment, because rich sizes a segment as if
    every character took one column.
    """
    for text, style in line:
        plain = style.update_link(None)
        for narrow, group in groupby(_clusters(text), key=lambda cluster: len(cluster) == cell_len(cluster) == 1):
            clusters = list(group)
            yield from (Segment(stretch, plain) for stretch in (["".join(clusters)] if narrow else clusters))
    yield Segment.line()


def _clusters(text: str) -> list[str]:
    """Split `text` into characters, each with the marks that combine with it."""
    clusters: list[str] = []
    for character in text:
        if clusters and (cell_len(character) == 0 or clusters[-1].endswith(_JOINER)):
            clusters[-1] += character
        else:
            clusters.append(character)
    return clusters
