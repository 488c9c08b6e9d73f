"""Memory, tokens and count of problems below the form."""

from __future__ import annotations

import threading

import pytest
from config_app import opened
from textual.widgets import Input
from waiting import until

from trainer.config import Config
from trainer.memory.footprint import Footprint
from workbench.config import pane
from workbench.config.estimates import Estimate, estimate

GB = 10**9
HELD = {"weights": 4 * GB, "adapters": GB, "optimiser": GB}
MEMORY = Footprint({"generate": HELD | {"KV cache": 2 * GB}, "update": HELD | {"activations": GB}})


UPDATE = MEMORY.phases["update"] | {"activations": 2 * GB, "logits": GB}


@pytest.mark.parametrize(
    ("memory", "words"),
    [
        (MEMORY, ["≈ 8.0 GB of 4.0 GB: does not fit", " · weights 4.0 GB · adapters 2.0 GB · generate 2.0 GB"]),
        (Footprint(MEMORY.phases | {"update": UPDATE}), ["adapters 2.0 GB · update 3.0 GB"]),
        (None, ["memory unknown", " · basis"]),
    ],
)
async def test_the_third_part_is_that_of_the_phase_with_the_highest_peak(
    memory: Footprint | None, words: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pane, "estimate", lambda config: Estimate(256, 2000, memory, "basis"))
    monkeypatch.setattr(pane, "room_for", lambda model: 4 * GB)
    async with opened("quickstart", (120, 40)) as s:
        await until(s.pilot, lambda: all(part in s.text() for part in ("≤ 256 tokens/it", *words)))


@pytest.mark.parametrize("size", [(34, 30), (80, 22)])
async def test_memory_and_problems_stay_in_view_and_move_with_each_edit(
    size: tuple[int, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    threads = set()

    def watched(config: Config) -> Estimate:
        threads.add(threading.current_thread())
        return estimate(config)

    monkeypatch.setattr(pane, "estimate", watched)
    async with opened("quickstart", size) as s:
        await until(s.pilot, lambda: "≤ 256 tokens/it" in s.text())
        before = next(line for line in s.text().split("\n") if " GB of " in line)
        assert ("✓ no problems" if size[0] >= 40 else " ✓") in before
        await s.go_to("rollout.max_new_tokens")
        await s.press("enter")
        await s.write("6400")
        await s.press("enter")
        await until(s.pilot, lambda: "≤ 51,200 tokens/it" in s.text())
        assert next(line for line in s.text().split("\n") if " GB of " in line) != before
        await s.go_to("ppo.minibatches")
        await s.press("enter")
        await s.write("3")
        await s.press("enter")
        assert not isinstance(s.app.focused, Input)
        assert ("✖ 1 problem" if size[0] >= 40 else " ✖ 1") in s.text()
        assert "No estimate" in s.text()
        await s.press("u")
        await until(s.pilot, lambda: "≤ 51,200 tokens/it" in s.text())
        assert "✖" not in s.text()
    assert threads
    assert threading.main_thread() not in threads
