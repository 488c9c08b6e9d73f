"""The page of all keys: up to date, each key with one meaning, each binding with its words."""

from __future__ import annotations

from pathlib import Path

from textual.binding import Binding

from workbench.kit.key_reference import EXCEPTIONS, clashes, page
from workbench.kit.keys import own_bindings

PAGE = Path(__file__).parents[3] / "docs" / "keys.md"


def test_the_page_of_keys_is_up_to_date() -> None:
    assert PAGE.read_text() == page(), "run: python -m workbench.kit.key_reference > docs/keys.md"


def test_a_key_of_the_vocabulary_has_one_meaning_everywhere() -> None:
    assert not list(clashes(binding for _, binding in own_bindings()))
    other = Binding("m", "metrics", "choose", id="a.b", tooltip="Choose")
    assert list(clashes([other])) == ["a.b: m means mark, unmark, not choose"]
    assert all(EXCEPTIONS.values())


def test_every_binding_has_an_id_and_words() -> None:
    assert not [(owner, one.key) for owner, one in own_bindings() if not (one.id and one.description and one.tooltip)]
