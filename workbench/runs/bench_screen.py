"""Dialog with the report on a reward that `ppo-workbench reward-bench` prints."""

from __future__ import annotations

import asyncio
import os
from io import BytesIO
from pathlib import Path
from subprocess import DEVNULL, PIPE, Popen
from typing import ClassVar

from textual import work
from textual.app import ComposeResult
from textual.binding import BindingType
from textual.containers import Vertical, VerticalScroll
from textual.widgets import Static

from workbench.kit.dialog import Dialog
from workbench.kit.keys import bind
from workbench.system.children import last_error, own_command
from workbench.text import visible


class RewardBenchScreen(Dialog[None]):
    """The report on a reward. A process of its own makes it, so that a run under way loses little and never waits.

    reward: as `--reward` takes it; naming a file trusts it. Closing the dialog ends the process.
    """

    TITLE = "Reward on stored samples"
    HELP = (
        "What the reward makes of responses that the run has stored, before anything trains on it. First what training "
        "will exploit: cheap changes of a response that score more. Then the scores, what they go along with, and the "
        "samples that it likes most and least."
    )
    DOCS = "rewards"
    BINDINGS: ClassVar[list[BindingType]] = [
        bind("escape", "dismiss", "close", "reward-bench.close", "Close; what is not done is dropped"),
        bind("y", "copy", "copy", "reward-bench.copy", "Copy the report"),
    ]

    def __init__(self, run: Path, reward: str) -> None:
        super().__init__()
        self._run, self._reward, self._text = run, reward, ""
        self._process: Popen[bytes] | None = None
        self._closed = False

    def compose(self) -> ComposeResult:
        with Vertical(classes="dialog"):
            yield Static(visible(f"{self._reward} on {self._run.name}"), markup=False, classes="question")
            with VerticalScroll():
                yield Static("Scoring the stored responses…", markup=False, id="report")

    def on_mount(self) -> None:
        self.query_one(VerticalScroll).focus()
        self._bench()

    @work(group="bench")
    async def _bench(self) -> None:
        self._text = await asyncio.to_thread(self._printed)
        self.query_one("#report", Static).update(visible(self._text, keep_newlines=True))

    def _printed(self) -> str:
        """Return what the command prints, or its error, once it has ended."""
        from workbench.system.code_trust import PASSED_ON, trusted_code  # not above: it imports pydantic

        command = own_command("reward-bench", str(self._run.resolve()), "--reward", self._reward)
        trusted = os.environ | {PASSED_ON: trusted_code().passed_on()}
        with Popen(command, stdin=DEVNULL, stdout=PIPE, stderr=PIPE, env=trusted) as self._process:
            if self._closed:
                self._process.kill()
            out, errors = self._process.communicate()
        return out.decode(errors="replace") if self._process.returncode == 0 else last_error(BytesIO(errors))

    async def on_unmount(self) -> None:
        self._closed = True
        if self._process is not None:
            await asyncio.to_thread(self._process.kill)

    def action_copy(self) -> None:
        self.copy(self._text, "the report")
