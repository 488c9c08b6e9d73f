"""Model text made safe to print: a terminal must show every character of it and obey none."""

from __future__ import annotations

import re
import unicodedata

_PICTURES = 0x2400  # U+2400 to U+241F picture the control characters U+0000 to U+001F
_UNSAFE = {"Cc", "Cf", "Cs", "Zl", "Zp"}  # controls, format (bidi among them), surrogates, line separators
_NON_JOINER = "\u200c"  # keeps letters of Persian and Indic scripts apart; no column in any terminal
_MODIFIERS = "\u200c\u200d\ufe0e\ufe0f\U0001f3fb\U0001f3fc\U0001f3fd\U0001f3fe\U0001f3ff"  # of the character before
_FILLERS = "\u3164\uffa0"  # letters without a look, of a width on which terminals differ
_OF_ITS_OWN_WIDTH = re.compile(f"[{_MODIFIERS}{_FILLERS}]")
_FIRST_JOINED = "\u0590"  # from here on there are scripts and emoji that are spelt with joiners


def visible(text: str, *, keep_newlines: bool = False, joined: bool = False) -> str:
    """Return `text` on one line, with every character that a terminal would obey shown as a symbol.

    Escape becomes ␛, newline ␊, delete ␡; C1 controls, bidi marks, zero-width characters and lone surrogates
    become their escape, as in \\x9b and \\u202e. The result can always be encoded as UTF-8.
    Emoji are shown without variation selectors, skin tones and joiners: terminals do not agree how wide they are with
    them, and the borders of panes would move. joined: keep these, in plain output and where text is edited or copied.
    keep_newlines: leave newlines as they are, for places that show several lines.
    """
    if text.isprintable() and not _OF_ITS_OWN_WIDTH.search(text):  # the usual case, in C
        return text
    return "".join(
        c if c == "\n" and keep_newlines else _visible_character(c, before, joined)
        for before, c in zip(f" {text}", text, strict=False)
    )


def typed(text: str) -> str:
    """Return `text` for an input field: newlines and tabs stay, other control characters are shown as symbols."""
    return "\t".join(visible(part, keep_newlines=True, joined=True) for part in text.split("\t"))


def as_sent(text: str, prompt: str) -> str:
    """Restore the control characters of `prompt` from their symbols in `text`, which was typed over it."""
    for character in set(prompt):
        if (shown := typed(character)) != character and shown not in prompt:
            text = text.replace(shown, character)
    return text


def has_words(text: str, query: str) -> bool:
    """Return whether `text` contains every word of `query`, ignoring case."""
    text = text.casefold()
    return all(word in text for word in query.casefold().split())


def _visible_character(character: str, before: str, joined: bool) -> str:
    code = ord(character)
    is_modifier = character in _MODIFIERS
    if is_modifier and (before >= _FIRST_JOINED or (unicodedata.category(character) == "Mn" and before != " ")):
        return character if joined or character == _NON_JOINER else ""
    if code < 0x20:
        return chr(_PICTURES + code)
    if code == 0x7F:
        return "␡"
    if is_modifier or character in _FILLERS or unicodedata.category(character) in _UNSAFE:
        return f"\\x{code:02x}" if code < 0x100 else f"\\u{code:04x}" if code < 0x10000 else f"\\U{code:08x}"
    return character
