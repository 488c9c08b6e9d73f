"""Every word of every dialog can be read as it is drawn, in every theme."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any, cast

import pytest
from colors import SPECS
from dialogs import DIALOGS, STORE, no_labels
from label_material import run_with_samples
from label_screens import Host
from snapshots import drawn_pieces
from textual.widgets import OptionList
from waiting import until

from trainer.preferences.records import QueuePlan, SessionPlan, SessionRecord
from workbench.kit.jump import JumpScreen
from workbench.kit.theming import shipped_themes
from workbench.labelling.plans import SessionOptions
from workbench.labelling.start_screen import LabelStartScreen

_OFF = "▌X▐"  # a box that is off: its mark is not to be seen
HEX = [name for name, spec in SPECS.items() if not spec.ansi]


def full_start() -> LabelStartScreen:
    """Return the dialog that begins labelling, with a session to resume and a run."""
    plan = SessionPlan(queues=(QueuePlan(queue="samples", source="/runs/a-0001"),))
    session = SessionRecord(id=1, labeller="anna", plan=plan, guidelines="", began=time.time(), items=9, done=3)
    options, begin = SessionOptions(labeller="anna", flagged=("k",)), cast("Any", no_labels)
    return LabelStartScreen([run_with_samples("a-0001")], STORE, [session], options=options, begin=begin)


async def test_every_word_of_every_dialog_can_be_read_as_it_is_drawn(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Letters of the jump mode stand on the screen behind: see test_jump.py.
    dialogs = {kind: make for kind, make in DIALOGS.items() if kind is not JumpScreen} | {LabelStartScreen: full_start}
    faint: dict[tuple[str, str, str], float] = {}
    app = Host()
    for theme in shipped_themes().values():
        app.register_theme(theme)
    async with app.run_test(size=(120, 40)) as pilot:
        for kind, make in dialogs.items():
            app.push_screen(dialog := make())
            await until(pilot, lambda dialog=dialog: app.screen is dialog and dialog.is_mounted)
            for focus in (None, *dialog.query(OptionList)):
                if focus is not None:
                    focus.focus()
                for name in HEX:
                    app.theme = name
                    await pilot._wait_for_screen()
                    await pilot.pause(0)
                    pieces = [piece for child in dialog.children for piece in drawn_pieces(dialog, child.region)]
                    assert pieces, kind
                    found = {
                        text: round(ratio, 2) for text, ratio, least in pieces if ratio < least and text not in _OFF
                    }
                    faint |= {(kind.__name__, name, text): ratio for text, ratio in found.items()}
            dialog.dismiss(None)
            await until(pilot, lambda dialog=dialog: app.screen is not dialog)
    assert faint == {}
