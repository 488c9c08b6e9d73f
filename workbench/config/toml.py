"""TOML as text: tokens for colours, line numbers of keys, and changes that keep comments."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any, Literal, NamedTuple, cast

TokenKind = Literal["table", "key", "string", "number", "boolean", "comment", "invalid"]

_PART = r"""(?:[A-Za-z0-9_-]++|"(?:[^"\\\n]|\\[^\n])*+"|'[^'\n]*+')"""
_DOTTED = rf"{_PART}(?:[ \t]*\.[ \t]*{_PART})*"
_INSIDE = rf"""
      (?P<comment>\#[^\n]*+)
    | (?P<key>{_DOTTED}(?=[ \t]*=))
    | (?P<boolean>(?:true|false)\b)
    | (?P<number>[+-]?(?:inf|nan|[0-9][0-9A-Za-z_.:+-]*)\b)
    | (?P<invalid>{_PART}(?:[ \t]*\.[ \t]*{_PART})++)  # as a whole, so that one pass is enough
    | (?P<string>\"{{3}}(?:\\.|[^\\])*?(?:\"{{3,5}}|\Z)|'{{3}}.*?(?:'{{3,5}}|\Z)|"(?:[^"\\\n]|\\[^\n])*"|'[^'\n]*')
    | (?P<bracket>[\[\]{{}}])
    | (?P<rest>["'][^\n]*+|[^\s,=\[\]{{}}\#"']+)
"""
_FLAGS = re.VERBOSE | re.DOTALL | re.MULTILINE
_IN_VALUE = re.compile(_INSIDE, _FLAGS)  # in an array or an inline table, where a line cannot be a header
_OUTSIDE = re.compile(rf"^[ \t]*(?P<table>\[\[?[ \t]*{_DOTTED}[ \t]*\]?\]?)|{_INSIDE}", _FLAGS)


class Token(NamedTuple):
    """Token in columns `start` to `stop` of a line."""

    start: int
    stop: int
    kind: TokenKind


def tokens_by_line(text: str) -> list[list[Token]]:
    """Split each line into tokens, from left to right. For text that is not TOML the tokens are a best effort."""
    result: list[list[Token]] = [[] for _ in text.split("\n")]
    number, counted = 0, 0
    for start, kind, content, _ in _tokens(text):
        number, counted = number + text.count("\n", counted, start), start
        column = start - text.rfind("\n", 0, start) - 1
        for line, piece in enumerate(content.split("\n"), number):
            result[line].append(Token(column, column + len(piece), cast("TokenKind", kind)))
            column = 0
    return result


def key_lines(text: str) -> dict[str, int]:
    """Return the line, from 1, of each table and each key outside inline tables: `ppo.kl_coef`, `reward.sources[1]`."""
    found: dict[str, int] = {}
    counts: dict[str, int] = {}
    table, number, counted = "", 1, 0
    for start, kind, content, depth in _tokens(text):
        if depth or kind not in ("table", "key"):
            continue
        number, counted = number + text.count("\n", counted, start), start
        key = ".".join(part.strip("\"'") for part in re.findall(_PART, content))
        if kind == "key":
            key = f"{table}.{key}".removeprefix(".")
        elif content.startswith("[["):
            found.setdefault(key, number)
            counts[key] = counts.get(key, -1) + 1
            key = table = f"{key}[{counts[key]}]"
        else:
            table = key
        parts = key.split(".")
        for end in range(1, len(parts) + 1):
            found.setdefault(".".join(parts[:end]), number)
    return found


def line_of(key: str, lines: dict[str, int]) -> int | None:
    """Return the line of `key`, or of the nearest enclosing key or table; None if there is none."""
    while key:
        if key in lines:
            return lines[key]
        key = key[: max(key.rfind("."), key.rfind("["), 0)]
    return None


def load_writer() -> None:
    """Import what the first change of a value needs: that takes some 0.2 s."""
    import tomlkit.exceptions  # noqa: F401


def with_value(text: str, section: str, name: str, value: Any) -> str | None:
    """Return `text` with a key of a table set, or removed if `value` is None; comments stay. None if that fails."""
    import tomlkit  # imported only for a change
    from tomlkit.exceptions import TOMLKitError

    try:
        document = tomlkit.parse(text)
        if value is None:
            del document[section][name]
        else:
            if section not in document:
                document[section] = tomlkit.table()
            document[section][name] = value
        return tomlkit.dumps(document)
    except (TOMLKitError, TypeError, ValueError, KeyError):
        return None


def without_comments(text: str, of: str) -> str:
    """Return `text` without the comments that are in `of` as well; a line that held nothing else goes."""
    known = {content for _, kind, content, _ in _tokens(of) if kind == "comment"}
    comments = [(start, content) for start, kind, content, _ in _tokens(text) if kind == "comment" and content in known]
    for start, content in reversed(comments):
        stop = start + len(content)
        before = text[:start].rstrip(" \t")
        is_alone = not before or before.endswith("\n")
        text = before + text[stop + is_alone :]  # with its newline
    return text


def line_typed_on(before: str, after: str) -> int | None:
    """Return the changed line, from 0, if only one changed and its length by at most 1; None for a larger change."""
    lines = zip(before.split("\n"), after.split("\n"), strict=False)
    changed = [number for number, (old, new) in enumerate(lines) if old != new]
    same_lines = before.count("\n") == after.count("\n")
    return changed[0] if same_lines and len(changed) == 1 and abs(len(after) - len(before)) <= 1 else None


def _tokens(text: str) -> Iterator[tuple[int, str, str, int]]:
    """Yield each token's offset, kind and text, and how many arrays and inline tables are open before it."""
    position = depth = 0
    while match := (_IN_VALUE if depth else _OUTSIDE).search(text, position):
        kind = match.lastgroup or ""
        position = match.end()
        if kind == "bracket":
            depth = max(depth + (1 if match[kind] in "[{" else -1), 0)
        else:
            yield match.start(kind), "invalid" if kind == "rest" else kind, match[kind], depth
