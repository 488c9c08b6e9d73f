"""Initialisation of policy and critic: from an adapter that was trained before, and from a reward model."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import mlx.core as mx

from trainer.config.pairs import RewardModelConfig
from trainer.config.schema import ModelConfig
from trainer.errors import ModelError, StorageError, TrainerError, one_line
from trainer.models.actor_critic import ActorCriticLLM
from trainer.models.adapters import ADAPTER, ADAPTER_FILE, Parameters, check_adapter, read_adapter_config, read_arrays
from trainer.models.backbone import LoadedModel
from trainer.models.forward import family_of
from trainer.models.peft_adapters import check_peft, is_peft, read_peft
from trainer.reward_model.loaded import is_same_backbone, reward_model_folder
from trainer.reward_model.network import Scale
from trainer.reward_model.snapshot import card_config, load_parameters, read_card

_POLICY, _CRITIC = "model.policy_init", "model.value_init"


def check_init(config: ModelConfig) -> None:
    """Raise ModelError if what `config` names cannot begin a policy or a critic, before the backbone is loaded."""
    for what, given in ((_POLICY, config.policy_init), (_CRITIC, config.value_init)):
        folder = Path(given).expanduser()
        if given and is_peft(folder):
            check_peft(folder, what)
        elif given and what == _POLICY:
            check_adapter(folder, what)
        elif given:
            _reward_model(given, whole=False)


def init_policy(actor: ActorCriticLLM, config: ModelConfig) -> None:
    """Initialise the policy of `actor` from the adapter in `config.policy_init`; the reference has none.

    Does nothing if it is empty. Raises ModelError if the adapter has other layers, another rank or another kind than
    the policy's.
    """
    if not config.policy_init:
        return
    name, folder = f"{_POLICY} = '{config.policy_init}'", Path(config.policy_init).expanduser()
    if is_peft(folder):
        adapter = read_peft(folder, family_of(actor.backbone), _POLICY)
        if adapter.head is not None:
            raise ModelError(f"{name} is of a sequence classifier, which writes no text: use another")
        found, scale = adapter.parameters, adapter.scale
    else:
        try:
            settings = read_adapter_config(folder)
            kind, scale = settings.get("fine_tune_type", "lora"), float(settings["lora_parameters"]["scale"])
            found = {key: array.astype(mx.float32) for key, array in read_arrays(folder / ADAPTER_FILE).items()}
        except (OSError, ValueError, KeyError, TypeError, RuntimeError, StorageError) as error:
            raise ModelError(f"{name} cannot be read ({one_line(error, 200)}): copy it again") from error
        if kind != "lora":
            raise ModelError(f"{name} is of the kind {kind}: name it in model.adapter, which takes any kind")
    actor.update_policy(_fitted(name, found, actor.policy_parameters(), scale / config.lora_scale))


def init_value_model(actor: ActorCriticLLM, loaded: LoadedModel, config: ModelConfig) -> None:
    """Initialise the critic of `actor`, on the backbone of `loaded`, from the reward model in `config.value_init`.

    V of a state is then the reward model's score of the tokens so far, with mean 0 and deviation 1 on its reference
    samples, as from the reward source `reward-model`; for PEFT's adapter of a sequence classifier, its score as it is.
    Does nothing if `config.value_init` is empty. Call it before creating optimisers for the critic. Raises ModelError
    if there is no such reward model, or if its adapter or backbone differs from the critic's.
    """
    if not config.value_init:
        return
    name, given = f"{_CRITIC} = '{config.value_init}'", Path(config.value_init).expanduser()
    if actor.value_model != "adapter":
        raise ModelError(f"{name}: the critic has no adapter to initialise: set model.value_model = 'adapter'")
    if is_peft(given):
        adapter = read_peft(given, family_of(loaded.backbone), _CRITIC)
        if adapter.head is None:
            raise ModelError(f"{name} has no score.weight, so it is not of a sequence classifier: leave it empty")
        base = Path(adapter.base).expanduser().resolve()  # as a PEFT adapter names it
        fits = not config.adapter and (adapter.base == config.path or base == loaded.folder.resolve())
        needed = f"model.path = '{adapter.base}' and model.adapter = ''"
        found = {f"{ADAPTER}{key}": array for key, array in adapter.parameters.items()}
        found |= {"head.weight": adapter.head, "head.bias": mx.zeros(())}
        lora_scale = adapter.scale
    else:
        folder, card, trained = _reward_model(config.value_init, whole=True)
        model, lora_scale, scale = trained.model, trained.model.lora_scale, Scale(**card["scale"])
        try:
            found, fits = load_parameters(folder), is_same_backbone(loaded, model)
        except TrainerError as error:
            raise ModelError(f"{name}: {error}") from error
        needed = (
            f"model.path = '{model.path}', model.adapter = '{model.adapter}', model.dtype = '{model.dtype}' and "
            f"model.quantize = '{model.quantize}'"
        )
        found.pop("tie.log_nu", None)
        # fold (w h + b - mean) / std into the head
        found["head.weight"] = found["head.weight"] / scale.std
        found["head.bias"] = (found["head.bias"] - scale.mean) / scale.std
    if not fits:
        raise ModelError(f"{name} uses another backbone: set {needed}, as it was trained with")
    actor.update_value(_fitted(name, found, actor.value_parameters(), lora_scale / config.lora_scale))


def _reward_model(given: str, *, whole: bool) -> tuple[Path, dict[str, Any], RewardModelConfig]:
    """Return folder, card and settings of a reward model that can be a critic. whole: check all of its files too."""
    name = f"{_CRITIC} = '{given}'"
    try:
        folder = reward_model_folder(Path(given).expanduser())
        card = read_card(folder, whole=whole)
        trained = card_config(folder, card)
    except TrainerError as error:
        raise ModelError(f"{name}: {error}") from error
    if trained.train.states != "last":
        raise ModelError(
            f"{name} was trained with train.states = {trained.train.states}, and a critic reads one state: train one "
            "with train.states = last"
        )
    return folder, card, trained


def _fitted(name: str, found: Parameters, mine: Parameters, factor: float) -> Parameters:
    """Return `found` for a model with the arrays `mine`; its layers scale by `factor` less, so B absorbs that.

    Raises ModelError if the arrays differ, with the settings that would have them.
    """
    if found.keys() == mine.keys() and all(found[key].shape == mine[key].shape for key in mine):
        return {key: found[key] * factor if key.endswith("lora_b") else found[key] for key in mine}
    layers = {key: array for key, array in found.items() if key.endswith("lora_a")}
    ranks = ", ".join(map(str, sorted({array.shape[-1] for array in layers.values()})))
    targets = ", ".join(f'"{target}"' for target in sorted({key.split(".")[-2] for key in layers}))
    blocks = {part for key in layers for part in key.split(".") if part.isdigit()}
    raise ModelError(
        f"{name} has another adapter than this run: set model.lora_rank = {ranks}, model.lora_targets = [{targets}] "
        f"and model.lora_layers = {len(blocks)}, as it was trained with"
    )
