"""Values of newer versions that this one does not know are shown as they are, by whatever reads a journal."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

import pytest
from scripted_run import alarm, ended, iteration, started, write_events
from views import drawn, view_of

from trainer.config import Config
from trainer.events import Alert, Decision, Event, Fix, PhaseProgress, StateChanged
from trainer.monitoring import Monitor
from trainer.runs.folder import RunFolder
from trainer.runs.listing import list_runs
from workbench.cli.main import main
from workbench.kit.pane_strip import fitted, status_pieces
from workbench.run.run_on_disk import RunOnDisk
from workbench.run.sentences import sentences
from workbench.runs.table import COLUMNS
from workbench.training.alarms import alarm_lines
from workbench.training.timeline import timeline

HOSTILE = "quantum\x1b[2J"
SHOWN = "quantum␛[2J"
END = dataclasses.replace(ended(), state=HOSTILE)  # type: ignore[arg-type]
DECISION = {"iteration": 3, "message": "because", "evidence": {}, "code": "convergence_quantum"}


@pytest.fixture
def folder(tmp_path: Path) -> RunFolder:
    """Make a run whose events have newer values wherever there is a choice of values."""
    run: Any = {"state": HOSTILE}
    events: list[Event] = [
        started(run_kind=HOSTILE),
        StateChanged(**run),
        iteration(3),
        alarm(3, code=HOSTILE, level=HOSTILE, fixes=[Fix(label="fix it", action=HOSTILE)]),  # type: ignore[arg-type]
        Alert(iteration=3, level=HOSTILE, code="news", message="see here"),  # type: ignore[arg-type]
        Decision(**DECISION, level=HOSTILE, rule=HOSTILE, action=HOSTILE),  # type: ignore[arg-type]
        END,
    ]
    root = tmp_path / "runs/a"
    root.mkdir(parents=True)
    (root / "config.toml").write_text(f"kind = {json.dumps(HOSTILE)}\n[ppo]\niterations = 12\n[model]\npath = 'x'\n")
    write_events(root, *events)
    return RunFolder(root)


def test_the_list_of_runs_and_its_json_show_an_unknown_state(
    folder: RunFolder, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["runs", "--dir", str(folder.root.parent)]) == 0
    assert f"a    {SHOWN}" in capsys.readouterr().out
    assert main(["runs", "--dir", str(folder.root.parent), "--json"]) == 0
    values = json.loads(capsys.readouterr().out)
    assert (values["state"], values["kind"], values["damaged"]) == (HOSTILE, HOSTILE, False)
    [run] = list_runs(folder.root.parent)
    assert [column.text(run, 0.0) for column in COLUMNS][1] == f"● {SHOWN}"


def test_the_list_of_runs_says_that_a_newer_version_configured_one(folder: RunFolder) -> None:
    folder.config.write_text("schema = 99\n")
    (run,) = list_runs(folder.root.parent)
    assert "config.toml' was written by a newer version (schema 99" in run.problem


def test_the_screen_and_the_headless_displays_show_unknown_states_levels_and_phases(folder: RunFolder) -> None:
    view = view_of(*RunOnDisk(folder.root).take())
    assert f"● {SHOWN}" in fitted(status_pieces(view), 200).plain
    view.take(PhaseProgress(iteration=4, phase=HOSTILE, done=1, total=2))  # type: ignore[arg-type]
    assert f"{SHOWN} ━" in fitted(status_pieces(view), 200).plain
    shown = drawn(view, 120)
    assert f"● {SHOWN}" in shown
    assert "⚠ iteration 3: see here" in shown
    texts = ["".join(text for text, _ in line) for line in timeline(view.marks, 60)]
    assert any(SHOWN in text for text in texts)
    [line] = alarm_lines(view.alarms, 100, 3, "A")
    assert SHOWN in "".join(text for text, _ in line)
    reported = [sentence for event in RunOnDisk(folder.root).take() for sentence in sentences(event)]
    assert f"iteration 3: {HOSTILE}: see here" in reported  # the writer makes it visible
    assert f"iteration 3: decision to {HOSTILE}: because" in reported


def test_a_resumed_run_skips_unknown_decisions_and_alarms(folder: RunFolder) -> None:
    past = RunOnDisk(folder.root).take()
    assert Monitor(Config, past).due(3) is None
