"""Responses of several runs to the same prompts, side by side."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import zip_longest

from workbench.columns import fit_end, padded
from workbench.compare.compared_run import PROMPTS, ComparedRun, SharedPrompt, shared_prompts
from workbench.compare.lines import NUMBER, notes, role_of, wrapped
from workbench.kit.lines import Line
from workbench.numbers import number, score_text
from workbench.run.sample_table import Sample
from workbench.text import visible

_LOOKED_AT = 4000  # characters of a text, at most
_LINES = 8  # of a response
_LEAST = 34  # columns of a response beside others
_GAP = 3
_CUT = "✂"  # the response reached the length limit


def answer_lines(runs: Sequence[ComparedRun], width: int) -> Iterator[Line]:
    """Yield lines of at most `width` columns: the prompts that several runs answered, each with the answers."""
    shared = shared_prompts([run.samples for run in runs], PROMPTS)
    without = [run.letter for run in runs if not run.samples]
    if without:
        yield from notes(f"no saved samples of {', '.join(without)}", width)
    if not shared and len(runs) - len(without) > 1:
        yield from notes("no two of the runs answered the same prompt in their newest samples", width)
    for place, one in enumerate(shared):
        if place:
            yield []
        yield from _prompt_lines(runs, one, width)


def _prompt_lines(runs: Sequence[ComparedRun], shared: SharedPrompt, width: int) -> Iterator[Line]:
    """Yield lines of at most `width` columns: the end of the prompt, then the answers, side by side if they fit."""
    yield [("prompt ", "muted"), (fit_end(visible(shared.prompt[-_LOOKED_AT:]), width - 7), "strong")]
    answered = [(run, answer) for run, answer in zip(runs, shared.answers, strict=True) if answer is not None]
    across = (width - _GAP * (len(answered) - 1)) // len(answered)
    if across >= _LEAST:
        blocks = [_answer(run, answer, across) for run, answer in answered]
        for lines in zip_longest(*blocks, fillvalue=("", "text")):
            cells = [(padded(text, across), role) for text, role in lines]
            yield [piece for cell in cells for piece in ((" │ ", "muted"), cell)][1:]
    else:
        for run, answer in answered:
            yield from ([line] for line in _answer(run, answer, width))


def _answer(run: ComparedRun, sample: Sample, width: int) -> list[tuple[str, str]]:
    facts = [run.letter, f"it {sample.key.iteration}", score_text(sample.score, 3)]
    facts.append(f"KL {number(sample.kl, 1, width=NUMBER)}")
    if sample.truncated:
        facts.append(_CUT)
    head = [(line, role_of(run.letter)) for line in wrapped("  ".join(facts), width)]
    text = visible(sample.completion[:_LOOKED_AT].strip("\n"))
    return head + [(line, "text") for line in wrapped(text, width, _LINES)]
