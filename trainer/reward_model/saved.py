"""Evaluation of a saved reward model on comparisons: its own held-out ones, or others."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import NamedTuple

from trainer.config.loading import load_config_as
from trainer.config.reward_model import RewardModelConfig
from trainer.errors import UsageError
from trainer.reward_model.comparisons import comparisons
from trainer.reward_model.evaluation import baseline, report
from trainer.reward_model.loaded import LoadedRewardModel
from trainer.reward_model.outcomes import Outcomes, outcomes
from trainer.reward_model.pairs import Group, fingerprint, group_preferences
from trainer.reward_model.report import RewardModelReport
from trainer.reward_model.scoring import score_sequences
from trainer.reward_model.sources import load_preferences
from trainer.runs.folder import RunFolder


class Evaluated(NamedTuple):
    """An evaluation, and warnings on its comparisons for the user, one line each."""

    report: RewardModelReport
    warnings: list[str]


def evaluate_held_out(loaded: LoadedRewardModel, folder: RunFolder) -> Evaluated:
    """Evaluate the model on the comparisons that its run held out. Raises TrainerError if they are not available."""
    config = load_config_as(RewardModelConfig, folder.config)
    preferences, warnings = load_preferences(config.data)
    data = comparisons(preferences, loaded.base, config)
    state = json.loads((loaded.folder / "state.json").read_bytes())
    if state["fingerprint"] != fingerprint([*data.train, *data.held_out]):
        warnings.append("the preferences are not those of the training: some of these may have been trained on")
    if not data.held_out:
        raise UsageError(f"run '{folder.name}' held nothing out: name a source by --data")
    return Evaluated(_evaluate(loaded, data.held_out), warnings + data.warnings)


def evaluate_on(loaded: LoadedRewardModel, source: str) -> Evaluated:
    """Evaluate the model on all preferences of `source`, a store, file or dataset. Raises TrainerError."""
    config = loaded.config.data.model_copy(update={"preferences": source})
    preferences, warnings = load_preferences(config)
    groups, found = group_preferences(preferences, loaded.encoder, config)
    return Evaluated(_evaluate(loaded, groups), warnings + found)


def _evaluate(loaded: LoadedRewardModel, groups: Sequence[Group]) -> RewardModelReport:
    sequences = [sequence for group in groups for sequence in group.sequences]

    def found() -> Outcomes:
        scores = score_sequences(loaded.model, sequences, loaded.config.optim.micro_batch_tokens)
        return outcomes(groups, scores, loaded.model.logit_std)

    loaded.model.update(loaded.untrained)
    try:
        untrained = baseline(found())
    finally:
        loaded.model.update(loaded.trained)
    log_nu = loaded.model.log_nu
    return report(
        found(),
        length_slope=loaded.card["length_slope"],
        untrained=untrained,
        log_nu=None if log_nu is None else float(log_nu),
    )
