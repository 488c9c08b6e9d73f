"""An instance of every dialog, with little in it."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import scripted_run
from scripted_run import FIXES
from textual.screen import Screen
from token_samples import token_sample

from trainer.rewards.code import Code
from trainer.runs.folder import RunFolder
from workbench.kit.dialog import AnswerScreen, ConfirmScreen, Dialog, Reply, TextPromptScreen
from workbench.kit.help import DocScreen
from workbench.kit.jump import JumpScreen
from workbench.labelling.dialogs import GuidelinesScreen, LabelHistoryScreen, NoteScreen
from workbench.labelling.plans import SessionOptions
from workbench.labelling.start_screen import LabelStartScreen
from workbench.labelling.transfer import ExportPreferencesScreen, ImportPreferencesScreen
from workbench.run.sample_table import Sample, SampleKey
from workbench.runs.bench_screen import RewardBenchScreen
from workbench.samples.advantage_screen import AdvantageScreen
from workbench.samples.ask_screen import AskScreen
from workbench.samples.prompt_history import PromptHistoryScreen
from workbench.screen.dialogs import Plan, QuitScreen, RunQuestion, TrustScreen, UnsavedScreen
from workbench.training.alarms import AlarmScreen
from workbench.training.pane import ChooseMetricsScreen


def no_labels(*_: object) -> Future[list[Any]]:
    found: Future[list[Any]] = Future()
    found.set_result([])
    return found


SAMPLE = Sample(SampleKey(1, 0), "Once", " there was", 0.5, 1.0, 3, truncated=False)
STORE = Path("preferences.db")
DIALOGS: dict[type[Dialog[Any]], Callable[[], Dialog[Any]]] = {
    AdvantageScreen: lambda: AdvantageScreen(token_sample(), 0),
    AlarmScreen: lambda: AlarmScreen([scripted_run.alarm(1)], lambda _: FIXES),
    AnswerScreen: lambda: AnswerScreen("Which?", [Reply("a", "A")]),
    AskScreen: lambda: AskScreen(cast("Any", no_labels), None, temperature=1.0, max_new_tokens=4),
    ChooseMetricsScreen: lambda: ChooseMetricsScreen(["kl"]),
    ConfirmScreen: lambda: ConfirmScreen("Do it?"),
    DocScreen: lambda: DocScreen("keys"),
    ExportPreferencesScreen: lambda: ExportPreferencesScreen(STORE),
    GuidelinesScreen: lambda: GuidelinesScreen("Be kind."),
    JumpScreen: lambda: JumpScreen(Screen()),
    LabelHistoryScreen: lambda: LabelHistoryScreen(cast("Any", SimpleNamespace(history=no_labels))),
    ImportPreferencesScreen: lambda: ImportPreferencesScreen(STORE),
    LabelStartScreen: lambda: LabelStartScreen(
        [], STORE, [], options=SessionOptions(labeller="anna"), begin=cast("Any", no_labels)
    ),
    NoteScreen: lambda: NoteScreen(""),
    PromptHistoryScreen: lambda: PromptHistoryScreen(RunFolder(Path("runs/past")), SAMPLE),
    RewardBenchScreen: lambda: RewardBenchScreen(Path("runs/past"), "lexicon"),
    RunQuestion: lambda: RunQuestion(Plan("Start this run?", [("model", "starter")], ["wide"]), "Start run"),
    QuitScreen: lambda: QuitScreen("a run"),
    TextPromptScreen: lambda: TextPromptScreen("Name", ""),
    TrustScreen: lambda: TrustScreen([Code("rewards.py", "0" * 64, "def score(): ...")]),
    UnsavedScreen: lambda: UnsavedScreen("my.toml"),
}
