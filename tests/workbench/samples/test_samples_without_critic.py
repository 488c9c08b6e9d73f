"""Samples of a run without a critic are listed, opened, asked about and written like all others."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
from samples_app import Run, Workbench, opened, settle
from token_samples import SETTINGS, row_without_critic

from trainer.runs.folder import RunFolder
from trainer.runs.samples import write_samples
from workbench.run.sample_reader import read_token_sample
from workbench.run.sample_table import SampleKey
from workbench.samples.advantage_screen import AdvantageScreen, AdvantageSum
from workbench.samples.export import export_samples, sa_pairs
from workbench.samples.sample_view import SampleView, TokenLegend
from workbench.samples.token_facts import sentence

ESTIMATORS = ("reinforce", "rloo", "remax", "grpo")


def write(folder: RunFolder, estimator: str) -> None:
    rows = [row_without_critic(estimator, row, 4) for row in range(2)]
    folder.root.mkdir(exist_ok=True)
    write_samples(folder.samples_file(1), rows, 1, replace(SETTINGS, estimator=estimator))


def legend(app: Workbench) -> str:
    widget = app.query_one(TokenLegend)
    return "\n".join(widget.render_line(y).text for y in range(widget.size.height))


async def test_every_channel_is_drawn_and_those_of_the_critic_are_marked_as_not_saved(tmp_path: Path) -> None:
    app = Workbench()
    async with app.run_test(size=(110, 36)) as pilot:  # the legend is below the row of channels
        run = Run(tmp_path)
        write(run.folder, "grpo")
        run.announce(1, 2)
        text = await opened(pilot, run)
        for key in ("d", "underscore", "v", "b"):
            await pilot.press(key)
            await settle(pilot)
        assert "value  not saved in this run" in legend(app)
        assert "underline: TD error  not saved in this run" in legend(app)
        for key, name in (("a", "advantage"), ("t", "return"), ("r", "reward"), ("k", "KL")):
            await pilot.press(key)
            assert "not saved" not in legend(app).splitlines()[0]
            assert legend(app).startswith(name)
        facts = app.query_one(SampleView).facts
        assert facts is not None
        assert facts.value is None
        assert "critic" not in sentence(facts)
        text.action_choose()
        await pilot.pause()
        assert isinstance(app.screen, AdvantageScreen)
        widget = app.screen.query_one(AdvantageSum)
        shown = "\n".join(widget.render_line(y).text for y in range(widget.scrollable_content_region.height))
        assert "V(s" not in shown
        assert "A_t   = " in shown


@pytest.mark.parametrize("estimator", ESTIMATORS)
def test_exports_have_the_baseline_and_no_values(tmp_path: Path, estimator: str) -> None:
    folder = RunFolder(tmp_path)
    write(folder, estimator)
    sample = read_token_sample(folder, SampleKey(1, 0))
    line = json.loads(export_samples([sample], tmp_path / "a.jsonl", markdown=False).read_text())
    assert line["baseline"] == 0.25
    assert line["advantage_scale"] == (0.5 if estimator == "grpo" else None)
    assert line["final_value"] is None
    assert line["settings"]["estimator"] == estimator
    assert "values" not in line
    assert all("value" not in pair and "td_error" not in pair and "return" in pair for pair in sa_pairs(sample))
    text = export_samples([sample], tmp_path / "a.md", markdown=True).read_text()
    assert "| `baseline` | +0.2500 |" in text
    assert ("divisor" in text) == (estimator == "grpo")
    header = next(row for row in text.splitlines() if "log-prob" in row)
    assert "advantage" in header
    assert "value" not in header
