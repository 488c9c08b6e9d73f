"""What a run would refuse before it trains is a problem in Config already, in the trainer's words."""

from __future__ import annotations

from pathlib import Path

import pytest
from config_app import opened
from textual.widgets import OptionList
from tiny import make_checkpoint
from waiting import until

from trainer.config import load_config, parse_overrides
from trainer.data import load_prompts
from trainer.errors import TrainerError
from workbench.config.document import ConfigDocument
from workbench.config.estimates import file_problems


@pytest.fixture(autouse=True)
def _in_a_folder() -> None:
    Path("rows.jsonl").write_text('{"text": "Once"}\n')
    Path("empty").mkdir()


@pytest.mark.parametrize(
    ("overrides", "key", "words"),
    [
        (["model.path=./nowhere"], "model.path", "no such folder"),
        (["model.path=empty"], "model.path", "has no config.json"),
        (["model.path=rows.jsonl"], "model.path", "is a file"),
        (["model.adapter=nowhere"], "model.path", "nowhere"),
        (["model.policy_init=nowhere"], "model.policy_init", "nowhere"),
        (["model.value_init=nowhere", "model.value_model=adapter"], "model.value_init", "nowhere"),
        (["data.prompts=nowhere.jsonl"], "data.prompts", "no such file"),
        (["data.prompts=rows.jsonl"], "data.prompts", "no column 'prompt'"),
        (["reward.sources=['nowhere.py:score']"], "reward.sources", "no file 'nowhere.py'"),
        (["reward.sources=[{kind='model', path='nowhere'}]"], "reward.sources", "no such folder"),
    ],
)
def test_missing_material_is_a_problem_of_its_setting(overrides: list[str], key: str, words: str) -> None:
    [problem] = file_problems(load_config("quickstart", parse_overrides(overrides)))
    assert problem.key == key
    assert words in problem.message


def test_what_is_there_or_has_to_be_fetched_is_no_problem() -> None:
    make_checkpoint(Path("model"))
    there = ["model.path=model", "data.prompts=rows.jsonl", "data.column=text"]
    assert file_problems(load_config("quickstart", parse_overrides(there))) == []
    fetched = ["model.path=some/model", "data.prompts=some/prompts"]
    assert file_problems(load_config("quickstart", parse_overrides(fetched))) == []
    config = load_config("quickstart", parse_overrides(["data.prompts=rows.jsonl"]))
    with pytest.raises(TrainerError) as refused:
        load_prompts(config.data)
    assert [problem.message for problem in file_problems(config)] == [str(refused.value)], "in the words of the run"


async def test_the_pane_shows_missing_files_until_they_are_there() -> None:
    document = ConfigDocument.open("quickstart")
    document.set("data.prompts", "later.jsonl")
    async with opened(document) as one:
        listed = one.app.query_one("#config-problems", OptionList)
        await until(one.pilot, lambda: "✖ 1 problem" in one.text())
        assert listed.display
        await one.press("e")
        assert one.pane.form.rows.selected is not None
        assert one.pane.form.rows.selected.key == "data.prompts"
        Path("later.jsonl").write_text('{"prompt": "Once"}\n')
        one.pane.display = False
        await one.pilot.pause()
        one.pane.display = True  # as when the user comes back to it
        await until(one.pilot, lambda: "✓ no problems" in one.text())
        assert not listed.display
