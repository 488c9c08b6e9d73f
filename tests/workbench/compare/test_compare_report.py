"""The comparison report: it fits its width, obeys no control characters, and says what it shows."""

from __future__ import annotations

import itertools
import math
from pathlib import Path
from typing import Any

import pytest
from compared_runs import HOSTILE, compared, evaluation, events_of_kind, hostile_events, ppo_events, sample, singles
from rich.cells import cell_len
from scripted_run import ended, iteration, started

from trainer.config import Config
from trainer.config.pairs import DPOConfig
from trainer.events import SettingChanged
from trainer.runs.folder import RunFolder
from workbench.compare.compared_run import ComparedRun, read_configs, shared_prompts, short_names
from workbench.compare.frontier import SEVERAL, Curve, Point, plot
from workbench.compare.report import curve_lines, report_lines
from workbench.compare.settings import (
    ComparedSettings,
    Difference,
    cautions,
    compared_settings,
    config_differences,
    setting_lines,
)
from workbench.run.metrics import DPO, REWARD_MODEL
from workbench.runs.details import differences_content
from workbench.text import plain, table_lines, text_lines


def text(lines: Any) -> list[str]:
    return [plain(line).rstrip() for line in lines]


def report(runs: list[ComparedRun], width: int) -> list[str]:
    return text(report_lines(singles(*runs), width))


def settings_of(runs: list[ComparedRun]) -> ComparedSettings:
    return compared_settings(singles(*runs))


def config(**sections: dict[str, Any]) -> dict[str, Any]:
    return Config.model_validate(sections).model_dump()


def two_runs(**changes: Any) -> list[ComparedRun]:
    answers = [sample("Once upon a time", 12, "there was joy. " * 20), sample("The end", 11, HOSTILE)]
    first = compared("quickstart-0001", ppo_events(), samples=answers, config=config())
    second = compared(
        "quickstart-0002",
        [*ppo_events(30, seed=1, slope=0.02), evaluation(30)],
        samples=answers[::-1],
        config=config(ppo={"kl_coef": 0.2}),
        **changes,
    )
    return [first, second]


def hostile_runs() -> list[ComparedRun]:
    answers = [sample(HOSTILE * 50, 8, HOSTILE * 50, score=math.inf, kl=math.nan, truncated=True)]
    return [
        compared(
            HOSTILE.replace("/", "") * 5,
            hostile_events(),
            samples=answers,
            config={HOSTILE: {"x": HOSTILE * place}, "kind": HOSTILE},
            problems=[HOSTILE],
        )
        for place in range(3)
    ]


RUNS = {
    "two": two_runs(),
    "kinds": [
        compared("ppo", ppo_events(), config=config()),
        compared("dpo", events_of_kind(DPO), config=DPOConfig().model_dump() | {"kind": DPO}),
        compared("rm", events_of_kind(REWARD_MODEL), config=None, state="training"),
    ],
    "many": [
        compared(f"quickstart-{place:04}", ppo_events(200, seed=place), config=config(run={"seed": place}))
        for place in range(26)
    ],
    "hostile": hostile_runs(),
    "empty": [compared("a", [], config=None), compared("b", [started()])],
}


@pytest.mark.parametrize(("runs", "width"), [*itertools.product(RUNS, (60, 80, 120, 200))])
def test_every_line_fits_the_width_and_is_safe_to_print(runs: str, width: int) -> None:
    for line in report(RUNS[runs], width):
        assert cell_len(line) <= width, line
        assert line.isprintable(), line


def test_the_report_has_its_sections_letters_and_a_column_for_the_difference_of_two_runs() -> None:
    lines = report(two_runs(), 80)
    titles = [line.partition("  ")[0].rstrip(" ─") for line in lines if line.endswith("──") and line[0] != " "]
    assert titles == ["runs", "numbers", "score against KL", "curves", "settings", "the same prompts"]
    assert lines[1].startswith(" A quickstart-0001  ppo  done")
    assert lines[2].startswith(" B quickstart-0002  ppo  done")
    (heading,) = [line for line in lines if line.endswith("B - A") and "A …0001" in line and "B …0002" in line][:1]
    assert "A …0001  B …0002" in heading
    a, b, difference = next(line for line in lines if line.startswith("  score ")).split()[1:]
    assert float(difference) == pytest.approx(float(b) - float(a), abs=0.0015)
    unknown = ("win rate", "loss", "accuracy on pairs")
    assert not [line for line in lines if line.strip().startswith(unknown)], "rows that no run has are left out"


def test_a_table_that_does_not_fit_continues_below() -> None:
    columns = [(f"{letter} run", "text") for letter in "ABCDE"]
    rows = [("score", "", [f"{number}.000" for number in range(5)])]
    lines = text(table_lines(columns, rows, 30))
    assert lines == [
        "       A run  B run  C run",
        "score  0.000  1.000  2.000",
        "",
        "       D run  E run",
        "score  3.000  4.000",
    ]


def test_points_are_drawn_at_their_kl_and_score_and_the_best_so_far_is_dotted() -> None:
    first = Curve("a", [Point(1, 0.0, 0.0), Point(2, 5.0, 0.5)], [Point(2, 10.0, 1.0)])
    second = Curve("b", [Point(1, 5.0, 0.5), Point(2, 10.0, 0.0)], [], "b", "B")
    lines = text(plot([first, second], 60, 13))
    cells = [line.ljust(60)[10:] for line in lines[:11]]
    found = {(row, column): cell for row, line in enumerate(cells) for column, cell in enumerate(line) if cell != " "}
    marks = {at: cell for at, cell in found.items() if cell != "·"}
    assert marks == {(10, 0): "a", (0, 49): "A", (5, 24): SEVERAL, (10, 49): "b"}
    assert {at for at, cell in found.items() if cell == "·"} == {
        *((10, column) for column in range(1, 24)),
        *((5, column) for column in range(25, 50)),
    }
    assert lines[-1].split() == ["0", "2", "4", "6", "8", "10"]


def test_curves_of_several_runs_are_on_one_scale_and_one_axis() -> None:
    low = compared("low", [started(), *(iteration(n, score_mean=0.0) for n in range(1, 11))])
    high = compared("high", [started(), *(iteration(n, score_mean=1.0) for n in range(1, 21))])
    lines = text(curve_lines(singles(low, high), 80))
    assert lines[0].endswith("iterations 1 to 20")
    assert lines[1].split()[2] == "▁" * 10
    assert lines[2].split()[2] == "█" * 20
    assert lines[1].endswith("0.000 → 0.000")
    lines = text(curve_lines(singles(compared("p", ppo_events()), compared("d", events_of_kind(DPO))), 80))
    course = {
        line.split()[0]: [run.split()[1] for run in itertools.takewhile(lambda one: one[0] == " ", lines[place + 1 :])]
        for place, line in enumerate(lines)
        if line[0] != " "
    }
    assert (course["score"], course["loss"]) == (["p"], ["d"]), "a run without a metric has no curve of it"


def test_settings_that_differ_are_a_table_and_long_ones_a_list() -> None:
    runs = two_runs()
    sources = [{"kind": "regex", "pattern": "x" * 200, "weight": 1.0}]
    long = compared("c", ppo_events(), config=config(reward={"sources": sources}))
    lines = text(setting_lines(singles(*runs, long), settings_of([*runs, long]), 80))
    assert "ppo.kl_coef" in lines[1]
    assert lines[1].split()[1:] == [str(Config().ppo.kl_coef), "0.2", str(Config().ppo.kl_coef)]
    assert lines[2] == "reward.sources"
    assert lines[3].startswith("  A B ")
    assert any(line.startswith("  C ") for line in lines)


def test_a_value_that_needs_a_few_lines_stays_in_its_column() -> None:
    paths = [f"/home/anna/study/prompts/of-{name}.jsonl" for name in ("the-first-weeks", "the-last-weeks")]
    runs = [
        compared(name, ppo_events(), config=config(data={"prompts": path}))
        for name, path in zip("ab", paths, strict=True)
    ]
    heading, first, *more = text(setting_lines(singles(*runs), settings_of(runs), 60))
    left, right = heading.index("A a"), heading.index("B b")
    assert first.startswith("data.prompts ")
    assert [line[:left].strip() for line in more] == [""] * len(more)
    for path, cell in zip(paths, (slice(left, right), slice(right, None)), strict=True):
        assert "".join(line[cell].strip() for line in (first, *more)) == f'"{path}"'


def test_the_words_that_all_names_begin_with_are_shortened() -> None:
    assert short_names(["quickstart-0001", "quickstart-0012"]) == ["…0001", "…0012"]
    assert short_names(["kl_coef=0.02", "kl_coef=0.1"]) == ["…0.02", "…0.1"]
    for names in (["a-1", "a-2"], ["quickstart-0001"], ["quickstart", "quicksort"], []):
        assert short_names(names) == names


def test_settings_of_one_kind_of_run_are_counted_and_folders_and_names_do_not_count() -> None:
    lines = " ".join(text(setting_lines(singles(*RUNS["kinds"]), settings_of(RUNS["kinds"]), 120)))
    assert "only in ppo runs: " in lines
    assert "only in dpo runs: " in lines
    assert "ppo.clip" not in lines
    configs = [config(run={"name": name, "dir": name}) for name in ("a", "b")]
    runs = [compared(str(place), ppo_events(), config=values) for place, values in enumerate(configs)]
    assert text(setting_lines(singles(*runs), settings_of(runs), 80)) == ["No shared setting differs"]
    changed = SettingChanged(iteration=7, key="ppo.kl_coef", old=0.02, value=0.1)
    run = compared("a", [*ppo_events(), changed], config=config())
    assert "  A ppo.kl_coef 0.02 → 0.1 before iteration 7" in text(setting_lines(singles(run), settings_of([run]), 80))


def test_runs_that_do_not_measure_the_same_cause_a_warning_and_a_setting_that_one_lacks_does_not() -> None:
    values = [config(), config(reward={"clip": 2.0}, model={"path": "other"}, ppo={"kl_coef": 0.5})]
    runs = [compared(str(place), ppo_events(), config=one) for place, one in enumerate(values)]
    found = [caution.split(":")[0] for caution in cautions(settings_of(runs).between)]
    assert found == ["different rewards", "different references"]
    assert any(line.startswith("! different rewards") for line in report(runs, 80))
    older = config()
    del older["reward"]["clip"]
    settings = settings_of([runs[0], compared("b", ppo_events(), config=older)])
    assert [difference.key for difference in settings.between] == ["reward.clip"]
    assert cautions(settings.between) == []


def test_prompts_of_most_runs_come_first_then_those_answered_latest() -> None:
    first = [sample("new", 9), sample("all", 8), sample("old", 2), sample("mine", 1)]
    second = [sample("new", 9), sample("old", 3), sample("all", 2), sample("all", 1, "older")]
    third = [sample("all", 5, "third")]
    shared = shared_prompts([first, second, third], 3)
    assert [prompt for prompt, _ in shared] == ["all", "new", "old"]
    assert [answer and answer.key.iteration for answer in shared[0][1]] == [8, 2, 5]
    assert shared[1][1][2] is None
    assert shared_prompts([first, [], []], 3) == []


def test_answers_are_side_by_side_where_there_is_room() -> None:
    runs = two_runs()
    wide, narrow = report(runs, 80), report(runs, 60)
    assert any(line.startswith("A  it 12") and "│ B  it 12" in line for line in wide)
    assert any(line.startswith("A  it 12") and "│" not in line for line in narrow)
    assert any(line.startswith("B  it 12") for line in narrow)
    assert text_lines("a b c d", 1, 3) == ["a", "b", "…"], "long texts end in an ellipsis"
    assert text_lines("a b c", 1, 3) == ["a", "b", "c"]


def test_a_report_says_what_is_missing() -> None:
    lines = report(RUNS["kinds"], 100)
    assert "no saved samples of A, B, C" in lines
    rewards = [compared("a", events_of_kind(REWARD_MODEL)), compared("b", [started(), ended()])]
    assert "no run has both a score and a KL in nats a sequence" in report(rewards, 100)


# the configurations of marked runs


def test_only_settings_that_differ_are_named_by_dotted_key_in_the_files_order() -> None:
    a = {"run": {"name": "a"}, "ppo": {"kl_coef": 0.1, "epochs": 4}, "z": 2}
    b = {"run": {"name": "b"}, "ppo": {"kl_coef": 0.2, "epochs": 4}}
    assert config_differences({"a": a, "b": b}) == [
        Difference("ppo.kl_coef", {"a": 0.1, "b": 0.2}),
        Difference("z", {"a": 2, "b": None}),
    ]


@pytest.mark.parametrize(
    ("one", "other", "same"),
    [
        (1, 1.0, True),
        (1, True, False),
        (math.nan, math.nan, True),
        ([1, 2], [2, 1], False),
        ([{"a": 1}], [{"a": True}], False),
        ("1", 1, False),
    ],
)
def test_values_are_the_same_when_toml_means_the_same(one: object, other: object, same: bool) -> None:
    assert (config_differences({"a": {"k": one}, "b": {"k": other}}) == []) is same


def folder_with(path: Path, config: str | bytes) -> RunFolder:
    path.mkdir()
    (path / "config.toml").write_bytes(config if isinstance(config, bytes) else config.encode())
    return RunFolder(path)


@pytest.mark.parametrize(
    "content",
    [
        b"schema = 99",
        b"\xff\xfe",
        b"x = " + b"[" * 5000,
        ".".join("a" * 4000).encode() + b" = 1",
        b"# " + b"x" * 300_000,
        b"a = 1\na = 2",
    ],
    ids=["newer", "not utf-8", "nested", "deep", "large", "twice"],
)
def test_a_file_that_cannot_be_read_is_a_problem_of_one_line_and_the_others_are_compared(
    tmp_path: Path, content: bytes
) -> None:
    configs = {"a": "[ppo]\nepochs = 2\n", "b": content, "c": "schema = 1\n[ppo]\nepochs = 4\n"}
    groups = read_configs([folder_with(tmp_path / name, config) for name, config in configs.items()])
    assert [len(group.runs[0].problems) for group in groups] == [0, 1, 0]
    shown = differences_content(groups, 100).plain.splitlines()
    assert shown[0].startswith("✖ ")
    assert str(tmp_path / "b" / "config.toml") in shown[0]
    assert [line.split() for line in shown[1:]] == [["setting", "A", "a", "C", "c"], ["ppo.epochs", "2", "4"]]


@pytest.mark.parametrize("width", [20, 38, 60, 120])
def test_marked_runs_are_compared_in_any_width_and_warned_about(tmp_path: Path, width: int) -> None:
    length = '{ kind = "length", weight = 0.5, target = 40, tolerance = 8 }'
    folders = [
        folder_with(tmp_path / "quickstart-0001", '[reward]\nsources = [{ kind = "lexicon", weight = 1.0 }]'),
        folder_with(
            tmp_path / "b\x1b[31m[@click=app.quit]",
            f'[reward]\nsources = [{{ kind = "lexicon", weight = 1.0 }}, {length}]\n[run]\n"[/x]" = "\\u001b]0;t"',
        ),
    ]
    shown = differences_content(read_configs(folders), width).plain
    assert shown.startswith("! different rewards: the scores are not comparable (reward.sources)")
    assert max(map(cell_len, shown.splitlines()[1:])) <= width
    if width > 60:
        assert "lexicon + 0.5 x length 40 tolerance=8" in shown
        assert shown.splitlines()[-1].split() == ["run.[/x]", "-", '"\\u001b]0;t"']
    assert "\x1b" not in shown
    same = differences_content(read_configs(folders[:1] * 2), width).plain
    assert same.split() == ["No", "shared", "setting", "differs"]
