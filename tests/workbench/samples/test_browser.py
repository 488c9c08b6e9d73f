"""The browser decides which samples are listed, without a screen and without reading files itself."""

from __future__ import annotations

from pathlib import Path

import pytest
from samples_app import Run
from scripted_run import samples

from trainer.runs.listing import PPO
from workbench.run.sample_query import Order, parse_query
from workbench.samples.browser import NO_SAMPLES_YET, SampleBrowser, read_iteration


@pytest.fixture
def run(tmp_path: Path) -> Run:
    return Run(tmp_path / "run")


def read(browser: SampleBrowser) -> bool:
    """Read what the browser lacks, as the pane's thread does."""
    iteration = browser.unread()
    assert browser.folder is not None
    assert iteration is not None
    listed = browser.take_batch(read_iteration(browser.folder, iteration))
    if listed:
        assert browser.table is not None
        browser.take_selection(browser.table, browser.selected(browser.table))
    return listed


def completions(browser: SampleBrowser) -> list[str]:
    return [sample.completion for sample in browser.listed.samples]


def test_the_newest_iteration_is_read_and_listed(run: Run) -> None:
    browser = SampleBrowser(run.folder)
    assert browser.unread() is None
    run.write(1, "one", "two")
    assert browser.announce(run.view.samples)
    assert not browser.announce(run.view.samples), "it is known already"
    assert read(browser)
    assert completions(browser) == ["one", "two"]
    assert browser.heading.startswith("iteration 1 · newest   2 samples")
    assert browser.unread() is None


def test_an_open_sample_holds_its_iteration_until_it_is_closed(run: Run) -> None:
    browser = SampleBrowser(run.folder)
    run.write(1, "one")
    browser.announce(run.view.samples)
    read(browser)
    browser.hold()
    run.write(2, "two")
    assert not browser.announce(run.view.samples)
    assert browser.unread() is None
    assert browser.release()
    assert not browser.release()
    assert browser.unread() == 2


def test_a_batch_that_is_no_longer_wanted_is_not_listed(run: Run, tmp_path: Path) -> None:
    browser = SampleBrowser(run.folder)
    run.write(1, "one")
    run.write(2, "two")
    browser.announce(run.view.samples)
    batch = read_iteration(run.folder, 2)
    browser.choose_iteration(1)
    assert not browser.take_batch(batch)
    assert not browser.for_run(Run(tmp_path / "other").folder, PPO).take_batch(batch)
    assert browser.listed is NO_SAMPLES_YET
    assert read(browser)
    assert completions(browser) == ["one"]


def test_another_run_keeps_filter_and_order(run: Run) -> None:
    browser = SampleBrowser()
    browser.filter, browser.order = parse_query("joy"), Order("score", descending=True)
    other = browser.for_run(run.folder, PPO)
    run.write(1, "much joy", "pain", "joy again")
    other.announce(run.view.samples)
    read(other)
    assert completions(other) == ["joy again", "much joy"]
    assert other.heading.endswith("by score ↓")


def test_previews_are_listed_without_reading(run: Run) -> None:
    browser = SampleBrowser(run.folder)
    browser.announce(samples(4, ("Once upon", " a preview")))
    assert browser.unread() is None
    assert completions(browser) == [" a preview"]
    assert browser.table is None
