"""`ppo-workbench preferences` as its users meet it: import and its undo, export, card, agreement, check, list."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
from preference_rows import pair, read_lines, write_lines
from scripted_run import ERROR, lines, refused

from trainer.preferences.formats import FORMATS_IN, FORMATS_OUT
from trainer.preferences.records import Comparison, Judgement, Preference
from trainer.preferences.store import PreferenceStore
from workbench.cli import main as cli
from workbench.labelling import transfer

ROWS = [{"prompt": f"prompt {n}", "chosen": f"good {n}", "rejected": f"bad {n}"} for n in range(3)]
KWAY = {"prompt": "p", "completions": ["x", "y"], "ranking": [[1], [0]], "labeller": "bob", "note": "n", "seconds": 2}


def run(capsys: pytest.CaptureFixture[str], *argv: str) -> tuple[int, list[str], list[str]]:
    """Return exit code, lines of stdout and lines of stderr."""
    capsys.readouterr()
    return cli.main(["preferences", *argv]), *lines(capsys)


def stored(**options: Any) -> list[Preference]:
    with PreferenceStore(Path("preferences.db"), create=False) as store:
        return list(store.preferences(**options))


def keep(*preferences: Preference) -> None:
    with PreferenceStore(Path("preferences.db")) as store:
        store.add_many(preferences, source="test")


def judged(prompt: str, choice: str, labeller: str) -> Preference:
    comparison = Comparison(prompt=prompt, completions=("x", "y"))
    return Preference(comparison=comparison, judgement=Judgement.chosen(choice, labeller=labeller))  # type: ignore[arg-type]


def test_the_screen_knows_the_formats_and_every_command_is_there(capsys: pytest.CaptureFixture[str]) -> None:
    assert ("auto", *FORMATS_IN) == transfer.FORMATS_IN
    assert tuple(FORMATS_OUT) == tuple(transfer.FORMATS_OUT)
    _, out, _ = run(capsys, "--help")
    commands = {"import", "export", "card", "agreement", "check", "list"}
    assert {line.split()[0] for line in out if line.strip()} >= commands


def test_an_import_says_which_format_it_took_and_how_many_there_were(capsys: pytest.CaptureFixture[str]) -> None:
    source = write_lines(Path("rows.jsonl"), *ROWS, ROWS[0])
    code, out, err = run(capsys, "import", source)
    assert (code, out) == (0, [])
    assert err == [
        "ppo-workbench: rows.jsonl: 4 rows, format trl",
        f"ppo-workbench: imported 3 preferences into '{Path('preferences.db').resolve()}', skipped 1 duplicate",
    ]
    assert [row.comparison.completions for row in stored()] == [(f"good {n}", f"bad {n}") for n in range(3)]
    assert len(stored(source="rows.jsonl")) == 3


def test_a_broken_row_after_thousands_of_good_ones_keeps_nothing_of_them(capsys: pytest.CaptureFixture[str]) -> None:
    good = [{"prompt": f"prompt {n}", "chosen": "good", "rejected": "bad"} for n in range(2500)]
    code, _, err = run(capsys, "import", write_lines(Path("rows.jsonl"), *good, {"prompt": "p"}))
    assert (code, len(err)) == (3, 1)
    assert err[0].startswith(f"{ERROR}rows.jsonl:2501: no column")
    assert [path.name for path in Path().iterdir()] == ["rows.jsonl"]


def test_broken_rows_are_skipped_reported_and_counted_on_request(capsys: pytest.CaptureFixture[str]) -> None:
    source = write_lines(Path("rows.jsonl"), *ROWS, *["no JSON"] * 25)
    code, _, err = run(capsys, "import", source, "--skip-broken")
    assert code == 0
    assert "28 rows, format trl, 25 broken rows skipped" in err[0]
    assert sum("not JSON" in line for line in err) == 20
    assert any("5 more broken rows" in line for line in err)
    assert len(stored()) == 3


def test_a_dry_run_reads_everything_and_keeps_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    code, _, err = run(capsys, "import", write_lines(Path("rows.jsonl"), *ROWS), "--dry-run")
    assert code == 0
    assert "would import 3 preferences; nothing was saved" in err[1]
    assert not Path("preferences.db").exists()


def test_an_import_can_be_taken_back_and_made_again(capsys: pytest.CaptureFixture[str]) -> None:
    wrong = write_lines(Path("wrong.jsonl"), *ROWS)
    keep(judged("p", "a", "ann"))
    run(capsys, "import", write_lines(Path("right.jsonl"), {**ROWS[0], "chosen": "best"}))
    run(capsys, "import", wrong)
    assert len(stored()) == 5
    _, out, _ = run(capsys, "imports")
    heading, *listed = (line.split() for line in out)
    assert heading == ["import", "date", "added", "undone", "source"]
    assert [(line[-3], line[-2], line[-1]) for line in listed] == [
        ("3", "0", "wrong.jsonl"),
        ("1", "0", "right.jsonl"),
        ("1", "0", "test"),
    ]

    code, _, err = run(capsys, "undo-import")
    assert code == 0
    assert "undid 3 preferences of import 3 from 'wrong.jsonl'" in err[0]
    assert [one.comparison.completions[0] for one in stored()] == ["x", "best"]
    assert "| judgements | 2 |" in run(capsys, "card")[1]
    assert "| judgements | 1 |" in run(capsys, "card", "--labeller", "ann")[1]
    assert run(capsys, "check")[2][0].endswith("2 preferences on 5 comparisons, 3 undone")
    assert run(capsys, "imports")[1][1].split()[-3:] == ["3", "3", "wrong.jsonl"]

    code, _, err = run(capsys, "undo-import", "wrong.jsonl")
    assert (code, len(err)) == (2, 1)
    assert "no import 'wrong.jsonl'" in err[0]
    assert run(capsys, "undo-import", "2")[0] == 0
    assert run(capsys, "import", wrong)[0] == 0
    assert [one.comparison.completions[0] for one in stored()] == ["x", "good 0", "good 1", "good 2"]


def test_columns_are_named_on_the_command_line(capsys: pytest.CaptureFixture[str]) -> None:
    Path("poll.csv").write_text("question,left,right,choice\nsky?,blue,green,b\n")
    names = ["--column", "prompt=question", "--column", "a=left", "--column", "b=right"]
    assert run(capsys, "import", "poll.csv", *names)[0] == 0
    [row] = stored()
    assert (row.comparison.prompt, row.comparison.completions, row.judgement.choice) == ("sky?", ("blue", "green"), "b")


def test_an_export_reports_what_it_leaves_out_and_overwrites_only_by_force(capsys: pytest.CaptureFixture[str]) -> None:
    keep(pair("p", "x", "y", labeller="ann"), judged("q", "tie", "ann"), judged("r", "skip", "bob"))
    code, out, err = run(capsys, "export", "out.jsonl", "--format", "trl")
    assert (code, out) == (0, ["out.jsonl"])
    assert err == ["ppo-workbench: 1 row of trl, 1 skip left out, 1 tie left out"]
    code, _, err = run(capsys, "export", "out.jsonl", "--format", "columns")
    assert code == 2
    assert "overwrite it with --force" in err[0]
    assert (
        run(capsys, "export", "out.jsonl", "--format", "columns", "--ties", "drop", "--provenance", "--force")[0] == 0
    )
    [row] = read_lines(Path("out.jsonl"))
    assert (row["choice"], row["judgement"]["labeller"]) == ("a", "ann")
    code, _, err = run(capsys, "export", "out2.jsonl", "--format", "trl", "--labeller", "cay")
    assert code == 2
    assert "no preferences in" in err[0]
    assert "with --labeller cay" in err[0]


def test_agreement_is_a_table_and_one_object(capsys: pytest.CaptureFixture[str]) -> None:
    for name, choices in (("ann", "aabb"), ("bob", "aaba")):
        keep(*(judged(str(number), choice, name) for number, choice in enumerate(choices)))
    code, out, err = run(capsys, "agreement")
    assert (code, err) == (0, [])
    assert out[0].endswith("2 labellers, 4 common units")
    assert next(line.split() for line in out if "bob" in line)[:5] == ["ann,", "bob", "4", "75.0%", "0.500"]
    _, out, _ = run(capsys, "agreement", "--json")
    [found] = map(json.loads, out)
    assert found["pairs"][0]["kappa"]["value"] == pytest.approx(0.5)
    assert found["selves"][0] == {"labeller": "ann", "units": 0, "observed": None, "alpha": None}


def test_agreement_of_one_labeller_says_that_there_is_none(capsys: pytest.CaptureFixture[str]) -> None:
    keep(judged("p", "a", "ann"))
    code, _, err = run(capsys, "agreement")
    assert (code, len(err)) == (0, 1)
    assert "no comparison was judged twice" in err[0]


def test_a_check_says_ok_and_a_damaged_store_is_exit_3(capsys: pytest.CaptureFixture[str]) -> None:
    keep(judged("p", "a", "ann"))
    code, out, err = run(capsys, "check")
    assert (code, out) == (0, ["ok"])
    assert "1 preference on 1 comparison" in err[0]
    path = Path("preferences.db")
    path.write_bytes(b"SQLite?" * 1000)
    code, out, err = run(capsys, "check")
    assert (code, out) == (3, [])
    assert all(line.startswith(ERROR) for line in err)


def test_the_newest_are_listed_first_and_no_text_of_others_reaches_the_terminal(
    capsys: pytest.CaptureFixture[str],
) -> None:
    keep(*(judged(f"\x1b[2Jprompt {number}\nend", "a", "\x1b]0;x\x07") for number in range(4)))
    code, out, err = run(capsys, "list", "--limit", "2")
    assert (code, len(out), err) == (0, 2, [])
    assert "prompt 3␊end" in out[0]
    assert "prompt 2␊end" in out[1]
    assert "\x1b" not in "".join(out)
    keep(judged("the beginning " * 9 + "and the end", "a", "ann"))
    (line,) = run(capsys, "list", "--limit", "1")[1]
    assert re.search(r"  …\S.*beginning and the end$", line)
    found = [json.loads(line) for line in run(capsys, "list", "--json")[1]]
    assert [row["id"] for row in found] == [5, 4, 3, 2, 1]
    assert found[1]["prompt"] == "\x1b[2Jprompt 3\nend"


@pytest.mark.parametrize(
    ("argv", "names"),
    [
        ([], "preferences --help"),
        (["import", "rows.jsonl", "--column", "question"], "column question: must be ROLE=NAME with one of prompt"),
        (["export", "out.txt", "--format", "trl"], "no preferences in"),
        (["list", "--limit", "0"], "--limit 0"),
        (["card"], "import some with ppo-workbench preferences import SOURCE"),
        (["agreement", "--store", "gone.db"], "no preferences in 'gone.db'"),
    ],
)
def test_wrong_usage_and_an_empty_workspace_are_one_line_and_exit_2(
    argv: list[str], names: str, capsys: pytest.CaptureFixture[str]
) -> None:
    code, error = refused(capsys, "preferences", *argv)
    assert (code, names in error) == (2, True)
    assert not list(Path.cwd().iterdir())


def test_a_store_without_preferences_says_how_to_get_some(capsys: pytest.CaptureFixture[str]) -> None:
    keep()
    for argv in (["card"], ["list"], ["agreement"], ["export", "out.jsonl", "--format", "k-way"]):
        assert "import some with ppo-workbench preferences import SOURCE" in refused(capsys, "preferences", *argv)[1]


def test_a_labeller_is_named_where_the_source_does_not_say(capsys: pytest.CaptureFixture[str]) -> None:
    run(capsys, "import", write_lines(Path("ours.jsonl"), KWAY, KWAY | {"labeller": ""}), "--labeller", "ann")
    assert [row.judgement.labeller for row in stored()] == ["bob", "ann"]
