"""The screen in ASCII, for terminals that show nothing else: every sign becomes one of the same width."""

from __future__ import annotations

import unicodedata
from functools import lru_cache

from rich.cells import cell_len
from rich.segment import Segment
from textual.color import Color
from textual.filter import LineFilter

_BRAILLE = range(0x2800, 0x2900)
_BOXES = range(0x2500, 0x2580)
_BLOCKS = range(0x2580, 0x25A0)
_TOP, _BOTTOM = 0x01 | 0x08 | 0x02 | 0x10, 0x04 | 0x20 | 0x40 | 0x80  # dots of a braille character
_FULL = 6  # dots

_BY_LOOK = (  # pairs of a sign and its replacement
    "▁_ ▂. ▃: ▄- ▅= ▆+ ▇* █# ▔- ▕| ▐| ▌# ▀- ▏| ▎| ▍| ▋# ▊# ▉# "
    "─- ━- ═- ┄- ┅- ┈- ┉- ╌- ╍- ╴- ╶- ╸- ╺- │| ┃| ║| ┆| ┇| ┊| ┋| ╎| ╏| ╵| ╷| ╹| ╻| "
    "·. …. •* ●o ◆* ◇o ■# □o ○o ◌o ★* ⚑P ✂% ✖x ✗x ✓v ✔v ⚠! ▲^ △^ ▴^ ▼v ▾v ▽v ▸> ▶> ›> ⟩> ◂< ◀< ‹< ⟨< "
    "←< →> ↑^ ↓v ↵/ ⏎/ ␣_ ␊n ␡d ␛e ↶< ↻o ×* ±~ −- ²2 ½/ ≤< ≥> ≠! ≈= √V ΣS πp γg λl δd ρr βb κk µu ∅0 ‖| "
    "“' ”' ‘' ’' –- —-"
)
_SIGNS = str.maketrans({pair[0]: pair[1] for pair in _BY_LOOK.split(" ")})


class AsciiOnly(LineFilter):
    """A filter of all that is drawn."""

    def apply(self, segments: list[Segment], background: Color) -> list[Segment]:
        return [
            segment if segment.control or segment.text.isascii() else Segment(ascii_text(segment.text), segment.style)
            for segment in segments
        ]


@lru_cache(4096)
def ascii_text(text: str) -> str:
    """Return `text` in ASCII, as wide as before: signs by their look, letters without accents, "?" for the rest."""
    return "".join(char if char.isascii() else _ascii(char) for char in text.translate(_SIGNS))


def _ascii(char: str) -> str:
    code = ord(char)
    if code in _BRAILLE:
        dots = code - _BRAILLE.start
        if dots.bit_count() >= _FULL:
            return "#"
        return ":" if dots & _TOP and dots & _BOTTOM else "'" if dots & _TOP else "." if dots else " "
    if code in _BOXES or code in _BLOCKS:
        return "+"
    plain = unicodedata.normalize("NFKD", char)[0]
    width = cell_len(char)
    return plain if plain.isascii() and width == 1 else "?" * width
