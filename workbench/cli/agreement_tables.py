"""Agreement between labellers as tables to read, and as plain values."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Any

from trainer.preferences.agreement import Agreement
from workbench.text import visible


def tables(found: Agreement) -> Iterator[str]:
    """Yield lines: overall alpha, then a table of the pairs of labellers and one of the repeats, if there are any."""
    labellers = "1 labeller" if len(found.labellers) == 1 else f"{len(found.labellers)} labellers"
    yield f"Krippendorff's alpha {_number(found.alpha)}: {labellers}, {found.units} common units"
    pairs = [
        (
            f"{_name(pair.first)}, {_name(pair.second)}",
            str(pair.kappa.n),
            f"{pair.kappa.observed:.1%}",
            _number(pair.kappa.value),
            " to ".join(map(_number, pair.kappa.interval)),
        )
        for pair in found.pairs
        if pair.kappa.n
    ]
    if pairs:
        yield ""
        yield from _table([("labellers", "units", "agree", "kappa", "95 % interval"), *pairs])
    selves = [
        (_name(one.labeller), str(one.units), f"{one.observed:.1%}", _number(one.alpha))
        for one in found.selves
        if one.units
    ]
    if selves:
        yield ""
        yield from _table([("with oneself", "units", "agree", "alpha"), *selves])


def plain(found: Agreement) -> dict[str, Any]:
    """Return `found` as plain values, with None for a number that is not defined."""
    return {
        "labellers": list(found.labellers),
        "units": found.units,
        "alpha": _known(found.alpha),
        "pairs": [
            {
                "first": pair.first,
                "second": pair.second,
                "units": pair.kappa.n,
                "observed": _known(pair.kappa.observed),
                "kappa": _known(pair.kappa.value),
                "standard_error": _known(pair.kappa.standard_error),
                "interval": [_known(bound) for bound in pair.kappa.interval],
            }
            for pair in found.pairs
        ],
        "selves": [
            {
                "labeller": one.labeller,
                "units": one.units,
                "observed": _known(one.observed),
                "alpha": _known(one.alpha),
            }
            for one in found.selves
        ],
    }


def _table(lines: Sequence[Sequence[str]]) -> Iterator[str]:
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    for first, *cells in lines:
        numbers = (cell.rjust(width) for cell, width in zip(cells, widths[1:], strict=True))
        yield "  ".join((first.ljust(widths[0]), *numbers))


def _name(labeller: str) -> str:
    return visible(labeller) or "(no name)"


def _known(value: float) -> float | None:
    return None if math.isnan(value) else value


def _number(value: float) -> str:
    return "-" if math.isnan(value) else f"{value:.3f}"
