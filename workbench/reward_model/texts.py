"""Texts about a run and its pairs."""

from __future__ import annotations

from rich.cells import cell_len

from trainer.preferences.records import STRENGTHS, Text
from trainer.reward_model.predictions import PairPrediction, Predictions
from workbench.reward_model.follower import Look
from workbench.text import visible

_SIGNS = {"done": "✓", "stopped": "■", "failed": "✖", "interrupted": "!"}  # else ●
_SOURCE = 60  # characters
_STRENGTHS = dict(zip(STRENGTHS, ("slightly", "clearly", "strongly"), strict=True))


def plain_text(text: Text) -> str:
    """Return a plain text as it is; for messages, the contents in order, each after its role if there are several."""
    if isinstance(text, str):
        return text
    if len(text) == 1:
        return text[0]["content"]
    return "\n".join(f"{message['role']}: {message['content']}" for message in text)


def verdict(pair: PairPrediction) -> str:
    """Return whether the model agrees with the label (✓ or ✗) and the difference in reward; ~ for a tie, = if even."""
    apart = pair.chosen_reward - pair.rejected_reward
    if pair.is_tie:
        return f"~ tie, {abs(apart):.2f} reward apart"
    if pair.lead == 0:
        return "= even"
    return f"{'✓' if pair.lead > 0 else '✗'} {apart:+.2f} reward"


def facts(pair: PairPrediction, width: int) -> str:
    """Return verdict, rewards, lengths, strength of the label and source, as many as fit into `width` columns."""
    parts = [
        verdict(pair),
        f"chosen {pair.chosen_reward:+.2f}",
        f"rejected {pair.rejected_reward:+.2f}",
        f"{pair.chosen_tokens} and {pair.rejected_tokens} tokens",
        "" if pair.is_tie else f"{_STRENGTHS.get(pair.strength, '')} better",
        visible(pair.source[:_SOURCE]),
    ]
    text = ""
    for part in filter(None, parts):
        longer = f"{text}   {part}" if text else part
        if cell_len(longer) > width:
            break
        text = longer
    return text


def run_heading(name: str, look: Look | None) -> str:
    """Return the run's name, state, progress and number of comparisons."""
    if look is None:
        return visible(name)
    course = look.course
    state = course.state if look.live else course.ended.state if course.ended else "interrupted"
    parts = [visible(name), f"{_SIGNS.get(state, '●')} {visible(state)}"]
    if course.started is not None:
        parts.append(f"step {course.step} of {course.total}")
        parts.append(f"{course.started.prompts} comparisons, {course.started.eval_prompts} held out")
    return "   ".join(parts)


def pairs_heading(found: Predictions, marked: int) -> str:
    """Return a heading with the number of pairs and ties, and how many are wrong, listed and marked."""
    wrong = sum(chosen < rejected for chosen, rejected in zip(found.chosen, found.rejected, strict=True))
    parts = [f"held-out pairs, most wrong first: ✗ {wrong} of {len(found.chosen)}"]
    if ties := found.total - len(found.chosen):
        parts.append(f"~ {ties} {'tie' if ties == 1 else 'ties'}")
    if len(found.pairs) < found.total:
        parts.append(f"the first {len(found.pairs)} are listed")
    if marked:
        parts.append(f"◆ {marked} marked")
    return "   ".join(parts)
