"""Wrapped text that ends with … if it does not fit."""

from __future__ import annotations

from textual.content import Content
from textual.visual import VisualType
from textual.widgets import Static


def cut(content: Content, width: int, height: int) -> Content:
    """Wrap `content` into at most `height` lines of `width` columns; the last ends with … if text is missing."""
    lines = [line for part in content.split("\n", allow_blank=True) for line in part.wrap(width) or [Content()]]
    if len(lines) > height:
        last = Content.assemble(lines[height - 1].rstrip(), " …")
        lines = [*lines[: height - 1], last.truncate(width, ellipsis=True)]
    return Content("\n").join(lines)


class CutText(Static):
    """Text cut to its widget. most: maximum lines of a widget whose height follows its text; 0: the lines it has."""

    def __init__(self, *, most: int = 0, id: str | None = None) -> None:
        super().__init__(id=id, markup=False)
        self._most = most
        self._whole = Content()

    def update(self, content: VisualType = "", *, layout: bool = True) -> None:
        """Show `content`, cut to the size of the widget."""
        self._whole = content if isinstance(content, Content) else Content(str(content))
        self._fit(layout)

    def on_resize(self) -> None:
        self._fit(layout=bool(self._most))

    def _fit(self, layout: bool) -> None:
        width, height = self.content_size.width, self._most or self.content_size.height
        super().update(cut(self._whole, width, height) if width and height else self._whole, layout=layout)
