"""Samples in a list take the same number of lines each, and no model text is obeyed."""

from __future__ import annotations

import math
from typing import Any

import pytest
from rich.cells import cell_len

from workbench.run.sample_table import Sample, SampleKey
from workbench.samples.sample_list import sample_facts, sample_lines

WIDTHS = range(38, 201)
HOSTILE = "[/x] [@click=app.quit]x[/] \x1b[31m \x9b \u202eabc \u2028 שלום 🎉👨‍👩‍👧 e\u0301 日本語\t\n"


def sample(**changes: Any) -> Sample:
    values: dict[str, Any] = {
        "key": SampleKey(12, 2),
        "prompt": "Once upon a time",
        "completion": " there was joy.",
        "score": 0.81,
        "kl": 7.94,
        "length": 29,
        "truncated": False,
    }
    return Sample(**values | changes)


def test_facts_are_in_full_where_they_fit_and_short_where_not() -> None:
    cut = sample(truncated=True)
    assert sample_facts(cut) == "  3   score +0.81   KL 7.9 nats   29 tokens   ✂ cut short"
    assert sample_facts(cut, short=True) == "  3  +0.81  KL 7.9  29 tok  ✂"
    assert sample_facts(sample(), marked=True).startswith("  3 ★   score")
    assert sample_facts(sample(), iteration=True).startswith("   12·3   score")
    assert sample_facts(sample(score=math.nan, kl=math.inf, length=None)) == "  3   not scored   KL - nats"


def test_a_sample_takes_the_same_lines_whatever_is_in_it() -> None:
    for one in (sample(), sample(prompt="", completion=""), sample(prompt=HOSTILE * 50, completion=HOSTILE * 50)):
        for width in WIDTHS:
            lines = sample_lines(one, width)
            assert len(lines) == 5
            assert lines[4] == ""
            assert max(map(cell_len, lines)) <= width


def test_the_end_of_a_prompt_is_shown_without_its_template_and_the_start_of_a_completion() -> None:
    prompt = "<|im_start|>user\n" + "x" * 200 + " sky is blue?<|im_end|>\n<|im_start|>assistant\n"
    _, shown, first, second, _ = sample_lines(sample(prompt=prompt, completion="word " * 100), 40)
    assert shown.endswith("x sky is blue?")
    assert shown.startswith("…")
    assert cell_len(shown) == 40
    assert first == " ".join(["word"] * 8)
    assert second.endswith("…")
    _, shown, first, second, _ = sample_lines(sample(), 40)
    assert (shown, first.strip(), second) == ("Once upon a time", "there was joy.", ""), "whole where they fit"
    llama = "Why?<|eot_id|><|start_header_id|>assistant<|end_header_id|>\n\n"
    assert sample_lines(sample(prompt=llama), 40)[1] == "Why?"


def test_only_the_visible_part_of_a_megabyte_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    looked_at: list[int] = []
    monkeypatch.setattr("workbench.samples.sample_list.visible", lambda text, **_: looked_at.append(len(text)) or text)
    huge = sample(prompt="p" * 1_000_000, completion="c" * 1_000_000)
    lines = sample_lines(huge, 80)
    assert max(looked_at) < 1000
    assert lines[3].endswith("…")


def test_hostile_text_is_shown_and_not_obeyed() -> None:
    one = sample(prompt=HOSTILE, completion=HOSTILE)
    listed = "\n".join(sample_lines(one, 120))
    assert listed.count("[@click=app.quit]x[/] ␛[31m \\x9b \\u202eabc \\u2028 שלום 🎉") == 2
    assert not {"\x1b", "\x9b", "\u202e", "\u2028", "\t"} & set(listed)
