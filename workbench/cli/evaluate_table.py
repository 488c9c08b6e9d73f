"""The evaluation of a checkpoint as tables to read."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from workbench.text import visible

if TYPE_CHECKING:
    from trainer.evaluation.intervals import Interval
    from trainer.evaluation.report import EvaluationReport

_ROWS = (
    ("score", "score", 3),
    ("reward", "reward: score less KL penalty", 3),
    ("kl", "KL, nats a sequence", 2),
    ("length", "length, tokens", 1),
)
_PART = "parts."


def table(report: EvaluationReport) -> Iterator[str]:
    """Yield the lines of the tables."""
    policy, reference = report.policy, report.reference
    names = [name for name in policy if name.startswith(_PART)]
    parts = [(name, f"  {visible(name.removeprefix(_PART))}", 3) for name in names] if len(names) > 1 else []
    yield _title(report)
    yield ""
    yield from _aligned(
        [
            ("", "policy", "95 % interval", "reference", "95 % interval"),
            *(
                (label, *_cells(policy[name], digits), *_cells(reference[name], digits))
                for name, label, digits in (_ROWS[0], *parts, *_ROWS[1:])
            ),
            ("cut short", *_shares(policy["truncated"]), *_shares(reference["truncated"])),
        ]
    )
    yield ""
    yield from _aligned(
        [
            ("policy against reference", "", "95 % interval"),
            ("gain in score", *_cells(report.gain, 3)),
            (f"win rate, {report.pairs} pairs", *_shares(report.win_rate)),
        ]
    )
    if report.best_of:
        yield ""
        yield from _aligned(
            [
                ("best of n of the reference", "score", "95 % interval", "KL at most"),
                *((f"n = {best.n}", *_cells(best.score, 3), _number(best.kl, 2)) for best in report.best_of),
            ]
        )
    if report.critic:
        yield ""
        yield from _aligned(
            [
                ("critic on these rollouts", "", "95 % interval"),
                ("explained variance", *_cells(report.critic["explained_variance"], 3)),
                ("error (root mean square)", *_cells(report.critic["error"], 3)),
            ]
        )


def _title(report: EvaluationReport) -> str:
    average = ", moving average" if report.averaged else ""
    responses = "1 response" if report.samples == 1 else f"{report.samples} responses"
    return (
        f"{visible(report.run)}, {report.checkpoint}{average}: {report.prompts} prompts, {responses} to each, seed "
        f"{report.seed}, kl_coef {report.kl_coef:g}"
    )


def _aligned(lines: Sequence[Sequence[str]]) -> Iterator[str]:
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    for first, *cells in lines:
        numbers = (cell.rjust(width) for cell, width in zip(cells, widths[1:], strict=True))
        yield "  ".join((first.ljust(widths[0]), *numbers)).rstrip()


def _cells(interval: Interval, digits: int) -> tuple[str, str]:
    value, low, high = (_number(number, digits) for number in interval)
    return value, f"{low} to {high}"


def _shares(interval: Interval) -> tuple[str, str]:
    value, low, high = ("-" if math.isnan(share) else f"{share:.1%}" for share in interval)
    return value, f"{low} to {high}"


def _number(value: float, digits: int) -> str:
    return f"{value:.{digits}f}" if math.isfinite(value) else "-"
