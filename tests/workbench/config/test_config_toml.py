"""TOML as text: tokens for colours, lines of keys."""

from __future__ import annotations

import pytest

from workbench.config.toml import key_lines, line_of, tokens_by_line


def pieces(text: str) -> list[list[tuple[str, str]]]:
    lines = text.split("\n")
    return [
        [(line[t.start : t.stop], t.kind) for t in tokens]
        for line, tokens in zip(lines, tokens_by_line(text), strict=True)
    ]


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("[ppo]  # loop", [("[ppo]", "table"), ("# loop", "comment")]),
        ("[[reward.sources]]", [("[[reward.sources]]", "table")]),
        ("kl_coef = 3e-4", [("kl_coef", "key"), ("3e-4", "number")]),
        ("a.'b c' = -1_000", [("a.'b c'", "key"), ("-1_000", "number")]),
        ("shuffle = true#no", [("shuffle", "key"), ("true", "boolean"), ("#no", "comment")]),
        ('x = "a # \\" b" # c', [("x", "key"), ('"a # \\" b"', "string"), ("# c", "comment")]),
        (
            "x = {kind = 'regex', n = 1}",
            [("x", "key"), ("kind", "key"), ("'regex'", "string"), ("n", "key"), ("1", "number")],
        ),
        ("x = nonsense", [("x", "key"), ("nonsense", "invalid")]),
        ('x = "open', [("x", "key"), ('"open', "invalid")]),
    ],
)
def test_a_line_is_cut_into_tokens(line: str, expected: list[tuple[str, str]]) -> None:
    assert pieces(line) == [expected]


def test_a_string_of_several_lines_is_one_string() -> None:
    assert pieces('a = """x\n[no] \\"""\nkey = 1""" # end\nb = 2') == [
        [("a", "key"), ('"""x', "string")],
        [('[no] \\"""', "string")],
        [('key = 1"""', "string"), ("# end", "comment")],
        [("b", "key"), ("2", "number")],
    ]


def test_a_line_inside_an_array_is_not_a_table() -> None:
    assert pieces('a = [\n["x"],\n]\n[b]') == [[("a", "key")], [('"x"', "string")], [], [("[b]", "table")]]


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
    assert line_of(key, key_lines(TEXT)) == line
