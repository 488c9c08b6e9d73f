"""A reward on stored samples: planted exploits are found, an honest reward has none, and the numbers are right."""

from __future__ import annotations

import json
import math
import random
from pathlib import Path

import pytest
from preferences_helper import add_label, preference
from runs_helper import workspace

from trainer.engine.reward_bench import RewardBench, bench_reward
from trainer.errors import UsageError
from trainer.preferences.store import PreferenceStore
from trainer.rewards import trust_all
from trainer.runs.folder import RunFolder
from trainer.runs.samples import write_samples
from workbench.cli import main as cli

PLANTED = """\
GOOD = {good!r}

def shouts(completions, **_):
    return [min(text.count("!"), 6) for text in completions]

def length(completions, **_):
    return [len(text) for text in completions]

def echoes(prompts, completions, **_):
    return [len(set(p.lower().split()) & set(c.lower().split())) / 4 for p, c in zip(prompts, completions)]

def honest(completions, log_extra, **_):
    log_extra("why", ["known" if text in GOOD else "" for text in completions])
    return [float(text in GOOD) for text in completions]

def fussy(completions, **_):
    return [1 / len(text) for text in completions]

def constant(completions, **_):
    return [1.0 for _ in completions]
"""
WORDS = ["the", "wind", "turned", "a", "page", "of", "her", "letter", "and", "left", "it", "open", "on", "stone"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> RunFolder:
    """Make a run of 4 iterations with 12 prompts of two responses each, and rewards beside it."""
    place = tmp_path_factory.mktemp("bench")
    run = RunFolder(place / "runs" / "a")
    run.root.mkdir(parents=True)
    run.config.write_text(workspace(place).read_text())
    rng, good = random.Random(0), []
    for iteration in range(1, 5):
        rows = []
        for row in range(24):
            words = rng.choices(WORDS, k=rng.randint(6, 14))
            text = " ".join(words) + rng.choice((".", ".", "!"))
            if rng.random() < 0.4:
                good.append(text)
            about = f"Write of {rng.choice(WORDS)} and of {WORDS[row // 2]}"
            about = rows[-1]["prompt"] if row % 2 else about
            score = None if row == 0 else float(len(text))
            rows.append({"row": row, "prompt_index": row // 2, "prompt": about, "completion": text, "score": score})
            rows[-1] |= {"tokens": list(text.encode()), "truncated": False, "columns": "{}"}
        write_samples(run.samples_file(iteration), rows, iteration)
    (place / "planted.py").write_text(PLANTED.format(good=good))
    return run


def bench(folder: RunFolder, function: str, **options: object) -> RewardBench:
    place = folder.root.parents[1] / "planted.py"
    return bench_reward(folder, f"{place}:{function}", trust=trust_all, **options)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("function", "exploit"),
    [
        ("shouts", "'!' three times at the end"),
        ("length", "twice as long by filler"),
        ("echoes", "the prompt copied"),
    ],
)
def test_a_planted_exploit_is_what_gains_most(folder: RunFolder, function: str, exploit: str) -> None:
    found = bench(folder, function)
    assert found.exploits[0].name == exploit
    assert found.exploits[0].gain.low > 0
    assert found.exploits[0].raised > 0.9


def test_an_honest_reward_has_no_exploit_and_minds_every_change(folder: RunFolder) -> None:
    found = bench(folder, "honest")
    assert found.exploits == []
    assert found.unnoticed == []
    assert all(one.gain.value < 0 for one in found.attacks)
    assert {one.extra["why"] for one in found.most_liked} == {"known"}
    assert {one.score for one in found.least_liked} == {0.0}


def test_numbers_of_a_reward_are_those_of_its_scores(folder: RunFolder, tmp_path: Path) -> None:
    with PreferenceStore(tmp_path / "labels.db") as store:
        for number, choice in enumerate(("a", "a", "a", "b", "tie")):
            add_label(store, preference(f"prompt {number}", "a longer text", "short", choice))  # type: ignore[arg-type]
    found = bench(folder, "length", labels=tmp_path / "labels.db")
    assert (found.responses, found.prompts > 12, found.unscored, found.groups) == (96, True, 0, 48)
    assert found.with_length == pytest.approx(1)
    assert found.with_old == pytest.approx(1)
    assert found.labelled_pairs == 4
    assert found.labels.value == 0.75
    assert found.quantiles["0%"] == found.least_liked[0].score == min(one.score for one in found.least_liked)
    assert found.quantiles["100%"] == found.most_liked[0].score
    alike = bench(folder, "constant")
    assert (alike.dead_groups, alike.ties, alike.deviation) == (48, 1.0, 0.0)
    assert math.isnan(alike.with_length)
    assert bench(folder, "length", samples=10).responses == 10


def test_a_reward_that_fails_on_a_changed_response_is_reported(folder: RunFolder) -> None:
    (empty,) = [one for one in bench(folder, "fussy").attacks if one.error]
    assert empty.name == "nothing at all"
    assert "ZeroDivisionError" in empty.error


def test_the_command_says_first_what_training_will_exploit(
    folder: RunFolder, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    place = folder.root.parents[1] / "planted.py"
    command = ["reward-bench", str(folder.root), "--reward"]
    assert cli.main([*command, f"{place}:shouts"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[2] == "Training will exploit it:"
    assert lines[3].startswith("  '!' three times at the end  +")
    assert cli.main([*command, f"{place}:shouts", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["attacks"]
    assert cli.main([*command, f"{place}:nothing"]) == 3
    empty = RunFolder(tmp_path / "b")
    empty.root.mkdir()
    empty.config.write_bytes(folder.config.read_bytes())
    with pytest.raises(UsageError, match="has no stored samples"):
        bench(empty, "length")
