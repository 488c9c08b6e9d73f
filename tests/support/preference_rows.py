"""Preferences for tests: drawn by hypothesis, written to files, and sorted for comparison."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from hypothesis import strategies as st

from trainer.preferences.formats import read_preferences
from trainer.preferences.records import Comparison, Judgement, Messages, Origin, Preference, Text

LINES = "a b\n\t\r,\"'{}[]ü\u2028\x00\x1b😀"  # characters that formats quote, escape or take for the end of a line
texts = st.builds(lambda start, end: f"{start}x{end}", *[st.text(alphabet=LINES, max_size=6)] * 2)
prompts = st.text(alphabet=LINES, max_size=8).map(lambda text: f"p{text}")
words = st.text(alphabet="abc ü\n", max_size=6)
messages = st.lists(
    st.builds(
        lambda role, content: {"role": role, "content": content},
        st.sampled_from(["user", "assistant", "system"]),
        texts,
    ),
    min_size=1,
)
json_values = st.recursive(
    st.none() | st.booleans() | st.integers(-9, 9) | st.floats(-1, 1) | words,
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(words, inner, max_size=2),
    max_leaves=4,
)
columns = st.dictionaries(st.text(alphabet="xyz", min_size=1, max_size=3), json_values, max_size=2)
origins = st.builds(
    Origin,
    source=words,
    run=words,
    iteration=st.none() | st.integers(0, 9),
    row=st.none() | st.integers(0, 9),
    checkpoint=words,
    writer=words,
    sampling=columns,
)


def _as_message(text: Text) -> str:
    return json.dumps(assistant(text) if isinstance(text, str) else text, sort_keys=True)


@st.composite
def judgements(draw: st.DrawFn, k: int, kinds: tuple[str, ...]) -> Judgement:
    """Draw a judgement of `k` completions; kinds: ranked (without ties), tie (some of them), both_bad, skip."""
    kind = draw(st.sampled_from(kinds))
    order = draw(st.permutations(range(k)))
    ranking: tuple[tuple[int, ...], ...] = tuple((place,) for place in order)
    if kind == "tie":
        cut = draw(st.integers(2, k))
        ranking = (tuple(sorted(order[:cut])), *((place,) for place in order[cut:]))
    return Judgement(
        ranking=ranking if kind in ("ranked", "tie") else (),
        verdict=kind if kind in ("both_bad", "skip") else "ranked",  # type: ignore[arg-type]
        strength=draw(st.sampled_from([1, 2, 3])),
        labeller=draw(words),
        note=draw(words),
        flags=tuple(draw(st.lists(words, max_size=2))),
        seconds=draw(st.none() | st.floats(0, 1e6)),
        order_shown=tuple(draw(st.permutations(range(k)))[: draw(st.integers(0, k))]),
        guidelines=draw(words),
        time=draw(st.none() | st.floats(0, 2e9)),
    )


@st.composite
def preferences(
    draw: st.DrawFn,
    *,
    kinds: tuple[str, ...] = ("ranked",),
    largest: int = 2,
    texts: st.SearchStrategy[Any] = texts,
    prompts: st.SearchStrategy[Any] = prompts,
) -> Preference:
    """Draw a preference between 2 to `largest` different completions."""
    k = draw(st.integers(2, largest))
    completions = tuple(draw(st.lists(texts, min_size=k, max_size=k, unique_by=_as_message)))
    return Preference(
        comparison=Comparison(
            prompt=draw(prompts),
            completions=completions,
            origins=tuple(draw(st.lists(origins, min_size=k, max_size=k))) if draw(st.booleans()) else (),
            columns=draw(columns),
        ),
        judgement=draw(judgements(k, kinds)),
    )


def ordered(preference: Preference) -> Preference:
    """Return the same preference with its completions sorted by text: the order in a file means nothing."""
    completions = preference.comparison.completions
    return preference.at(*sorted(range(len(completions)), key=lambda place: str(completions[place])))


def bare(preference: Preference) -> Preference:
    """Return texts and choice alone."""
    comparison, judgement = preference.comparison, preference.judgement
    return Preference(
        comparison=Comparison(prompt=comparison.prompt, completions=comparison.completions),
        judgement=Judgement(ranking=judgement.ranking, verdict=judgement.verdict),
    )


def pair(prompt: Text, chosen: Text, rejected: Text, **more: Any) -> Preference:
    """Return a preference for `chosen`."""
    comparison = Comparison(prompt=prompt, completions=(chosen, rejected))
    return Preference(comparison=comparison, judgement=Judgement.chosen("a", **more))


def write_lines(path: Path, *rows: Any) -> str:
    """Write `rows` as JSON lines, strings as they are, and return the path as text."""
    path.write_text("".join((row if isinstance(row, str) else json.dumps(row)) + "\n" for row in rows))
    return str(path)


def read_lines(path: Path) -> list[dict[str, Any]]:
    """Return the rows of a file of JSON lines."""
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


def read_all(source: str | Path, **options: Any) -> list[Preference]:
    """Return all preferences of a source."""
    return list(read_preferences(str(source), **options))


def user(content: str) -> Messages:
    """Return a user message."""
    return [{"role": "user", "content": content}]


def assistant(content: str) -> Messages:
    """Return an assistant message."""
    return [{"role": "assistant", "content": content}]
