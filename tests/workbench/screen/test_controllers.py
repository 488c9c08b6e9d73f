"""How the controllers of the main screen report what fails."""

from __future__ import annotations

from pathlib import Path
from typing import Any
from unittest.mock import Mock, call

from trainer.errors import UsageError
from workbench.screen.host import attempt, tried
from workbench.screen.reward_models import RewardModels


async def test_a_failed_attempt_is_said_and_a_later_one_settles_it() -> None:
    screen: Any = Mock()

    def fail() -> None:
        raise UsageError("no such run")

    async def fail_later() -> None:
        fail()

    assert not attempt(screen, fail, about="start")
    assert await tried(screen, fail_later(), "use") is None
    assert attempt(screen, lambda: None, about="start")
    assert screen.say.mock_calls == [call("no such run", about="start"), call("no such run", about="use")]
    assert screen.settle.mock_calls == [call("start")]


async def test_without_a_reward_model_the_user_hears_which_key_trains_one(tmp_path: Path) -> None:
    screen: Any = Mock()
    screen.runs_dir, screen.keys = tmp_path, lambda: {"label.train": "t"}
    await RewardModels(screen, Mock(), tmp_path / "preferences.db").use()
    assert screen.say.call_args == call("No trained reward model yet; t in Label trains one on the labels", about="use")
    assert not screen.app.mock_calls, "no dialog"
