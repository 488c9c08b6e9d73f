"""Time to the first frame: what is loaded before it, and before the panes."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

HEAVY = ("mlx", "mlx_lm", "transformers", "datasets", "pyarrow", "torch", "huggingface_hub")

PROGRAM = """
import sys
from textual.app import App
from workbench.app import WorkbenchApp
from workbench.cli.main import main

def note(moment, *names):
    found = sorted(name for name in names if name in sys.modules)
    with open("loaded.txt", "a") as file:  # the screen takes what is printed
        file.write(f"{moment} {found}\\n")

class Terminal:
    encoding = "utf-8"
    def isatty(self): return True
    def __getattr__(self, name): return getattr(sys.__stdout__, name)

open_panes, run = WorkbenchApp._open, App.run

async def first_frame_is_there(self):
    note("first frame", "pydantic", "pydantic_core", "trainer.config", "workbench.screen", *HEAVY)
    await open_panes(self)
    self.set_interval(0.05, panes_are_there)

def panes_are_there():
    app = WorkbenchApp.opened
    if app.main.ready:
        note("panes", *HEAVY)
        app.exit()

def headless(self, **options):
    WorkbenchApp.opened = self
    return run(self, headless=True, **options)

WorkbenchApp._open, App.run = first_frame_is_there, headless
sys.stdin = Terminal()
sys.stdout.isatty = lambda: True
sys.exit(main([]))
"""


def test_the_first_frame_needs_no_configuration_and_the_panes_no_tensors(tmp_path: Path) -> None:
    program = f"HEAVY = {HEAVY}\n{PROGRAM}"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")
    assert (tmp_path / "loaded.txt").read_text().splitlines() == ["first frame []", "panes []"]
