"""Output of a headless run, as JSON, as lines and as a live table; never controlled by model text."""

from __future__ import annotations

import io
import json
import math
import re
from collections.abc import Callable
from pathlib import Path

import pytest
from rich.cells import cell_len
from run_kinds_helper import other_run
from scripted_run import alarm, done, ended, evaluation, iteration, samples, started
from views import drawn, view_of

from trainer.engine.control import Control
from trainer.events import Alert, Decision, Event, PhaseProgress, RolledBack, StateChanged
from trainer.runs.journal import Journal, event_in
from workbench.cli.train import choose_display
from workbench.headless import JsonDisplay, PlainDisplay, RichDisplay, heading, row, summary
from workbench.run.sentences import sentences
from workbench.run.view import RunView

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
    ends = {match.group(): match.end() for match in re.finditer(r"\S+", names)}
    cells = {name: line[:end].split()[-1] for name, end in ends.items()}
    assert cells | {"left": "3m 18s"} == {
        "iteration": "3/12",
        "score": "0.300",
        "KL": "1.50",
        "entropy": "1.432",
        "p.loss": "-0.0561",
        "v.loss": "0.0222",
        "clip": "6.3",
        "expl.var": "0.41",
        "length": "29.3",
        "speed": "142",
        "memory": "1.6",
        "time": "22.0",
        "left": "3m 18s",
    }
    assert line.endswith("3m 18s")
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
