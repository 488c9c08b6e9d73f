"""Scoring by a separate low-priority process that ends with its parent and reports what it cannot do."""

from __future__ import annotations

import os
import sys
import tempfile
import threading
from pathlib import Path
from types import SimpleNamespace

import pytest
from reward_model_runs import reward_workspace

from trainer.errors import Interrupted, ModelError, StorageError
from trainer.preferences.records import Text
from workbench.labelling.session_worker import score
from workbench.system import children

ROWS: list[tuple[Text, Text]] = [("one ", "a\nb\u2028c"), ("one ", "abc"), ("\ud83d[/bold]", "")]


@pytest.fixture(autouse=True)
def _own_temporary_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "temporary").mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "temporary"))


def instead(monkeypatch: pytest.MonkeyPatch, path: Path, program: str) -> None:
    """Call `program` in place of the workbench."""
    path.write_text(f"#!{sys.executable}\nimport json, os, sys, time\n{program}\n")
    path.chmod(0o700)
    monkeypatch.setattr(children, "sys", SimpleNamespace(executable=str(path)))


def test_each_row_gets_the_score_that_the_command_gives_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    program = """
for line in open(sys.argv[-1]):
    row = json.loads(line)
    print(json.dumps({**row, "score": len(row["completion"]) + 0.5}))
open(sys.argv[0] + ".called", "w").write(" ".join(sys.argv[1:-1]))"""
    instead(monkeypatch, tmp_path / "program", program)
    assert score("runs/rm", ROWS, closing=threading.Event()) == [5.5, 3.5, 0.5]
    assert (tmp_path / "program.called").read_text() == "-P -m workbench reward-model score runs/rm --data"
    assert list((tmp_path / "temporary").iterdir()) == [], "nothing is left behind"


def test_scores_are_the_reward_models_own_for_text_and_messages(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from trainer.reward_model.loaded import load_reward_model

    run = reward_workspace(tmp_path)
    rows: list[tuple[Text, Text]] = [("say 1: ", "abca"), ("say 1: ", "hhhh"), ("say 2: ", "a")]
    model = load_reward_model(run)
    scores = score(str(run), rows, closing=threading.Event())
    assert scores == pytest.approx(model.score([model.encode(*row) for row in rows]), abs=1e-5)
    with pytest.raises(ModelError, match="'nowhere' cannot score: no run 'nowhere'"):
        score("nowhere", rows, closing=threading.Event())


@pytest.mark.parametrize(
    ("program", "words"),
    [
        (
            "print('ppo-workbench: error: it is damaged: use another', file=sys.stderr); sys.exit(3)",
            "it is damaged: use",
        ),
        ("sys.exit(9)", "its process ended with code 9"),
        ("os.kill(os.getpid(), 9)", "its process ended with code -9"),
        ("print(json.dumps({'score': 1}))", "did not return 3 scores"),
        ("print('nothing\\n[]\\n{}')", "did not return 3 scores"),
        ("sys.stdout.buffer.write(b'\\xff')", "did not return 3 scores"),
    ],
)
def test_errors_are_reported_in_a_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, program: str, words: str
) -> None:
    instead(monkeypatch, tmp_path / "program", program)
    with pytest.raises(ModelError, match="reward model 'rm'") as reported:
        score("rm", ROWS, closing=threading.Event())
    assert words in str(reported.value)
    assert "\n" not in str(reported.value)


def test_the_process_has_low_priority_and_ends_when_it_is_closed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    os.mkfifo(tmp_path / "pipe")
    program = f"""import signal
while os.nice(0) < 15:
    time.sleep(0.01)
open({str(tmp_path / "pipe")!r}, "w").write(f"{{os.getpid()}} {{os.nice(0)}}")
signal.pause()"""
    instead(monkeypatch, tmp_path / "program", program)
    closing, ended = threading.Event(), list[BaseException]()

    def work() -> None:
        try:
            score("rm", ROWS, closing=closing)
        except Interrupted as error:
            ended.append(error)

    thread = threading.Thread(target=work)
    thread.start()
    pid, niceness = map(int, (tmp_path / "pipe").read_text().split())
    assert niceness >= 15
    closing.set()
    thread.join(60)
    assert isinstance(ended[0], Interrupted)
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)
    with pytest.raises(Interrupted):
        score("rm", ROWS, closing=closing)


def test_rows_that_cannot_be_written_are_reported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "gone"))
    with pytest.raises(StorageError, match="cannot write to the temporary folder: No such file or directory; check"):
        score("rm", ROWS, closing=threading.Event())
