"""Lines of keys in a TOML text."""

from __future__ import annotations

import time

import pytest

from workbench.config.document import ConfigDocument

TEXT = """\
# first
ppo.epochs = 3

[reward]
sources = [
  "lexicon",
  { kind = "length", target = 3 },
]
[data]
system = '''
[ppo]
clip = 1
'''
"column" = "x"
[[reward.more]]
weight = 1
[[reward.more]]
weight = 2
"""


@pytest.mark.parametrize(
    ("key", "line"),
    [
        ("ppo.epochs", 2),
        ("ppo", 2),
        ("reward.sources", 5),
        ("reward.sources[1].target", 5),
        ("data.column", 14),
        ("reward.more[0].weight", 16),
        ("reward.more[1].weight", 18),
        ("reward.more[1].kind", 17),
        ("ppo.clip", 2),
        ("optim.policy_lr", None),
    ],
)
def test_a_key_is_found_on_its_line_or_that_of_its_parent(key: str, line: int | None) -> None:
    assert ConfigDocument(TEXT).line_of(key) == line


@pytest.mark.parametrize(
    ("text", "lines"),
    [
        ("[ppo]  # [not]\nkl = 1", {"ppo": 1, "ppo.kl": 2}),
        ("a.'b c' = -1_000 # x = 2", {"a": 1, "a.b c": 1}),
        ('x = "a # \\" b = 1"\ny = 2', {"x": 1, "y": 2}),
        ("x = nonsense y\nz = 'open\n[t]", {"x": 1, "z": 2, "t": 3}),
        ('a = """x\n[no] \\"""\nkey = 1"""\nb = 2', {"a": 1, "b": 4}),
        ('a = [\n["x"],\n]\n[b]', {"a": 1, "b": 4}),
    ],
)
def test_strings_comments_and_values_hold_no_keys(text: str, lines: dict[str, int]) -> None:
    assert ConfigDocument(text).lines == lines


@pytest.mark.parametrize("text", ["a", "a.", "[", '"', "'", "x = [[", "[[", "\n'"])
def test_no_text_takes_long(text: str) -> None:
    document = ConfigDocument("")
    document.set_text(text * 100_000)
    start = time.perf_counter()
    assert document.lines is not None
    assert time.perf_counter() - start < 5
