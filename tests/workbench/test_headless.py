"""A headless run for its user: what it is given, what it prints where, how it ends, and no obedience to model text."""

from __future__ import annotations

import io
import json
import math
import os
import pty
import re
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import scripted_run
from apart import ROOT
from rich.cells import cell_len
from run_kinds_helper import other_run
from scripted_run import (
    ERROR,
    Script,
    alarm,
    complete_run,
    done,
    ended,
    evaluation,
    iteration,
    lines,
    make_run,
    samples,
    started,
)
from views import drawn, view_of

from trainer.engine.control import Control
from trainer.events import Alert, Decision, Event, PhaseProgress, RolledBack, StateChanged
from trainer.runs.journal import Journal, event_in
from workbench.cli import main as cli
from workbench.cli.config import RESUMABLE
from workbench.cli.train import choose_display
from workbench.headless import JsonDisplay, PlainDisplay, RichDisplay, heading, row, summary
from workbench.run.sentences import sentences
from workbench.run.view import RunView


@pytest.fixture
def trainer(monkeypatch: pytest.MonkeyPatch) -> Script:
    """Put the scripted trainer in place of the real one; a test may change its script."""
    script = Script(scripted_run.done)
    monkeypatch.setitem(sys.modules, "trainer.engine.training", scripted_run.training_module(script))
    return script


def test_a_run_gets_the_configuration_its_name_and_that_of_the_preset_or_file(trainer: Script) -> None:
    argv = ["--no-ui", "--config", "qwen3-0.6b", "--name", "7", "--set", "ppo.epochs=2", "--display", "json"]
    assert cli.main(argv) == 0
    config = trainer.received["config"]
    assert (config.model.lora_rank, config.ppo.epochs, config.run.name) == (16, 2, "7")
    assert (trainer.received["preset"], trainer.received["resume"]) == ("qwen3-0.6b", None)
    Path("my-study.toml").write_text("[ppo]\nepochs = 3\n")
    assert cli.main(["--no-ui", "--config", "./my-study.toml", "--display", "json"]) == 0
    assert (trainer.received["preset"], trainer.received["config"].ppo.epochs) == ("./my-study.toml", 3)


def test_a_run_resumes_by_name_with_its_own_configuration_and_what_may_change(trainer: Script) -> None:
    folder = make_run("a-0001")
    changes = ["--set", "ppo.iterations=200", "--set", "ppo.kl_coef=0.5"]
    assert cli.main(["--no-ui", "--resume", "a-0001", *changes, "--display", "json"]) == 0
    assert trainer.received["resume"] == folder.resolve()
    assert (trainer.received["config"].ppo.iterations, trainer.received["config"].ppo.kl_coef) == (200, 0.5)


def test_a_complete_run_is_not_loaded_and_the_way_to_extend_it_is_shown(
    trainer: Script, capsys: pytest.CaptureFixture[str]
) -> None:
    complete_run("a-0001")
    assert cli.main(["--no-ui", "--resume", "a-0001"]) == 0
    assert trainer.received == {}
    _, (message,) = lines(capsys)
    assert "a-0001 is complete after 12 iterations" in message
    assert message.endswith("ppo-workbench --no-ui --resume a-0001 --set ppo.iterations=24")
    assert cli.main(["--no-ui", "--resume", "a-0001", "--set", "ppo.iterations=6"]) == 0
    assert lines(capsys) == ([], [message]), "what the run has done counts"
    assert cli.main(["--no-ui", "--resume", "a-0001", "--set", "ppo.iterations=24"]) == 0
    assert trainer.received["config"].ppo.iterations == 24


def test_a_complete_run_whose_last_checkpoint_is_damaged_is_continued(trainer: Script) -> None:
    folder = complete_run("a-0001")
    (folder / "checkpoints" / "step-000012" / "state.json").write_text("{")
    assert cli.main(["--no-ui", "--resume", "a-0001"]) == 0
    assert trainer.received["resume"] == folder.resolve()


def test_a_resumed_run_refuses_what_shapes_it_and_lists_what_may_change(
    trainer: Script, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = make_run("a-0001")
    assert cli.main(["--no-ui", "--resume", str(folder), "--set", "model.lora_rank=4"]) == 2
    _, (message,) = lines(capsys)
    assert "model.lora_rank" in message
    assert all(key in message for key in (*RESUMABLE, "ppo.kl_coef", "optim.policy_lr"))
    assert "model.path" not in message
    assert trainer.received == {}


def test_a_bug_leaves_its_traceback_in_the_runs_folder_if_there_is_one_and_one_line_on_stderr(
    trainer: Script, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    trainer.play = scripted_run.unhurt
    assert cli.main(["--no-ui"]) == 1
    _, err = lines(capsys)
    assert (err[0].partition(" ")[0], err[-1].startswith(ERROR)) == ("Traceback", True)
    trainer.play = scripted_run.bug
    monkeypatch.setenv("RUN_FOLDER", str(tmp_path))
    assert cli.main(["--no-ui"]) == 1
    _, err = lines(capsys)
    assert err[-1].startswith(f"{ERROR}unexpected ZeroDivisionError: a bug of ours: ")
    assert not any("Traceback" in line for line in err)
    assert "in bug\n" in (tmp_path / "crash.log").read_text()


def test_a_full_disk_under_the_output_ends_the_run_with_one_line(
    trainer: Script, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    trainer.play = scripted_run.flood
    with Path("/dev/full").open("w") as full:
        monkeypatch.setattr(sys, "stdout", full)
        code = cli.main(["--no-ui", "--display", "plain"])
        monkeypatch.undo()
        os.dup2(os.open(os.devnull, os.O_WRONLY), full.fileno())
    _, err = lines(capsys)
    assert (code, err[-1]) == (
        3,
        f"{ERROR}cannot write to the output: No space left on device: redirect it",
    )


# processes


def command(*argv: str) -> list[str]:
    return [sys.executable, str(ROOT / "tests" / "support" / "scripted_run.py"), *argv]


def environment(**changes: str) -> dict[str, str]:
    return {**os.environ, "PYTHONPATH": str(ROOT), **changes}


def start(script: str, *first: str) -> subprocess.Popen[str]:
    """Start a run and wait until it has printed these events."""
    process = subprocess.Popen(
        command("--no-ui", "--display", "json"),
        env=environment(SCRIPT=script),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    for event in first or ("run", "iteration"):
        assert event in process.stdout.readline()
    return process


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_a_signal_ends_the_run_with_a_checkpoint_and_130(number: signal.Signals) -> None:
    process = start("wait")
    process.send_signal(number)
    out, err = process.communicate(timeout=300)
    events = [json.loads(line)["event"] for line in out.splitlines()]
    assert (process.returncode, events) == (130, ["checkpoint", "end"])
    assert number.name in err
    assert "Traceback" not in err


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_ends_a_run_that_hangs_before_it_has_begun(number: signal.Signals) -> None:
    process = start("loading", "loading")
    process.send_signal(number)
    _, err = process.communicate(timeout=300)
    assert process.returncode == 130
    assert err.splitlines()[-1] == "ppo-workbench: the run had not begun, and nothing of it is kept"


def test_a_reader_that_goes_away_ends_the_run_quietly() -> None:
    process = start("flood")
    assert process.stdout is not None
    process.stdout.close()
    process.stdout = None
    _, err = process.communicate(timeout=300)
    assert (process.returncode, err) == (130, "")


def test_a_reader_of_data_that_goes_away_is_not_an_error() -> None:
    ours, theirs = os.pipe()
    os.close(ours)
    listing = subprocess.run(command("config", "schema"), env=environment(), stdout=theirs, stderr=subprocess.PIPE)
    os.close(theirs)
    assert (listing.returncode, listing.stderr) == (0, b"")


def start_on_terminal(script: str) -> tuple[subprocess.Popen[bytes], int]:
    """Start a run whose output is a terminal; return it and our end of the terminal."""
    ours, theirs = pty.openpty()
    process = subprocess.Popen(
        command("--no-ui"),
        env=environment(SCRIPT=script, TERM="xterm"),
        stdout=theirs,
        stderr=theirs,
    )
    os.close(theirs)
    read_until(ours, "/12")
    return process, ours


def read_until(terminal: int, text: str) -> str:
    """Return what the terminal shows until `text` appears, or until it is closed."""
    shown = ""
    while text not in shown:
        try:
            shown += os.read(terminal, 65536).decode(errors="replace")  # it may end within a character
        except OSError:  # EIO: the other end was closed
            break
    return shown


def test_a_second_interrupt_gives_the_terminal_its_cursor_back() -> None:
    process, terminal = start_on_terminal("stuck")
    process.send_signal(signal.SIGINT)
    read_until(terminal, "Ctrl+C ends at once")
    process.send_signal(signal.SIGINT)
    assert process.wait(timeout=60) == 130
    assert "\x1b[?25l" not in read_until(terminal, "never shown").rpartition("\x1b[?25h")[2]
    os.close(terminal)


def test_a_run_whose_terminal_is_closed_ends_quietly() -> None:
    process, terminal = start_on_terminal("flood")
    os.close(terminal)
    assert process.wait(timeout=60) == 130


def test_a_headless_run_loads_neither_textual_nor_mlx() -> None:
    """MLX is loaded only by the trainer, which is a scripted one here."""
    done = subprocess.run(
        command("--no-ui"), env=environment(LIST_MODULES="1"), capture_output=True, text=True, check=True
    )
    loaded = {name.partition(".")[0] for name in done.stderr.splitlines()}
    assert "trainer" in loaded
    assert not loaded & {"textual", "mlx", "mlx_lm", "transformers", "datasets"}


HOSTILE = "a\x1b]0;owned\x07\x1b[2J\rb\x08c\u202ed\x9b31me\ud800f[bold]g[/x]\nh"
CONTROL = re.compile(r"[\x00-\x09\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069\ud800-\udfff]")


class Terminal(io.StringIO):
    """Stream that claims to be a terminal."""

    def isatty(self) -> bool:
        return True


def play(show: Callable[[Event], None], events: list[Event]) -> None:
    for event in events:
        show(event)


def whole_run() -> list[Event]:
    events: list[Event] = []
    done(events.append, Control())
    return events


# json


def test_each_line_of_json_gives_back_the_event_it_was_made_of() -> None:
    stdout, events = io.StringIO(), whole_run()
    play(JsonDisplay(stdout).show, events)
    back = [event_in(json.loads(line)) for line in stdout.getvalue().splitlines()]
    assert back == [event for event in events if not event.transient]


def test_numbers_that_are_not_finite_and_hostile_text_are_plain_ascii_json() -> None:
    stdout = io.StringIO()
    play(JsonDisplay(stdout).show, [iteration(1, kl=math.nan), samples(1, ("p", HOSTILE))])
    lines = stdout.getvalue().splitlines()
    assert json.loads(lines[0])["kl"] is None
    assert json.loads(lines[1])["previews"][0]["completion"] == HOSTILE
    assert stdout.getvalue().isascii()
    assert not CONTROL.search(stdout.getvalue())


# plain


def test_the_numbers_of_an_iteration_are_right_aligned_under_their_headings() -> None:
    names, units = heading("ppo").splitlines()
    line = row(iteration(3), view_of(started(), iteration(3)))
    ends = [[match.end() for match in re.finditer(r"\S+", text)] for text in (names, line)]
    assert ends[0][:-1] == ends[1][:12]
    assert " ".join(names.split()) == (
        "iteration score KL entropy p.loss v.loss clip expl.var length speed memory time left"
    )
    assert " ".join(line.split()) == "3/12 0.300 1.50 1.432 -0.0561 0.0222 6.3 0.41 29.3 142 1.6 22.0 3m 18s"
    assert units.split() == ["nats/seq", "nats/tok", "%", "tokens", "tok/s", "GB", "s"]
    assert len(line) == len(names)
    missing = row(iteration(3, kl=math.nan), view_of(started(), iteration(3, kl=math.nan)))
    assert (len(missing), missing.split()[2]) == (len(line), "-")


def test_plain_writes_one_heading_and_a_line_an_iteration_to_stdout_and_the_rest_to_stderr(
    capsys: pytest.CaptureFixture[str],
) -> None:
    stdout = io.StringIO()
    display = PlainDisplay(stdout)
    play(display.show, whole_run())
    display.close()
    lines = stdout.getvalue().splitlines()
    assert len(lines) == 2 + 12
    assert lines[2].split()[0] == "1/12"
    assert stdout.getvalue().isascii()
    reported = capsys.readouterr().err.splitlines()
    assert all(line.startswith("ppo-workbench: ") for line in reported)
    assert any("iteration 12: checkpoint checkpoints/step-000012" in line for line in reported)


# words


def test_the_start_of_a_run_shows_what_is_trained_and_every_warning() -> None:
    reported = sentences(started(warnings=["the KL is biased"], resumed_at=5))
    assert "135.0M parameters, 0.46M trained (0.34%)" in reported[1]
    assert reported[-2:] == ["resumed after iteration 5", "warning: the KL is biased"]


def test_an_alarm_says_what_is_wrong_what_to_do_and_which_fixes_there_are() -> None:
    assert sentences(alarm(9, level="error", message="too far", advice="Raise kl_coef.")) == [
        "iteration 9: error: KL high: too far",
        "iteration 9: advice: Raise kl_coef.",
        "iteration 9: the workbench offers: raise kl_coef to 0.1; roll back to the best checkpoint; pause the run",
    ]
    assert len(sentences(alarm(9, fixes=[]))) == 2
    alert = Alert(iteration=9, level="warning", code="truncation", message="18 % cut short: raise max_new_tokens")
    assert sentences(alert) == ["iteration 9: warning: 18 % cut short: raise max_new_tokens"]


def decided(action: str) -> Decision:
    message = "the score fell"
    return Decision(
        iteration=9,
        level="warning",
        code="convergence_degradation",
        message=message,
        rule="degradation",
        action=action,  # type: ignore[arg-type]
        evidence={},
    )


def test_decisions_and_rollbacks_give_their_reason() -> None:
    rolled = RolledBack(iteration=9, to=4, reason="the score fell")
    reported = [sentences(event)[0] for event in (decided("rollback"), decided("continue"), decided("stop"), rolled)]
    assert reported == [
        "iteration 9: decision to roll back: the score fell",
        "iteration 9: decision to continue: the score fell",
        "iteration 9: decision to stop: the score fell",
        "iteration 9: rolled back to iteration 4: the score fell",
    ]


def test_an_evaluation_shows_its_results_against_the_reference_and_for_the_critic() -> None:
    assert sentences(evaluation(4)) == [
        "iteration 4: evaluation on 16 prompts: score 0.512, deviation 0.200, KL 3.250 nats a sequence, 4.0s"
    ]
    against = {"win_rate": 0.625, "win_rate_low": 0.4, "win_rate_high": 0.81, "reference_score": 0.3}
    best = {"best_of": 4, "best_of_score": 0.55}
    critic = {"explained_variance": 0.41, "value_error": 0.2}
    [reported] = sentences(evaluation(4, score_low=0.4, score_high=0.6, **against, **best, **critic))
    assert reported == (
        "iteration 4: evaluation on 16 prompts: score 0.512 (0.400 to 0.600), deviation 0.200, KL 3.250 nats a "
        "sequence, win rate 62% (40 to 81); the reference scores 0.300, its best of 4 0.550; critic: explained "
        "variance 0.41, error 0.200, 4.0s"
    )
    view = view_of(*whole_run(), evaluation(12, **against))
    assert dict(summary(view))["evaluation"] == "score 0.512, win rate 62% (40 to 81)"


def test_the_summary_compares_the_first_five_iterations_with_the_last_five() -> None:
    lines = dict(summary(view_of(*whole_run())))
    assert lines["run"] == "quickstart-0001: done after iteration 12 of 12, 4m 24s"
    assert lines["score"].startswith("0.300 -> 1.000 (+0.700)")
    assert lines["KL"].startswith("1.500 -> 5.000 nats")
    assert lines["folder"] == "runs/quickstart-0001"
    assert lines["inspect"] == "ppo-workbench runs --dir runs"


def test_the_summary_of_a_resumed_run_is_of_all_its_iterations(tmp_path: Path) -> None:
    scores = [0.1 * n for n in range(1, 31)]
    before = [started(folder=str(tmp_path), iterations=20), *(iteration(n, score_mean=9.0) for n in range(1, 23))]
    before[1:11] = [iteration(n, score_mean=scores[n - 1]) for n in range(1, 11)]
    rest = [
        started(folder=str(tmp_path), iterations=30, resumed_at=10),
        *(iteration(n, score_mean=scores[n - 1]) for n in range(11, 31)),
        ended("done", 30),
    ]
    journal = Journal(tmp_path / "events.jsonl")
    play(journal.emit, [*before, *rest])
    journal.close()
    assert dict(summary(view_of(*rest)))["score"] == "0.300 -> 2.800 (+2.500), first and last five iterations"


def test_the_summary_of_a_resumed_run_without_its_journal_is_of_what_was_seen(tmp_path: Path) -> None:
    view = view_of(started(folder=str(tmp_path), resumed_at=10), iteration(11, score_mean=1.0), ended("done", 11))
    assert dict(summary(view))["score"].startswith("1.000 -> 1.000")
    assert dict(summary(view_of(started(folder=str(tmp_path), resumed_at=10))))["run"].endswith("iteration 10 of 12")


def test_the_summary_names_the_alarms_that_are_open_at_the_end() -> None:
    view = view_of(*whole_run()[:-1], alarm(12, level="error"), ended(alarms={"truncation": "warning"}))
    assert dict(summary(view))["alarms"] == "truncation (warning), KL high (error)"
    assert "alarms" not in dict(summary(view_of(*whole_run())))


def test_the_summary_says_how_to_continue_a_stopped_run_and_a_finished_one() -> None:
    path = "checkpoints/step-000004"
    stopped = view_of(started(folder="my runs/a"), ended("stopped", 4, checkpoint=path, reason="SIGTERM"))
    finished = view_of(started(), ended(checkpoint="checkpoints/step-000012"))
    lines = dict(summary(stopped))
    assert lines["resume"] == "ppo-workbench --no-ui --resume 'my runs/a'"
    assert lines["run"].endswith("stopped after iteration 4 of 12, 4m 24s: SIGTERM")
    assert dict(summary(finished))["resume"].endswith("quickstart-0001 --set ppo.iterations=24")
    for kind, command in (("reward-model", "reward-model train"), ("dpo", "dpo")):
        view = view_of(other_run(kind), ended("stopped", 4, checkpoint=path))
        assert dict(summary(view))["resume"] == f"ppo-workbench {command} --resume runs/{kind}-0001"


def test_without_a_checkpoint_the_summary_offers_no_resumption_and_without_a_run_it_is_empty() -> None:
    assert "resume" not in dict(summary(view_of(started(), ended("failed", 0))))
    assert summary(view_of(StateChanged(state="loading"))) == []


# rich


def busy_view() -> RunView:
    progress = PhaseProgress(iteration=3, phase="update", done=1, total=4)
    alert = Alert(iteration=2, level="warning", code="x", message="look [bold]here[/x]")
    texts = samples(2, ("The concert last night", " was a triumph!"), ("你好" * 60, HOSTILE * 20))
    return view_of(started(), StateChanged(state="training"), iteration(1), iteration(2), texts, alert, progress)


def test_the_status_shows_run_state_iteration_phase_speed_memory_and_remaining_time() -> None:
    shown = drawn(busy_view(), 130).splitlines()[0]
    for part in (
        "quickstart-0001 ● training",
        "iteration 2/12",
        "update ━━─",
        "1/4",
        "142 tok/s",
        "1.6 GB",
        "ETA 3m 40s",
    ):
        assert part in shown
    assert "starting ● loading the model" in drawn(view_of(StateChanged(state="loading")))


@pytest.mark.parametrize("width", [60, 80, 120])
def test_no_line_is_wider_than_the_terminal_and_nothing_is_lost_on_a_narrow_one(width: int) -> None:
    shown = drawn(busy_view(), width)
    assert max(cell_len(line) for line in shown.splitlines()) <= width
    for part in ("ETA", "1.6 GB", "expl. variance", "tokens", "The concert last night", "look"):
        assert part in shown


def test_model_text_is_neither_markup_nor_obeyed() -> None:
    shown = drawn(busy_view())
    assert "␛]0;owned␇␛[2J␍b␈c" in shown
    assert "[bold]g[/x]␊h" in shown
    assert "look [bold]here[/x]" in shown
    assert not CONTROL.search(shown)


def test_active_alarms_are_drawn_with_their_advice_and_other_alerts_below() -> None:
    view = busy_view()
    play(view.take, [alarm(2, message=HOSTILE, advice=HOSTILE), decided("continue")])
    shown = drawn(view).splitlines()
    first = next(number for number, line in enumerate(shown) if line.startswith("⚠ iteration 2: KL high: a␛]0;"))
    assert shown[first + 1].startswith("  a␛]0;owned␇")
    assert first < next(number for number, line in enumerate(shown) if line.startswith("score"))
    assert "⚠ iteration 9: the score fell" in shown
    assert not CONTROL.search("\n".join(shown))
    view.take(RolledBack(iteration=9, to=4, reason=HOSTILE))
    shown = drawn(view).splitlines()
    assert not any("KL high" in line for line in shown)
    assert any(line.startswith("· iteration 9: rolled back to iteration 4: a␛]0;") for line in shown)


def shown_on(stream: io.StringIO, events: list[Event]) -> str:
    display = RichDisplay(stream)
    for event in events:
        display.show(event)
        display.refresh()
    display.close()
    return stream.getvalue()


def test_on_a_terminal_the_cursor_is_hidden_meanwhile_and_restored() -> None:
    shown = shown_on(Terminal(), whole_run())
    assert shown.index("\x1b[?25l") < shown.rindex("\x1b[?25h")
    assert shown.rindex("\x1b[?25h") > shown.rindex("\x1b[?25l")
    assert "first and last five" in shown


def test_where_there_is_no_terminal_no_escape_sequence_is_written_even_if_colour_is_forced(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("FORCE_COLOR", "1")
    shown = shown_on(io.StringIO(), whole_run())
    assert "\x1b" not in shown
    assert shown.count("iteration 12/12") == 1
    assert "first and last five" in shown


def test_no_color_is_respected(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "xterm-256color")
    coloured = re.compile(r"\x1b\[(?:\d+;)*(?:3[0-8]|9[0-7])[;m]")
    assert coloured.search(shown_on(Terminal(), whole_run()))
    monkeypatch.setenv("NO_COLOR", "1")
    assert not coloured.search(shown_on(Terminal(), whole_run()))


# the choice


@pytest.mark.parametrize(
    ("name", "stream", "term", "display"),
    [
        (None, Terminal(), "xterm", RichDisplay),
        (None, Terminal(), "dumb", PlainDisplay),
        (None, io.StringIO(), "xterm", PlainDisplay),
        ("json", Terminal(), "xterm", JsonDisplay),
        ("plain", Terminal(), "xterm", PlainDisplay),
        ("rich", io.StringIO(), "xterm", RichDisplay),
    ],
)
def test_the_display_is_the_named_one_or_fits_the_output(
    name: str | None, stream: io.StringIO, term: str, display: type, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TERM", term)
    assert type(choose_display(name, stream)) is display
