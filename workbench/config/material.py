"""Checks, by the trainer's own functions, of the files that a run would read before it trains."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial

from trainer.config import Config
from trainer.config.reward_sources import ModelSource, PythonSource
from trainer.data import check_prompts
from trainer.errors import TrainerError
from trainer.rewards.code import code_of
from workbench.config.document import Problem

_Check = tuple[str, Callable[[], object]]


def material_problems(config: Config) -> list[Problem]:
    """Return what is wrong with model, prompts and reward files of `config`, for a thread.

    Nothing is fetched and no code is run, so names on the hub and what is inside a reward's file are not checked.
    """
    found = []
    for key, check in _checks(config):
        try:
            check()
        except TrainerError as error:
            found.append(Problem(key, str(error), None))
    return found


def _checks(config: Config) -> Iterator[_Check]:
    model = config.model
    if model.path != "starter" or model.adapter:
        from trainer.models.backbone import check_local  # loads mlx

        yield "model.path", partial(check_local, model)
    if model.policy_init:
        from trainer.engine.policy_init import check_policy_init

        yield "model.policy_init", partial(check_policy_init, model)
    if model.value_init:
        from trainer.engine.value_init import check_value_init

        yield "model.value_init", partial(check_value_init, model)
    yield "data.prompts", partial(check_prompts, config.data)
    for source in config.reward.sources:
        if isinstance(source, PythonSource):
            yield "reward.sources", partial(code_of, source.path)
    if any(isinstance(source, ModelSource) for source in config.reward.sources):
        from trainer.rewards.model_reward import unfinished_models

        yield "reward.sources", partial(unfinished_models, config)
