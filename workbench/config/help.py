"""Help on the setting under the cursor, and the estimated cost of an iteration."""

from __future__ import annotations

from textual.content import Content
from textual.widget import Widget

from workbench.config.estimates import Estimate
from workbench.config.fields import FormField, shown
from workbench.config.row import Row, SectionRow
from workbench.kit.cut_text import CutText
from workbench.text import gigabytes, visible


class FieldHelp(CutText):
    """Help on a row, the most important facts first; its height is fixed, so that the form does not jump."""

    def show(self, row: Row | None) -> None:
        """Explain `row`."""
        self.update(help_content(row), layout=False)


class EstimateLine(Widget):
    """Line with tokens and memory of an iteration, as far as its width allows."""

    def __init__(self, *, id: str | None = None) -> None:
        super().__init__(id=id)
        self._pieces: list[str] = []

    def show(self, estimate: Estimate | None) -> None:
        """Show an estimate; None while the configuration has problems."""
        self._pieces = estimate_pieces(estimate)
        self.refresh()

    def render(self) -> Content:
        return Content(fitted(self._pieces, self.size.width))


def help_content(row: Row | None) -> Content:
    """Return the help on `row`: its purpose, advice, range, default, and the default's source."""
    if row is None:
        return Content()
    if isinstance(row, SectionRow):
        return Content.assemble((row.name, "bold"), "  ", row.purpose)
    field = row.field
    lines = [Content.assemble((f"{field.name}  ", "bold"), field.help)]
    if field.advice:
        lines.append(Content.styled(field.advice, "$text-accent"))
    lines.append(Content.styled(_facts(field), "$text-muted"))
    if field.source:
        lines.append(Content.styled(f"default from: {field.source}", "$text-muted"))
    return Content("\n").join(lines)


def estimate_pieces(estimate: Estimate | None) -> list[str]:
    """Return the pieces of the estimate line, the most important first."""
    if estimate is None:
        return ["no estimate while there are problems"]
    memory = "memory unknown" if estimate.memory_bytes is None else f"≈ {gigabytes(estimate.memory_bytes)}"
    return [
        f"≤ {estimate.tokens_per_iteration:,} tokens/it",
        memory,
        f"≤ {estimate.forward_tokens:,} through a model",
        estimate.basis,
    ]


def fitted(pieces: list[str], width: int) -> str:
    """Join as many of the first pieces as fit in `width` columns, but at least one."""
    line = pieces[0] if pieces else ""
    for piece in pieces[1:]:
        if len(line) + 3 + len(piece) > width:
            break
        line = f"{line} · {piece}"
    return line


def _facts(field: FormField) -> str:
    kind = {"integer": "whole number", "switch": "true or false", "list": "list"}.get(field.kind, "")
    default = f"default {visible(shown(field, field.default))}"
    return " · ".join(filter(None, (field.rule or kind, field.unit, default, "live" if field.live else "")))
