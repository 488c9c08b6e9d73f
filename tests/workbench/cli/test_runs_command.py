"""`ppo-workbench samples` and `export`: what they print and write, and what they refuse."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
from rich.cells import cell_len
from runs_helper import record, tiny_config
from scripted_run import lines, make_run, refused
from token_samples import SETTINGS, sample_row

from trainer.models.peft_adapters import read_peft
from trainer.runs.folder import RunFolder
from trainer.runs.samples import write_samples
from workbench.cli import main as cli
from workbench.cli.runs import sample_card
from workbench.run.bookmarks import Bookmarks
from workbench.run.sample_table import Sample, SampleKey

HOSTILE = "[/x] \x1b[31m \x9b \u202e 日本語 🎉\n\t"
CARD = re.compile(r"(?P<iteration>\d+)·(?P<number>\d+)   score (?P<score>[+-][\d.]+)   KL (?P<kl>-?[\d.]+) nats.*")


def row(number: int, **changes: Any) -> dict[str, Any]:
    return sample_row(number, score=[0.5, -0.25, 0.75, 0.1][number], **changes)


@pytest.fixture
def run() -> RunFolder:
    """Make a run, a-0001, with two iterations of four samples in the working folder."""
    folder = RunFolder(make_run("a-0001"))
    for iteration in (1, 12):
        write_samples(folder.samples_file(iteration), [row(number) for number in range(4)], iteration, SETTINGS)
    return folder


def samples(capsys: pytest.CaptureFixture[str], *argv: str) -> tuple[int, list[tuple[int, int]], list[str]]:
    """Return the exit code, iteration and number of each sample printed, and the lines on stderr."""
    code = cli.main(["samples", "a-0001", *argv])
    out, err = lines(capsys)
    cards = [match for line in out if (match := CARD.fullmatch(line))]
    return code, [(int(card["iteration"]), int(card["number"])) for card in cards], err


@pytest.mark.parametrize(
    ("argv", "found", "note"),
    [
        ("", [(12, 1), (12, 2), (12, 3), (12, 4)], "4 of 4 samples"),
        ("--iteration all", [(it, number) for it in (12, 1) for number in (1, 2, 3, 4)], "8 of 8 samples"),
        ("--iteration 1", [(1, 1), (1, 2), (1, 3), (1, 4)], "4 of 4 samples"),
        ("--sort score", [(12, 3), (12, 1), (12, 4), (12, 2)], "4 of 4 samples"),
        ("--filter score>0.2\tstop:stop", [(12, 1)], "1 of 4 samples"),
        ("--sort score --limit 2", [(12, 3), (12, 1)], "2 of 4 samples"),
        ("--iteration all --filter is:marked", [(1, 3)], "1 of 8 samples"),
        ("--filter nowhere", [], "0 of 4 samples"),
    ],
)
def test_samples_are_chosen_by_iteration_filter_order_and_number(
    argv: str, found: list[tuple[int, int]], note: str, run: RunFolder, capsys: pytest.CaptureFixture[str]
) -> None:
    Bookmarks(run).toggle(SampleKey(1, 2))
    code, printed, (err,) = samples(capsys, *(word.replace("\t", " ") for word in argv.split(" ") if word))
    assert (code, printed) == (0, found)
    assert err.startswith(f"ppo-workbench: {note}")
    assert ("see more with --limit" in err) == ("--limit" in argv)


def test_a_card_has_the_facts_the_prompt_and_the_completion(run: RunFolder, capsys: pytest.CaptureFixture[str]) -> None:
    cli.main(["samples", "a-0001", "--limit", "1"])
    facts, prompt, completion, *_ = lines(capsys)[0]
    expected = row(0)
    assert facts == f"12·1   score +0.500   KL {expected['kl_sum']:.2f} nats   12 tokens"
    assert prompt == "  prompt  Prompt 0: once upon a time"
    assert completion.startswith(f"  text    {expected['completion'][:8]}")


def test_twenty_are_printed_unless_more_are_asked_for(run: RunFolder, capsys: pytest.CaptureFixture[str]) -> None:
    write_samples(run.samples_file(13), [sample_row(number) for number in range(30)], 13)
    assert len(samples(capsys)[1]) == 20
    assert len(samples(capsys, "--limit", "30")[1]) == 30
    assert cli.main(["samples", "a-0001", "--jsonl", "all.jsonl"]) == 0
    assert len(Path("all.jsonl").read_text().splitlines()) == 30
    capsys.readouterr()
    assert cli.main(["samples", "a-0001", "--jsonl", "-"]) == 0
    assert capsys.readouterr().out == Path("all.jsonl").read_text()
    assert cli.main(["samples", "a-0001", "--iteration", "1", "--markdown", "best.md"]) == 0
    assert re.findall(r"^## (.*)$", Path("best.md").read_text(), re.MULTILINE) == [
        f"Iteration 1, sample {number}" for number in (1, 2, 3, 4)
    ]


def test_a_response_without_a_score_is_shown_as_such(run: RunFolder, capsys: pytest.CaptureFixture[str]) -> None:
    unscored = sample_row(1) | {"score": None, "sequence_score": None, "parts": {"lexicon": None}, "advantages": None}
    write_samples(run.samples_file(13), [sample_row(0), unscored], 13)
    cli.main(["samples", "a-0001", "--filter=-score>-100", "--markdown", "samples.md"])
    assert "| `score` | not scored |\n| `lexicon` | not scored |" in Path("samples.md").read_text()
    capsys.readouterr()
    cli.main(["samples", "a-0001", "--filter", "is:unscored"])
    out, err = lines(capsys)
    assert out[0].startswith("13·2   not scored   KL ")
    assert "1 of 2 samples" in err[-1]
    assert "1 not scored" in err[-1]


def test_json_lines_hold_the_chosen_samples_and_the_path_is_printed(
    run: RunFolder, capsys: pytest.CaptureFixture[str]
) -> None:
    argv = ["samples", "a-0001", "--sort", "score", "--limit", "2", "--jsonl", "out/best.jsonl"]
    for name in ("out/best.jsonl", "out/best-2.jsonl"):
        assert cli.main(argv) == 0
        out, err = lines(capsys)
        assert (out, len(err)) == ([name], 1)
        found = [json.loads(line) for line in Path(name).read_text().splitlines()]
        assert [(one["iteration"], one["row"], one["score"]) for one in found] == [(12, 2, 0.75), (12, 0, 0.5)]
        assert [pair["action"] for pair in found[0]["sa_pairs"]] == row(2)["token_texts"]


def test_hostile_text_is_printed_and_not_obeyed(run: RunFolder, capsys: pytest.CaptureFixture[str]) -> None:
    write_samples(run.samples_file(13), [row(0, prompt=HOSTILE, completion=HOSTILE)], 13)
    cli.main(["samples", "a-0001"])
    out, _ = lines(capsys)
    assert all(line.isprintable() for line in out)
    assert any("[/x] ␛[31m" in line for line in out)


@pytest.mark.parametrize("width", [20, 80, 200])
def test_a_card_fits_the_terminal_and_says_that_there_is_more(width: int) -> None:
    long = Sample(SampleKey(1, 0), f"prompt {HOSTILE * 100}", f"日本 word {HOSTILE}" * 100, 0.5, 1.0, None, True)
    facts, *others = sample_card(long, width)
    assert facts.endswith("cut short")
    assert all(cell_len(line) <= width for line in others)
    assert others[-1].strip() == "…"
    assert len(others) <= 6


def test_a_damaged_file_causes_a_warning_and_the_others_are_printed(
    run: RunFolder, capsys: pytest.CaptureFixture[str]
) -> None:
    run.samples_file(12).write_bytes(b"damaged")
    code, found, err = samples(capsys, "--iteration", "all")
    assert (code, found) == (0, [(1, 1), (1, 2), (1, 3), (1, 4)])
    assert "warning: samples" in err[0]
    assert "step-000012.parquet" in err[0]


@pytest.mark.parametrize(
    ("argv", "code", "names"),
    [
        (["a-0001", "--iteration", "7"], 2, "from 1 to 12"),
        (["a-0001", "--iteration", "last"], 2, "newest, or all"),
        (["a-0001", "--filter", "scor>1"], 2, "score"),
        (["a-0001", "--limit", "0"], 2, "--limit 0"),
        (["a-0001", "--jsonl", "a", "--markdown", "b"], 2, "--markdown"),
        (["a-0001", "--jsonl", "."], 3, "is a folder"),
    ],
)
def test_impossible_requests_print_one_line_on_stderr(
    argv: list[str], code: int, names: str, run: RunFolder, capsys: pytest.CaptureFixture[str]
) -> None:
    returned, error = refused(capsys, "samples", *argv)
    assert (returned, names in error) == (code, True)


def test_a_run_without_samples_and_one_whose_only_file_is_damaged_are_reported(
    run: RunFolder, capsys: pytest.CaptureFixture[str]
) -> None:
    make_run("b-0001")
    run.samples_file(12).write_bytes(b"damaged")
    for name, problem in (("b-0001", "run.save_samples"), ("a-0001", "damaged")):
        code, error = refused(capsys, "samples", name)
        assert (code, problem in error) == (3, True)


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("trained")
    record(tiny_config(folder, "run.name=a", "ppo.iterations=2", "checkpoint.keep=0"))
    return folder


def export_run(capsys: pytest.CaptureFixture[str], *words: Any) -> tuple[int, str, str]:
    code = cli.main(list(map(str, words)))
    return code, *capsys.readouterr()


def test_the_folder_goes_to_stdout_and_what_is_lost_to_stderr(
    trained: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    code, out, err = export_run(capsys, "export", "a", "--dir", trained / "runs")
    assert (code, out) == (0, "exports/a\n")
    assert "lost: model.value_model, reward.sources, ppo.ratio_threshold" in err
    assert "exports/a/README.md" in err
    assert sorted(path.name for path in (tmp_path / "exports" / "a").iterdir() if path.is_dir()) == [
        "policy",
        "trl",
        "verl",
    ]


def test_a_checkpoint_and_a_base_can_be_named(
    trained: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    options = ("--checkpoint", 1, "--base", "someone/model")
    code, _, _ = export_run(capsys, "export", trained / "runs" / "a", "--output", tmp_path / "out", *options)
    assert code == 0
    first = read_peft(tmp_path / "out" / "policy", "llama")
    assert first.base == "someone/model"
    export_run(capsys, "export", trained / "runs" / "a", "--output", tmp_path / "out", "--force")
    assert read_peft(tmp_path / "out" / "policy", "llama").parameters.keys() == first.parameters.keys()
    assert (tmp_path / "out" / "trl" / "train.py").is_file()


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["b"], "no run 'b'"),
        (["a", "--checkpoint", "9"], "has no complete checkpoint 9"),
    ],
)
def test_mistakes_of_an_export_are_reported(
    trained: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], words: list[str], message: str
) -> None:
    code, out, err = export_run(capsys, "export", *words, "--dir", trained / "runs", "--output", tmp_path / "out")
    assert (code, out) == (2, "")
    assert message in err
    assert not (tmp_path / "out").exists()
