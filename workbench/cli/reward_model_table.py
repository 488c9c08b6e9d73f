"""The evaluation of a reward model as tables to read."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from workbench.text import visible


def table(evaluation: dict[str, Any]) -> Iterator[str]:
    """Yield the lines of the tables. evaluation: a RewardModelReport as plain values."""
    accuracy = evaluation["accuracy"]
    yield from _table(
        [
            (f"{accuracy['pairs']} held-out pairs", "accuracy", "95 % interval", "log-loss"),
            ("reward model", _share(accuracy["value"]), _interval(accuracy), _number(evaluation["log_loss"])),
            *(
                (name, _share(known["accuracy"]), "", _number(known["log_loss"]))
                for name, known in (("length alone", evaluation["length"]), ("untrained", evaluation["untrained"]))
                if known
            ),
        ]
    )
    for name, title in (("by_length", "the better one is"), ("by_source", "source")):
        if rows := evaluation[name]:
            yield ""
            yield from _table(
                [
                    (title, "pairs", "accuracy", "95 % interval"),
                    *((visible(row["name"]), str(row["pairs"]), _share(row["value"]), _interval(row)) for row in rows),
                ]
            )
    if bins := evaluation["calibration"]:
        yield ""
        yield from _table(
            [
                ("probability given", "pairs", "mean", "accuracy"),
                *(
                    (
                        f"{one['low']:.2f} to {one['high']:.2f}",
                        str(one["pairs"]),
                        _number(one["confidence"]),
                        _number(one["accuracy"]),
                    )
                    for one in bins
                ),
            ]
        )
        yield f"calibration error (ECE) {_number(evaluation['calibration_error'])}"
    if ties := evaluation["ties"]:
        yield ""
        yield (
            f"{ties['ties']} ties: probability of a tie {_number(ties['on_ties'])} on them, "
            f"{_number(ties['on_decided'])} on the decided pairs"
        )


def _table(lines: Sequence[Sequence[str]]) -> Iterator[str]:
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    for first, *cells in lines:
        numbers = (cell.rjust(width) for cell, width in zip(cells, widths[1:], strict=True))
        yield "  ".join((first.ljust(widths[0]), *numbers)).rstrip()


def _interval(accuracy: dict[str, Any]) -> str:
    return f"{_share(accuracy['low'])} to {_share(accuracy['high'])}"


def _share(value: float | None) -> str:
    return "-" if value is None else f"{value:.1%}"


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:.3f}"
