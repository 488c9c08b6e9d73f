"""Settings of the whole test run: no network, nothing of the user's touched, the same examples every time."""

import asyncio
import gc
import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import apart

# Read when `trainer` is imported. Workers share the cores, so a second thread would mostly spin and wait.
os.environ.update(MKL_NUM_THREADS="1", OPENBLAS_NUM_THREADS="1")

import pytest
from hypothesis import settings
from textual.app import App
from textual.css.model import RuleSet
from textual.css.stylesheet import Stylesheet

import trainer  # noqa: F401  loads the BLAS, before any test module imports mlx
from workbench.system.signals import REASONS

apart.give_children_default_signals()
RUN = apart.leave_the_user()

# Like the home folder, these are read when huggingface_hub, datasets and tokenizers are imported: set them first.
os.environ["HF_HUB_OFFLINE"] = "1"
os.environ["HF_DATASETS_OFFLINE"] = "1"
os.environ["TOKENIZERS_PARALLELISM"] = "false"

# Tests read notifications; a busy machine can take longer than their usual five seconds.
App.NOTIFICATION_TIMEOUT = 600

_parse_rules = Stylesheet._parse_rules
_PARSED: dict[tuple[object, ...], list[RuleSet]] = {}


def _parsed_once(sheet: Stylesheet, css: str, **source: Any) -> list[RuleSet]:
    """Return the parsed rules of some CSS, cached because a test run opens about a thousand applications with it."""
    key = (css, *source.items(), frozenset(sheet._variables.items()))
    if key not in _PARSED:
        _PARSED[key] = _parse_rules(sheet, css, **source)
    return _PARSED[key]


Stylesheet._parse_rules = _parsed_once  # type: ignore[method-assign]

# Array code compiles on first use, so one example may be slow; fixed seeds make failures reproducible.
settings.register_profile("repeatable", deadline=None, derandomize=True, max_examples=50)
settings.load_profile("repeatable")

WATCH = apart.Watch()


@pytest.fixture(autouse=True, scope="session")
def _out_of_the_checkout() -> Iterator[None]:
    """Keep what module and session fixtures leave behind out of the user's working folder."""
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(apart.make(RUN / "work"))
        WATCH.is_on = True
        yield
        WATCH.is_on = False


@pytest.fixture(autouse=True)
def _in_a_folder_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Run each test in an empty folder with an empty home, so that it sees nothing the program left earlier."""
    monkeypatch.setenv("HOME", str(apart.make(tmp_path.with_name(f"{tmp_path.name}-home"))))
    monkeypatch.chdir(tmp_path)
    yield
    seen, WATCH.seen = WATCH.seen, []
    assert not seen, f"{seen}: the checkout may hold the user's runs and labels; work in the folder of the test"


@pytest.fixture
def hurried(monkeypatch: pytest.MonkeyPatch) -> None:
    """Skip Textual's wait of 20 ms and more after each key, in tests that wait for what the key does."""
    for module in ("app", "pilot"):
        monkeypatch.setattr(f"textual.{module}.wait_for_idle", asyncio.sleep)


@pytest.fixture(autouse=True)
def _garbage_of_its_own() -> Iterator[None]:
    """Keep earlier objects out of each test's garbage collection: a worker that has loaded everything holds many."""
    gc.freeze()
    yield
    gc.collect()


@pytest.fixture(autouse=True)
def _signals_as_before() -> Iterator[None]:
    """Restore signal handlers after each test: a run that a signal ends leaves its signals ignored."""
    before = {number: signal.getsignal(number) for number in REASONS}
    yield
    for number, handler in before.items():
        signal.signal(number, handler)
