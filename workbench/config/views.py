"""Widgets beside the form: the cost of an iteration, and the document as TOML."""

from __future__ import annotations

from collections.abc import Callable

from rich.cells import cell_len
from rich.style import Style
from rich.text import Text
from textual.content import Content
from textual.highlight import HighlightTheme, highlight
from textual.widgets import TextArea
from textual.widgets.text_area import Edit, EditResult

from trainer.errors import counted
from trainer.memory.footprint import Part
from workbench.config.estimates import Estimate
from workbench.text import fit, gigabytes, packed, visible

_SMALL = 50_000_000  # bytes; less is 0.0 GB
_OF_ADAPTERS: tuple[Part, ...] = ("adapters", "optimiser", "gradients")


def cost_content(needed: Estimate | None, room: int, problems: int, width: int) -> Content:
    """Return two lines: memory of an iteration and number of problems, then where the memory goes.

    needed: None while there is no estimate. room: bytes of memory.
    """
    memory = needed.memory if needed else None
    too_much = bool(memory and memory.peak > room)
    words = "memory unknown" if needed else "No estimate until the problems are fixed" if problems else ""
    pieces = [f"≤ {needed.tokens_per_iteration:,} tokens/iteration"] if needed else []
    if memory:
        words = f"≈ {gigabytes(memory.peak)} of {gigabytes(room)}" + ": does not fit" * too_much
        weights, adapters = memory.parts["weights"], sum(memory.parts.get(part, 0) for part in _OF_ADAPTERS)
        sizes = {"weights": weights, "adapters": adapters, memory.phase: memory.peak - weights - adapters}
        pieces += [f"{name} {gigabytes(size)}" for name, size in sizes.items() if size >= _SMALL]
    if needed:
        pieces += [needed.basis, f"≤ {needed.forward_tokens:,} through a model"]
    state = f"✖ {counted(problems, 'problem')}" if problems else "✓ no problems"
    if len(words) + len(state) >= width:
        state = f"✖ {problems}" if problems else "✓"
    if memory and len(words) + len(state) + 8 < width:
        words = f"memory {words}"
    return Content.assemble(
        (fit(words, max(width - cell_len(state) - 1, 0)), "$text-error" if too_much else ""),
        (f" {state}", "$text-error" if problems else "$text-success"),
        "\n" + " · ".join(packed(pieces, width, 3)[0]) if pieces else "",
    )


class _Opaque(HighlightTheme):
    """Textual's colours of code; those that are nearly opaque are so here, to be read in every theme."""

    STYLES = {token: style.removesuffix(" 80%").removesuffix(" 90%") for token, style in HighlightTheme.STYLES.items()}


class TomlView(TextArea):
    """TOML editor. typed: called with the text after each edit."""

    def __init__(self, typed: Callable[[str], object]) -> None:
        super().__init__(show_line_numbers=True, soft_wrap=False, tab_behavior="focus", compact=True)
        self.display = False
        self._typed = typed

    def check_action(self, action: str, parameters: tuple[object, ...]) -> bool | None:
        # F-keys choose panes, which is the application's; undo and redo, which also change the form, are the pane's.
        return action not in ("select_line", "select_all", "undo", "redo")

    def edit(self, edit: Edit) -> EditResult:
        """Make an edit, and report the text at once: a message may come after the next change of the form."""
        result = super().edit(edit)
        self._typed(self.text)
        return result

    def show_text(self, text: str) -> None:
        """Show `text`; the cursor stays where it was."""
        if text != self.text:
            location, scroll = self.cursor_location, self.scroll_offset
            self.load_text(text)
            self.move_cursor(location)
            self.scroll_to(scroll.x, scroll.y, animate=False)

    def get_line(self, line_index: int) -> Text:
        """Return a line with its colours; each control character becomes one symbol, so that columns stay."""
        safe = (c if c == "\t" else visible(c) for c in self.document.get_line(line_index))
        line = Text(end="", no_wrap=True)
        code = highlight("".join(c if len(c) == 1 else "\ufffd" for c in safe), language="toml", theme=_Opaque)
        for text, style, *_ in code.render(self.visual_style, end=""):
            # Without the background, which the line or the selection sets.
            ink = style.rich_style if style else Style.null()
            line.append(text, Style(color=ink.color, bold=ink.bold, italic=ink.italic, underline=ink.underline))
        return line
