"""How the controllers of the main screen report what fails."""

from __future__ import annotations

from typing import Any
from unittest.mock import Mock, call

from trainer.errors import UsageError
from workbench.screen.host import attempt, tried


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
