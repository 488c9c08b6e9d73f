"""Exports hold a sample for any reader of JSON or Markdown, whole or not at all, and never over another file."""

from __future__ import annotations

import json
import math
import re
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pytest
from token_samples import SETTINGS, sample_without_critic, token_sample

from trainer.errors import StorageError
from trainer.files import unused
from trainer.runs.samples import TOKEN_COLUMNS
from workbench.samples.export import export_samples, sa_pairs

HOSTILE = [" `a|b`", "\\|", "<script>", "```", "\x1b[2J", "\x9b", "\u202e", "**", "[x](y)", "&amp;", "\ud800", "é", ""]


def exported(path: Path) -> list[dict[str, Any]]:
    def no_constant(name: str) -> None:
        raise AssertionError(f"{name} is not JSON")

    return [json.loads(line, parse_constant=no_constant) for line in path.read_text("utf-8").splitlines()]


def test_each_token_of_the_response_is_one_pair_with_the_text_before_it_and_its_numbers() -> None:
    sample = token_sample(row=3)
    names = {"policy_logprob": "logprobs", "ref_logprob": "ref_logprobs", "kl": "kl", "reward": "rewards",
             "value": "values", "td_error": "td_errors", "advantage": "advantages", "return": "returns"}  # fmt: skip
    for step, pair in enumerate(pairs := list(sa_pairs(sample))):
        state = sample.prompt + "".join(sample.texts[:step])
        place = {"sequence": 3, "step": step, "state": state, "action": sample.texts[step]}
        numbers = {name: sample.numbers[column][step] for name, column in names.items()}
        assert pair == {**place, "token": sample.tokens[step], **numbers}
    assert len(pairs) == len(sample) > 0


def test_a_line_of_json_holds_the_whole_record(tmp_path: Path) -> None:
    samples = [token_sample(12, row) for row in range(3)]
    lines = exported(export_samples(samples, tmp_path / "a.jsonl", markdown=False))
    assert [(line["iteration"], line["row"]) for line in lines] == [(12, 0), (12, 1), (12, 2)]
    for sample, line in zip(samples, lines, strict=True):
        assert line["columns"] == {"mood": "warm"}
        assert line["settings"] == asdict(SETTINGS)
        assert line["length"] == len(line["tokens"]) == len(line["token_texts"]) == len(sample)
        assert line["parts"] == sample.parts
        assert {name: line[name] for name in TOKEN_COLUMNS} == sample.numbers
        assert line["ratios"] == sample.ratios
        assert [[one["text"] for one in place] for place in line["alternatives"]] == [
            [one.text for one in place] for place in sample.alternatives
        ]
        assert line["sa_pairs"] == list(sa_pairs(sample))


def test_numbers_that_json_lacks_become_null_and_an_empty_response_has_no_pairs(tmp_path: Path) -> None:
    sample = token_sample(length=3, kl=[math.nan, math.inf, 1.5], score=-math.inf, columns="no JSON")
    empty = replace(token_sample(), tokens=[], texts=[], completion="", numbers={}, ratios=[], alternatives=[])
    line, bare = exported(export_samples([sample, empty], tmp_path / "a.jsonl", markdown=False))
    assert line["kl"] == [None, None, 1.5]
    assert (line["score"], line["columns"]) == (None, "no JSON")
    assert [pair["kl"] for pair in line["sa_pairs"]] == [None, None, 1.5]
    assert bare["sa_pairs"] == bare["tokens"] == []


def test_hostile_text_comes_back_from_json_as_it_was_and_the_file_is_safe_to_print(tmp_path: Path) -> None:
    path = export_samples([token_sample(texts=HOSTILE, prompt="\x1b]0;x\x07")], tmp_path / "a.jsonl", markdown=False)
    (line,) = exported(path)
    assert line["token_texts"] == HOSTILE
    assert line["sa_pairs"][-1]["state"] == "\x1b]0;x\x07" + "".join(HOSTILE[:-1])
    assert path.read_text("ascii").rstrip("\n").isprintable()


def test_markdown_shows_prompt_response_scores_and_a_row_for_each_token(tmp_path: Path) -> None:
    sample = token_sample(12, 2)
    text = export_samples([sample], tmp_path / "a.md", markdown=True).read_text("utf-8")
    assert "## Iteration 12, sample 3\n" in text
    assert f"```text\n{sample.prompt}\n```\n" in text
    assert f"```text\n{sample.completion}\n```\n" in text
    assert "### Response, cut short" in text
    assert f"| `score` | {sample.score:+.4f} |" in text
    assert f"| `lexicon` | {sample.parts['lexicon']:+.4f} |" in text
    rows = [line for line in text.splitlines() if re.match(r"\| \d+ \|", line)]
    assert len(rows) == len(sample)
    assert rows[0].split(" | ")[2] == "100"
    assert f"{sample.numbers['advantages'][0]:+.4f}" in rows[0]


def cells(row: str) -> list[str]:
    """Split a row of a table as GitHub does: at every bar without a backslash before it."""
    return [cell.strip() for cell in re.split(r"(?<!\\)\|", row)[1:-1]]


def test_no_text_of_a_sample_becomes_markup(tmp_path: Path) -> None:
    prompt = "````\n# no heading\n<b>\n" + "~~~"
    sample = token_sample(texts=HOSTILE, prompt=prompt, parts={"a|b `c` <i>": 1.0})
    text = export_samples([sample], tmp_path / "a.md", markdown=True).read_text("utf-8")
    assert all(character == "\n" or character.isprintable() for character in text)
    assert f"\n`````text\n{prompt}\n`````\n" in text  # its fence is longer than any in it
    outside = re.sub(r"^(`{3,})text\n.*?^\1\n", "", text, flags=re.DOTALL | re.MULTILINE)
    for row in (line for line in outside.splitlines() if line.startswith("|")):
        for cell in cells(row):
            in_code = re.fullmatch(r"`[^`|\\]+`", cell)
            assert in_code or not re.search(r"[`<>\\*_\[\]]|&(?!#\d+;)", cell), cell
    assert (
        len({len(cells(line)) for line in outside.splitlines() if line.startswith("| ") and len(cells(line)) > 2}) == 1
    )


@pytest.mark.parametrize("estimator", ["reinforce", "rloo", "remax", "grpo"])
def test_without_a_critic_exports_have_the_baseline_and_no_values(tmp_path: Path, estimator: str) -> None:
    sample = sample_without_critic(estimator)
    (line,) = exported(export_samples([sample], tmp_path / "a.jsonl", markdown=False))
    assert (line["baseline"], line["final_value"]) == (0.25, None)
    assert line["advantage_scale"] == (0.5 if estimator == "grpo" else None)
    assert "values" not in line
    assert all("value" not in pair and "td_error" not in pair and "return" in pair for pair in sa_pairs(sample))
    text = export_samples([sample], tmp_path / "a.md", markdown=True).read_text()
    assert "| `baseline` | +0.2500 |" in text
    assert ("divisor" in text) == (estimator == "grpo")
    header = next(row for row in text.splitlines() if "log-prob" in row)
    assert "advantage" in header
    assert "value" not in header


def test_a_name_that_is_taken_gets_a_number_and_the_existing_file_stays(tmp_path: Path) -> None:
    paths = [export_samples([token_sample(row=row)], tmp_path / "a.b.md", markdown=True) for row in range(3)]
    assert [path.name for path in paths] == ["a.b.md", "a.b-2.md", "a.b-3.md"]
    assert "sample 1\n" in paths[0].read_text()
    assert unused(tmp_path / "free.md") == tmp_path / "free.md"


def test_an_unwritable_path_is_reported_in_one_line(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    for path in (tmp_path / "file" / "a.md", tmp_path, Path(), tmp_path / ("x" * 300)):
        with pytest.raises(StorageError) as reported:
            export_samples([token_sample()], path, markdown=True)
        assert str(path) in str(reported.value)
        assert "\n" not in str(reported.value)
