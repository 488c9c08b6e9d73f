"""The list of held-out pairs: filtered, sorted, exported, and read beside the list where there is room."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from reward_pane_app import Run, Workbench, pair, workbench
from textual.widgets import Input
from waiting import until

from trainer.errors import StorageError
from trainer.preferences.formats import read_preferences
from workbench.kit.cursor_list import FilterField
from workbench.kit.saving import write_lines
from workbench.reward_model.pairs import RewardPairList, RewardPairText, chosen_pairs, export_rows


@pytest.fixture(autouse=True)
def _in_a_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def listed(app: Workbench) -> list[str]:
    """Return the prompts listed, from the top."""
    return [str(pair.prompt) for pair in app.pane.listed]


def test_pairs_are_sorted_with_ties_last_and_filtered_by_all_words() -> None:
    wrong = pair(1, -2.0, chosen_tokens=9, rejected_tokens=9)
    unsure = pair(2, 0.1, chosen_tokens=30, rejected_tokens=2, chosen="Blue is SCATTERED.")
    sure = pair(3, 3.0, chosen_tokens=5, rejected_tokens=6)
    tie = pair(4, 0.0, is_tie=True, chosen_tokens=90, rejected_tokens=1)
    given = [wrong, unsure, sure, tie]
    assert chosen_pairs(given, " ", "most wrong first", reverse=False) is given
    assert chosen_pairs(given, "", "least sure first", reverse=False) == [unsure, wrong, sure, tie]
    assert chosen_pairs(given, "", "most unequal lengths first", reverse=False) == [unsure, sure, wrong, tie]
    assert chosen_pairs(given, "", "most wrong first", reverse=True) == given[::-1]
    assert chosen_pairs(given, "scattered blue", "most wrong first", reverse=False) != []
    assert chosen_pairs(given, "scattered. blue", "most wrong first", reverse=False) == [unsure]
    assert chosen_pairs(given, "question nowhere", "least sure first", reverse=False) == []


def test_exported_pairs_can_be_imported_as_preferences(tmp_path: Path) -> None:
    messages = [{"role": "user", "content": "p"}]
    answers = [[{"role": "assistant", "content": text}] for text in "xy"]
    talk = pair(2, prompt=messages, chosen=answers[0], rejected=answers[1])
    pairs = [pair(1, prompt="p \x1b[31m\u2028"), talk, pair(3, 0.0, is_tie=True)]
    path = tmp_path / "pairs.jsonl"
    write_lines(path, export_rows(pairs))
    rows = [json.loads(line) for line in path.read_text().splitlines()]
    assert [(row["lead"], row["chosen_reward"], row["key"]) for row in rows] == [
        (one.lead, one.chosen_reward, one.key) for one in pairs
    ]
    found = list(read_preferences(str(path)))
    assert [preference.comparison.prompt for preference in found] == [one.prompt for one in pairs]
    assert [preference.comparison.completions for preference in found] == [(one.chosen, one.rejected) for one in pairs]
    assert [preference.judgement.choice for preference in found] == ["a", "a", "tie"]
    with pytest.raises(StorageError):
        write_lines(path, export_rows(pairs))


async def test_the_keys_filter_sort_and_export_the_list(tmp_path: Path) -> None:
    Run("liked").train()
    async with workbench((120, 40)) as (app, pilot):
        usual = listed(app)
        await pilot.press("slash", *"question", "space", "1")
        await until(pilot, lambda: 0 < len(listed(app)) < len(usual))
        filtered = listed(app)
        assert f"{len(filtered)} with these words" in app.screen_text
        await pilot.press("enter", "o")
        await until(pilot, lambda: "least sure first" in app.screen_text)
        assert sorted(listed(app)) == sorted(filtered)
        leads = [abs(one.lead) for one in app.pane.listed]
        assert leads == sorted(leads)
        await pilot.press("O")
        await until(pilot, lambda: "least sure first, reversed" in app.screen_text)
        await pilot.press("x")
        await until(pilot, lambda: app.screen.query(Input).first(Input).value == "pairs.jsonl")
        await pilot.press("enter")
        await until(pilot, lambda: Path("pairs.jsonl").exists())
        await until(pilot, lambda: len(app.screen_stack) == 1)
        assert len(Path("pairs.jsonl").read_text().splitlines()) == len(filtered)
        await pilot.press("escape")
        await until(pilot, lambda: len(listed(app)) == len(usual))
        assert not app.query_one(FilterField).display
        await pilot.press("slash", *"nowhere")
        await until(pilot, lambda: "No pair has these words." in app.screen_text)
        await pilot.press("escape")
        await until(pilot, lambda: len(listed(app)) == len(usual))


async def test_a_wide_pane_shows_the_selected_pair_beside_the_list() -> None:
    Run("liked").train()
    async with workbench((200, 60)) as (app, pilot):
        text = app.query_one(RewardPairText)
        assert text.display
        for key in ("down", "down", "up"):
            await pilot.press(key)
            assert app.pane.selected is not None
            assert str(app.pane.selected.prompt) in app.opened
        assert text.region.x >= app.query_one(RewardPairList).region.right
        assert app.focused is app.query_one(RewardPairList)
        await pilot.press("enter")
        await until(pilot, lambda: app.focused is text)
        await pilot.press("escape")
        await until(pilot, lambda: app.focused is app.query_one(RewardPairList))
        assert text.display
        await pilot.resize_terminal(120, 40)
        await until(pilot, lambda: not text.display)
