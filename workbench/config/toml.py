"""Tools for TOML as text: tokens for colours, line numbers of keys, and changes of values."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import Any, Literal, NamedTuple, cast

TokenKind = Literal["table", "key", "string", "number", "boolean", "comment", "invalid"]

_BARE = r"[A-Za-z0-9_-]++"
_PART = rf"""(?:{_BARE}|"(?:[^"\\]|\\.)*"|'[^']*')"""
_DOTTED = rf"{_PART}(?:\s*\.\s*{_PART})*"
_HEADER = re.compile(rf"\s*(\[\[?)\s*({_DOTTED})\s*\]\]?")
_KEY = re.compile(rf"\s*({_DOTTED})\s*=")
_PIECES = re.compile(
    rf"""
      (?P<comment>\#.*)
    | (?P<open>\"{{3}}|'{{3}})
    | (?P<string>"(?:[^"\\]|\\.)*"|'[^']*')
    | (?P<key>{_DOTTED}(?=\s*=))
    | (?P<boolean>(?:true|false)\b)
    | (?P<number>[+-]?(?:inf|nan|[0-9][0-9A-Za-z_.:+-]*)\b)
    | (?P<bracket>[\[\]{{}}])
    | (?P<invalid>[^\s,=\[\]{{}}\#"']+|["'])
    """,
    re.VERBOSE,
)


class Token(NamedTuple):
    """Token in columns `start` to `stop` of a line."""

    start: int
    stop: int
    kind: TokenKind


class _State(NamedTuple):
    """State at the start of a line, left by the line before it."""

    quote: str = ""  # quotes of the multi-line string that is open
    depth: int = 0  # number of arrays and inline tables that are open


def tokens_by_line(lines: Sequence[str]) -> list[list[Token]]:
    """Split each line into tokens, from left to right. For text that is not TOML the tokens are a best effort."""
    state = _State()
    result = []
    for line in lines:
        tokens, state = _line_tokens(line, state)
        result.append(tokens)
    return result


def key_lines(text: str) -> dict[str, int]:
    """Return the line, from 1, of each table and each key outside inline tables: `ppo.kl_coef`, `reward.sources[1]`."""
    found: dict[str, int] = {}
    for number, key in _statements(text.split("\n")):
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
    known = {comment for line in _split_comments(of) if (comment := line[1])}
    lines = [
        before.rstrip() if comment in known else before + comment
        for before, comment in _split_comments(text)
        if before.strip() or comment not in known
    ]
    return "\n".join(lines)


def _split_comments(text: str) -> list[tuple[str, str]]:
    """Return each line as what is before its comment, and the comment."""
    lines = text.split("\n")
    found = []
    for line, tokens in zip(lines, tokens_by_line(lines), strict=True):
        start = tokens[-1].start if tokens and tokens[-1].kind == "comment" else len(line)
        found.append((line[:start], line[start:]))
    return found


def line_typed_on(before: str, after: str) -> int | None:
    """Return the changed line, from 0, if only one changed and its length by at most 1; None for a larger change."""
    lines = zip(before.split("\n"), after.split("\n"), strict=False)
    changed = [number for number, (old, new) in enumerate(lines) if old != new]
    same_lines = before.count("\n") == after.count("\n")
    return changed[0] if same_lines and len(changed) == 1 and abs(len(after) - len(before)) <= 1 else None


def _statements(lines: Sequence[str]) -> Iterator[tuple[int, str]]:
    """Yield line number and full key for each line that begins a table or sets a key."""
    state, table = _State(), ""
    counts: dict[str, int] = {}
    for number, line in enumerate(lines, 1):
        if state == _State():
            if header := _HEADER.match(line):
                table = _plain(header[2])
                if header[1] == "[[":
                    yield number, table
                    counts[table] = counts.get(table, -1) + 1
                    table = f"{table}[{counts[table]}]"
                yield number, table
            elif key := _KEY.match(line):
                yield number, f"{table}.{_plain(key[1])}".removeprefix(".")
        _, state = _line_tokens(line, state)


def _plain(dotted: str) -> str:
    return ".".join(part.strip("\"'") for part in re.findall(_PART, dotted))


def _line_tokens(line: str, state: _State) -> tuple[list[Token], _State]:
    tokens: list[Token] = []
    position, depth = 0, state.depth
    if state.quote:
        position = _closing(line, 0, state.quote)
        tokens.append(Token(0, position if position >= 0 else len(line), "string"))
        if position < 0:
            return tokens, state
    elif depth == 0 and (header := _HEADER.match(line)):
        tokens.append(Token(header.start(1), header.end(), "table"))
        position = header.end()
    while piece := _PIECES.search(line, position):
        position = piece.end()
        kind = piece.lastgroup
        if kind == "open":
            end = _closing(line, position, piece["open"])
            tokens.append(Token(piece.start(), end if end >= 0 else len(line), "string"))
            if end < 0:
                return tokens, _State(piece["open"], depth)
            position = end
        elif kind == "bracket":
            depth = max(depth + (1 if piece["bracket"] in "[{" else -1), 0)
        else:
            tokens.append(Token(piece.start(), piece.end(), cast("TokenKind", kind)))
    return tokens, _State("", depth)


def _closing(line: str, start: int, quote: str) -> int:
    """Return the column after the end of the multi-line string that is open at `start`; -1 if it does not end here."""
    position = start
    while (found := line.find(quote, position)) >= 0:
        backslashes = found - len(line[:found].rstrip("\\"))
        if quote == "'''" or backslashes % 2 == 0:
            return found + len(quote)
        position = found + 1
    return -1
