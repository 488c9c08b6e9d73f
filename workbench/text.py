"""Model text made safe to print: a terminal must show every character of it and obey none."""

from __future__ import annotations

import unicodedata

_PICTURES = 0x2400  # U+2400 to U+241F picture the control characters U+0000 to U+001F
_UNSAFE = {"Cc", "Cf", "Cs", "Zl", "Zp"}  # controls, format (bidi among them), surrogates, line separators
_JOINERS = "\u200c\u200d"  # emoji, Persian and Indic scripts are spelt with them


def visible(text: str, *, keep_newlines: bool = False) -> str:
    """Return `text` on one line, with every character that a terminal would obey shown as a symbol.

    Escape becomes ␛, newline ␊, delete ␡; C1 controls, bidi marks, zero-width characters and lone surrogates
    become their escape, as in \\x9b and \\u202e. The result can always be encoded as UTF-8.
    keep_newlines: leave newlines as they are, for places that show several lines.
    """
    if text.isprintable():  # the usual case, in one pass in C
        return text
    return "".join(c if c == "\n" and keep_newlines else _visible_character(c) for c in text)


def typed(text: str) -> str:
    """Return `text` for an input field: newlines and tabs stay, other control characters are shown as symbols."""
    return "\t".join(visible(part, keep_newlines=True) for part in text.split("\t"))


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


def _visible_character(character: str) -> str:
    code = ord(character)
    if code < 0x20:
        return chr(_PICTURES + code)
    if code == 0x7F:
        return "␡"
    if unicodedata.category(character) in _UNSAFE and character not in _JOINERS:
        return f"\\x{code:02x}" if code < 0x100 else f"\\u{code:04x}" if code < 0x10000 else f"\\U{code:08x}"
    return character
