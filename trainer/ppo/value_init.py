"""Initialisation of the critic from a reward model: both are an adapter and a scalar head on the same backbone."""

from __future__ import annotations

from pathlib import Path

from trainer.config.schema import BackboneConfig, ModelConfig
from trainer.errors import ModelError, TrainerError
from trainer.models.actor_critic import ActorCriticLLM
from trainer.models.adapters import Parameters
from trainer.models.backbone import LoadedModel
from trainer.reward_model.loaded import is_same_backbone, reward_model_folder
from trainer.reward_model.network import Scale
from trainer.reward_model.snapshot import card_config, load_parameters, read_card, read_whole_card

_HEAD = ("head.weight", "head.bias")


def check_value_init(config: ModelConfig) -> None:
    """Raise ModelError if `config.value_init` names no reward model, before the backbone is loaded for minutes."""
    if config.value_init:
        try:
            read_card(reward_model_folder(Path(config.value_init).expanduser()))
        except TrainerError as error:
            raise ModelError(f"model.value_init = '{config.value_init}': {error}") from error


def init_value_model(actor: ActorCriticLLM, loaded: LoadedModel, config: ModelConfig) -> None:
    """Initialise the critic of `actor`, on the backbone of `loaded`, from the reward model in `config.value_init`.

    V of a state is then the reward model's score of the tokens so far, with mean 0 and deviation 1 on its reference
    samples, as from the reward source `reward-model`. Does nothing if `config.value_init` is empty. Call it before
    creating optimisers for the critic. Raises ModelError if there is no such reward model, or if its adapter or
    backbone differs from the critic's.
    """
    if not config.value_init:
        return
    name = f"model.value_init = '{config.value_init}'"
    if actor.shares_trunk:
        raise ModelError(f"{name}: the critic has no adapter to initialise: set model.value_model = 'adapter'")
    try:
        folder = reward_model_folder(Path(config.value_init).expanduser())
        card = read_whole_card(folder)
        model = card_config(folder, card).model
        found = load_parameters(folder)
        same_backbone = is_same_backbone(loaded, model)
    except TrainerError as error:
        raise ModelError(f"{name}: {error}") from error
    if not same_backbone:
        raise ModelError(
            f"{name} uses another backbone: set model.path = '{model.path}', model.adapter = '{model.adapter}', "
            f"model.dtype = '{model.dtype}' and model.quantize = '{model.quantize}', as it was trained with"
        )
    _check_adapter(name, actor.value_parameters(), found, model)
    scale = Scale(**card["scale"])
    # The layers scale by the policy's factor, so B absorbs the quotient.
    factor = model.lora_scale / config.lora_scale
    begin = {key: found[key] * factor if key.endswith("lora_b") else found[key] for key in actor.value_parameters()}
    # fold (w h + b - mean) / std into the head
    begin["head.weight"] = found["head.weight"] / scale.std
    begin["head.bias"] = (found["head.bias"] - scale.mean) / scale.std
    actor.update_value(begin)


def _check_adapter(name: str, mine: Parameters, found: Parameters, model: BackboneConfig) -> None:
    """Raise ModelError if the arrays of the reward model's adapter differ from the critic's."""
    adapter = found.keys() - {*_HEAD, "tie.log_nu"}
    if adapter | {*_HEAD} == mine.keys() and all(found[key].shape == mine[key].shape for key in mine):
        return
    targets = ", ".join(f'"{target}"' for target in model.lora_targets)
    raise ModelError(
        f"{name} has a different adapter from the critic's: set model.lora_rank = {model.lora_rank}, "
        f"model.lora_targets = [{targets}] and model.lora_layers = {model.lora_layers}, as it was trained with"
    )
