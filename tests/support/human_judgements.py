"""Human judgements of policy and reference."""

from __future__ import annotations

from trainer.preferences.records import Choice, Comparison, Judgement, Origin, Preference


def judged(
    number: int,
    choice: Choice,
    *,
    labeller: str = "ann",
    writers: tuple[str, str] = ("policy", "reference"),
    runs: tuple[str, str] = ("a", "a"),
    iteration: int = 3,
) -> Preference:
    """Return a judged pair with a prompt of its own; `choice` a stands for what the first of `writers` wrote."""
    origins = tuple(
        Origin(source="run", run=run, iteration=iteration, writer=writer)
        for run, writer in zip(runs, writers, strict=True)
    )
    comparison = Comparison(prompt=f"say {number}", completions=("yes", "no"), origins=origins)
    return Preference(comparison=comparison, judgement=Judgement.chosen(choice, labeller=labeller))
