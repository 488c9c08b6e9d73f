"""Layout of Markdown in lines with roles.

It hides only the marks. Control characters have no effect, and nothing is fetched.
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

from workbench.kit.drawing import Line
from workbench.text import visible

if TYPE_CHECKING:
    from markdown_it.token import Token
    from rich.style import Style

# These would change the text: decoded entities may be control characters, and definitions disappear.
_LEFT_ALONE = ["entity", "image", "reference", "html_block", "html_inline"]


def markdown_lines(text: str, width: int) -> list[Line] | None:
    """Lay out `text` as Markdown in lines of at most `width` columns.

    The roles are text, strong, emphasis, struck and code. Returns None if letters or digits would be hidden, as in a
    table that is too wide or a text that is nested too deep.
    """
    from markdown_it import MarkdownIt
    from rich.console import Console
    from rich.markdown import Markdown

    source = visible(text, keep_newlines=True)
    markdown = Markdown("", hyperlinks=False)
    parser = MarkdownIt("commonmark").enable(["strikethrough", "table"]).disable(_LEFT_ALONE)
    markdown.parsed = parser.parse(source)
    console = Console(width=max(width, 2), color_system=None, legacy_windows=False)
    options = console.options.update(width=max(width, 2), height=None)
    rendered = console.render_lines(markdown, options, pad=False)
    lines = [[(segment.text, _role(segment.style)) for segment in line if segment.text] for line in rendered]
    seen = Counter(character for line in lines for piece, _ in line for character in piece)
    seen.update(_languages(markdown.parsed))
    there = Counter(filter(str.isalnum, source))
    return lines if there <= seen else None


def _languages(tokens: list[Token]) -> str:
    """Return the languages of code blocks, which are not drawn."""
    return "".join(token.info for token in tokens if token.type == "fence" and len(token.info.split()) == 1)


def _role(style: Style | None) -> str:
    if style is None:
        return "text"
    if style.bgcolor is not None:
        return "code"
    return "strong" if style.bold else "struck" if style.strike else "emphasis" if style.italic else "text"
