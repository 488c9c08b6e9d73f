"""UltraFeedback's rows: an instruction and completions of several models, each with an overall score."""

from __future__ import annotations

from typing import Any

from trainer.data.files import SourceRow
from trainer.errors import DataError
from trainer.preferences.formats.values import ColumnNames, cell, is_number, others, prompt_cell, shortened, text
from trainer.preferences.records import Comparison, Judgement, Origin, Preference

_SCORE = "overall_score"


def read_ultrafeedback(row: SourceRow, names: ColumnNames, source: str) -> Preference:
    """Read all completions of a row, ranked by their score; equal scores are a tie. Raises DataError.

    The model that wrote a completion goes to its origin, the scores to the column `scores`; critiques and the scores'
    parts are left out.
    """
    prompt = names.prompt if names.prompt in row.columns else "instruction"
    given = cell(row, "completions")
    if not isinstance(given, list) or len(given) < 2:
        raise DataError(f"{row.place}: completions is {shortened(given)}: must be a list of two or more")
    texts, scores, origins = [], [], []
    for number, completion in enumerate(given, 1):
        fields = completion if isinstance(completion, dict) else {}
        texts.append(text(fields.get("response"), row.place, f"response {number}"))
        scores.append(_score(fields.get(_SCORE), row.place, number))
        origins.append(Origin(source=source, writer=str(fields.get("model") or "")))
    ranking = tuple(
        tuple(place for place, one in enumerate(scores) if one == score) for score in sorted(set(scores), reverse=True)
    )
    return Preference(
        comparison=Comparison(
            prompt=prompt_cell(row, prompt),
            completions=tuple(texts),
            origins=tuple(origins),
            columns={**others(row, prompt, "completions", "models"), "scores": scores},
        ),
        judgement=Judgement(ranking=ranking),
    )


def _score(value: Any, place: str, number: int) -> float:
    if not is_number(value):
        raise DataError(f"{place}: {_SCORE} of completion {number} is {shortened(value)}: must be a number")
    return float(value)
