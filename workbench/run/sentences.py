"""Events in words, for the screen and for headless displays.

Only `state_text` and `rank_texts` are made safe to print.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path

from trainer.engine.live_settings import in_words
from trainer.errors import counted
from trainer.events import (
    Alarm,
    Alert,
    BranchedFrom,
    CheckpointSaved,
    Decision,
    DPOEvaluation,
    Evaluation,
    Event,
    HumanEvaluation,
    RewardModelEvaluation,
    RolledBack,
    RunStarted,
    SettingChanged,
    StateChanged,
)
from trainer.monitoring.monitor import severity
from trainer.runs.listing import PPO, RunSummary
from workbench.run.metrics import METRICS, Numbers
from workbench.system.output import PROGRAM
from workbench.text import duration, gigabytes, number, percent, visible

AnyEvaluation = Evaluation | RewardModelEvaluation | HumanEvaluation

SIGNS = {"info": "·", "warning": "⚠", "error": "✖"}
_LONGEST = 100  # characters of a state that are shown
_SPELT = {"kl": "KL", "nan": "NaN"}
_STATES = {"loading": "loading the model"}  # else the state itself
_LEVELS = {"info": "note"}  # else the level itself
_ACTIONS = {"rollback": "roll back"}  # else the action itself


def sentences(event: Event) -> list[str]:
    """Describe `event` in lines of text; none for an event that is shown as numbers."""
    match event:
        case RunStarted():
            return _run(event)
        case StateChanged(state="loading"):
            return [state_words(event.state)]
        case StateChanged(state="paused"):
            return [f"paused: resume it in '{PROGRAM} watch'"]
        case SettingChanged():
            lines = [f"{event.key} changed from {in_words(event.old)} to {in_words(event.value)}"]
        case Evaluation() | RewardModelEvaluation() | HumanEvaluation():
            lines = [_evaluation(event)]
        case CheckpointSaved():
            lines = [f"checkpoint {event.path}, {duration(event.seconds)}"]
        case RolledBack():
            lines = [alert_text(event)]
        case Decision():
            lines = [f"decision to {_ACTIONS.get(event.action, event.action)}: {event.message}"]
        case Alert():
            lines = [f"{_LEVELS.get(event.level, event.level)}: {alert_text(event)}"]
            if isinstance(event, Alarm):
                lines.append(f"advice: {event.advice}")
                if event.fixes:
                    lines.append(f"the workbench offers: {'; '.join(fix.label for fix in event.fixes)}")
        case _:
            return []
    return [f"iteration {event.iteration}: {line}" for line in lines]


def state_words(state: str) -> str:
    """Return what a run does in this state, safe to print; a state that only a newer version knows is itself."""
    return _STATES.get(state) or visible(state)


def short_path(path: str) -> str:
    """Return `path` relative to the current folder when it is inside, else unchanged."""
    try:
        return str(Path(path).relative_to(Path.cwd()))
    except ValueError:
        return path


def level_sign(level: str) -> str:
    """Return the sign of alerts of this level, which only a newer version may know."""
    return SIGNS.get(level, SIGNS["warning"])


def change_words(key: str, old: object, new: object) -> str:
    """Return the change of a setting: `ppo.kl_coef 0.05 → 0.1`, or `ppo.kl_coef = 0.1` where `old` is None."""
    before, after = (str(value).lower() if isinstance(value, bool) else in_words(value) for value in (old, new))
    return f"{key} = {after}" if old is None else f"{key} {before or 'empty'} → {after or 'empty'}"


def title(code: str) -> str:
    """Return the title of alarms with this code: `KL high` for `kl_high`."""
    return " ".join(_SPELT.get(word, word) for word in code.split("_"))


def alert_text(alert: Alert | RolledBack) -> str:
    """Return what an alert says, without its iteration and level."""
    if isinstance(alert, RolledBack):
        return f"rolled back to iteration {alert.to}: {alert.reason}"
    return f"{title(alert.code)}: {alert.message}" if isinstance(alert, Alarm) else alert.message


def evidence(alarm: Alarm) -> list[tuple[str, str]]:
    """Return the numbers that the alarm is based on: the label of each, and its value with its unit."""
    metrics = {metric.field: metric for metric in METRICS}
    return [
        (metric.label, metric.with_unit(value * metric.factor))
        if (metric := metrics.get(name))
        else (name.replace("_", " "), f"{value:.4g}" if math.isfinite(value) else "-")
        for name, value in alarm.evidence.items()
    ]


def urgent_first(alarms: Sequence[Alarm]) -> list[Alarm]:
    """Sort the most severe first, and within one level the newest first. alarms: newest last."""
    newest_first = alarms[::-1]
    return sorted(newest_first, key=lambda alarm: -severity(alarm.level))


def errors(alarms: Mapping[str, str]) -> str:
    """Name the errors among the active alarms (code -> level) in few words: `KL high +1`; empty without an error."""
    codes = [code for code, level in alarms.items() if level == "error"]
    return f"{title(codes[0])}{f' +{len(codes) - 1}' if len(codes) > 1 else ''}" if codes else ""


def state_text(run: RunSummary) -> str:
    """Return the state of a run and what is wrong with it: `done, KL high`. An unknown state is shown as it is."""
    damaged = "damaged" if run.damaged else ""
    return ", ".join(filter(None, (visible(run.state[:_LONGEST]), visible(errors(run.alarms)), damaged)))


def in_brief(evaluation: AnyEvaluation) -> str:
    """Return the main result of an evaluation, and how certain it is. Not made safe to print."""
    match evaluation:
        case HumanEvaluation():
            return f"{win_rate(evaluation)} of {evaluation.comparisons}"
        case DPOEvaluation():
            return f"{held_out(evaluation, 2)} of {evaluation.pairs}, KL {number(evaluation.kl)}"
        case RewardModelEvaluation():
            return f"{held_out(evaluation, 2)} of {evaluation.pairs}"
        case Evaluation():
            against = f", {reference_win_rate(evaluation)}" if math.isfinite(evaluation.win_rate) else ""
            return f"score {number(evaluation.score_mean)}{parts(evaluation.parts)}{against}"


def win_rate(evaluation: HumanEvaluation) -> str:
    """Return how often people prefer the policy, with its interval."""
    return f"human win rate {_share(evaluation.win_rate, evaluation.low, evaluation.high)}"


def reference_win_rate(evaluation: Evaluation) -> str:
    """Return how often the policy's score beats the reference's, with its interval."""
    return f"win rate {_share(evaluation.win_rate, evaluation.win_rate_low, evaluation.win_rate_high)}"


def held_out(evaluation: RewardModelEvaluation, digits: int = 3) -> str:
    """Return the accuracy on held-out comparisons, with its interval."""
    shares = (evaluation.accuracy, evaluation.accuracy_low, evaluation.accuracy_high)
    value, low, high = (number(share, digits) for share in shares)
    return f"held-out accuracy {value} ({low} to {high})"


def parts(scores: Mapping[str, float]) -> str:
    """Return raw scores by reward source, in brackets after a space; empty for a single one, which is the score."""
    if len(scores) < 2:
        return ""
    return f" ({', '.join(f'{name} {number(score)}' for name, score in scores.items())})"


def _share(value: float, low: float, high: float) -> str:
    return f"{percent(value)} ({number(100 * low, 0)} to {number(100 * high, 0)})"


def _run(event: RunStarted) -> list[str]:
    share = 100 * event.trainable / event.parameters if event.parameters else math.nan
    lines = [
        f"run {event.name} in {short_path(event.folder)}",
        f"model {event.model}, {event.parameters / 1e6:.1f}M parameters, {event.trainable / 1e6:.2f}M "
        f"trained ({share:.2f}%), {event.dtype} on {event.device}, seed {event.seed}",
        f"{counted(event.prompts, 'prompt' if event.run_kind == PPO else 'comparison')}, "
        f"{event.eval_prompts:,} held out, {counted(event.iterations, 'iteration')}",
    ]
    if event.branched_from is not None:
        lines.append(branched(event.branched_from))
    if event.resumed_at is not None:
        lines.append(resumption(event.resumed_at))
    return lines + [f"warning: {warning}" for warning in event.warnings]


def resumption(iteration: int) -> str:
    """Describe a resumption from the checkpoint of `iteration`, as in `RunStarted.resumed_at`."""
    return f"resumed after iteration {iteration}" if iteration >= 0 else "begun again: there was no checkpoint"


def branched(origin: BranchedFrom) -> str:
    """Return which run and iteration a branch is from, and what it changed."""
    changes = ", ".join(f"{key} = {in_words(value)}" for key, value in origin.changes.items())
    return f"branched from {origin.run} after iteration {origin.iteration}, {changes or 'without changes'}"


def _evaluation(event: AnyEvaluation) -> str:
    match event:
        case HumanEvaluation():
            people = counted(event.labellers, "person", "people")
            counts = f"{event.wins} for the policy, {counted(event.ties, 'tie')}, {event.losses} for the reference"
            return f"{win_rate(event)} of {counted(event.comparisons, 'comparison')} by {people}: {counts}"
        case RewardModelEvaluation():
            learnt = ""
            if isinstance(event, DPOEvaluation):
                learnt = f", lead {number(event.lead)}, KL {number(event.kl)} nats a token"
            return (
                f"{held_out(event)} of {counted(event.pairs, 'pair')}, log-loss {number(event.log_loss)}{learnt}; "
                f"by length alone {number(event.length_accuracy)}, untrained {number(event.untrained_accuracy)}, "
                f"{duration(event.seconds)}"
            )
        case Evaluation():
            text = f"evaluation on {counted(event.prompts, 'prompt')}: score {number(event.score_mean)}"
            if math.isfinite(event.score_low) and math.isfinite(event.score_high):
                text += f" ({number(event.score_low)} to {number(event.score_high)})"
            text += f"{parts(event.parts)}, deviation {number(event.score_std)}, KL {number(event.kl)} nats a sequence"
            if event.unscored:
                text += f", {percent(event.unscored)} of the responses not scored"
            if math.isfinite(event.win_rate):
                text += f", {reference_win_rate(event)}; the reference scores {number(event.reference_score)}"
            if math.isfinite(event.best_of_score):
                text += f", its best of {event.best_of} {number(event.best_of_score)}"
            if math.isfinite(event.explained_variance):
                variance = number(event.explained_variance, 2)
                text += f"; critic: explained variance {variance}, error {number(event.value_error)}"
            return f"{text}, {duration(event.seconds)}"


def rank_texts(event: Numbers | None) -> list[str]:
    """Return a line for each rank: its host, how long it worked and waited for others; none for one process."""
    lines = []
    for place, rank in enumerate(event.ranks if event else []):
        found = [rank.get(name) for name in ("seconds", "waiting", "memory_bytes", "sent")]
        seconds, waiting, memory, sent = (float(n) if isinstance(n, int | float) else math.nan for n in found)
        share = percent(waiting / seconds if seconds > 0 else math.nan)
        text = f"{visible(str(rank.get('host', f'rank {place}')))}  works {duration(seconds - waiting)}  waits {share}"
        known = math.isfinite(memory + sent)
        lines.append(text + (f"  {gigabytes(int(memory))}  sends {sent / 1e6:.1f} MB" if known else ""))
    return lines
