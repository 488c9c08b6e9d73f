"""Initialisation of policy and critic: from an adapter that was trained before, and from a reward model."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import mlx.core as mx

from trainer.config.reward_model import RewardModelConfig
from trainer.config.schema import ModelConfig
from trainer.errors import ModelError, StorageError, TrainerError, one_line
from trainer.models.actor_critic import ActorCriticLLM
from trainer.models.adapters import ADAPTER, ADAPTER_FILE, Parameters, check_adapter, read_adapter_config
from trainer.models.backbone import LoadedModel
from trainer.models.peft_adapters import check_peft, is_peft, read_peft
from trainer.models.trunk import family_of
from trainer.plurals import counted
from trainer.reward_model.loaded import is_same_backbone, reward_model_folder
from trainer.reward_model.network import Scale
from trainer.reward_model.snapshot import card_config, load_parameters, read_card

_WHAT = "model.policy_init"


def check_policy_init(config: ModelConfig) -> None:
    """Raise ModelError if `config.policy_init` names no adapter, before the backbone is loaded for minutes."""
    if config.policy_init:
        folder = Path(config.policy_init).expanduser()
        check_peft(folder, _WHAT) if is_peft(folder) else check_adapter(folder, _WHAT)


def init_policy(actor: ActorCriticLLM, config: ModelConfig) -> None:
    """Initialise the policy of `actor` from the adapter in `config.policy_init`; the reference has none.

    Does nothing if it is empty. Raises ModelError if the adapter has other layers, another rank or another kind than
    the policy's.
    """
    if not config.policy_init:
        return
    folder = Path(config.policy_init).expanduser()
    if is_peft(folder):
        adapter = read_peft(folder, family_of(actor.backbone), _WHAT)
        if adapter.head is not None:
            raise ModelError(f"{_WHAT} = '{folder}' is of a sequence classifier, which writes no text: use another")
        found, scale = adapter.parameters, adapter.scale
    else:
        found, scale = _read_mlx(folder)
    mine = actor.policy_parameters()
    if found.keys() != mine.keys() or any(found[name].shape != mine[name].shape for name in mine):
        ranks = {array.shape[-1] for name, array in found.items() if name.endswith("lora_a")}
        targets = sorted({name.split(".")[-2] for name in found})
        blocks = {part for name in found for part in name.split(".") if part.isdigit()}
        raise ModelError(
            f"{_WHAT} = '{folder}' is another adapter than the policy's: set model.lora_rank = "
            f"{', '.join(map(str, sorted(ranks)))}, model.lora_targets = {targets} and model.lora_layers for blocks "
            f"{', '.join(sorted(blocks, key=int))}, as it was trained with, or name it in model.adapter"
        )
    # The layers scale by the run's factor, so B absorbs the quotient.
    factor = scale / config.lora_scale
    actor.update_policy({name: array * factor if name.endswith("lora_b") else array for name, array in found.items()})


def _read_mlx(folder: Path) -> tuple[Parameters, float]:
    """Return arrays and scale of an adapter in mlx-lm's format. Raises ModelError."""
    try:
        settings = read_adapter_config(folder)
        kind, scale = settings.get("fine_tune_type", "lora"), float(settings["lora_parameters"]["scale"])
        arrays: Parameters = dict(mx.load(str(folder / ADAPTER_FILE)))  # type: ignore[arg-type]
    except (OSError, ValueError, KeyError, TypeError, RuntimeError, StorageError) as error:
        raise ModelError(f"{_WHAT} = '{folder}' cannot be read ({one_line(error, 200)}): copy it again") from error
    if kind != "lora":
        raise ModelError(f"{_WHAT} = '{folder}' is of the kind {kind}: name it in model.adapter, which takes any kind")
    return {name: array.astype(mx.float32) for name, array in arrays.items()}, scale


_HEAD = ("head.weight", "head.bias")


def check_value_init(config: ModelConfig) -> None:
    """Raise ModelError if no critic can begin with `config.value_init`, before the backbone is loaded for minutes."""
    if config.value_init:
        name, given = f"model.value_init = '{config.value_init}'", Path(config.value_init).expanduser()
        if is_peft(given):
            check_peft(given, "model.value_init")
            return
        try:
            folder = reward_model_folder(given)
            trained = card_config(folder, read_card(folder))
        except TrainerError as error:
            raise ModelError(f"{name}: {error}") from error
        _check_states(name, trained)


def init_value_model(actor: ActorCriticLLM, loaded: LoadedModel, config: ModelConfig) -> None:
    """Initialise the critic of `actor`, on the backbone of `loaded`, from the reward model in `config.value_init`.

    V of a state is then the reward model's score of the tokens so far, with mean 0 and deviation 1 on its reference
    samples, as from the reward source `reward-model`. Does nothing if `config.value_init` is empty. Call it before
    creating optimisers for the critic. Raises ModelError if there is no such reward model, or if its adapter or
    backbone differs from the critic's.
    """
    if not config.value_init:
        return
    name, given = f"model.value_init = '{config.value_init}'", Path(config.value_init).expanduser()
    if actor.shares_trunk:
        raise ModelError(f"{name}: the critic has no adapter to initialise: set model.value_model = 'adapter'")
    if is_peft(given):
        _init_from_peft(actor, loaded, config, name, given)
        return
    try:
        folder = reward_model_folder(given)
        card = read_card(folder, whole=True)
        trained = card_config(folder, card)
        found = load_parameters(folder)
        same_backbone = is_same_backbone(loaded, trained.model)
    except TrainerError as error:
        raise ModelError(f"{name}: {error}") from error
    _check_states(name, trained)
    model = trained.model
    if not same_backbone:
        raise ModelError(
            f"{name} uses another backbone: set model.path = '{model.path}', model.adapter = '{model.adapter}', "
            f"model.dtype = '{model.dtype}' and model.quantize = '{model.quantize}', as it was trained with"
        )
    needed = (model.lora_rank, model.lora_targets, f"model.lora_layers = {model.lora_layers}")
    _check_adapter(name, actor.value_parameters(), found, *needed)
    scale = Scale(**card["scale"])
    # The layers scale by the policy's factor, so B absorbs the quotient.
    factor = model.lora_scale / config.lora_scale
    begin = {key: found[key] * factor if key.endswith("lora_b") else found[key] for key in actor.value_parameters()}
    # fold (w h + b - mean) / std into the head
    begin["head.weight"] = found["head.weight"] / scale.std
    begin["head.bias"] = (found["head.bias"] - scale.mean) / scale.std
    actor.update_value(begin)


def _check_states(name: str, trained: RewardModelConfig) -> None:
    """Raise ModelError for a reward model that reads more of a completion than its last state."""
    if trained.train.states != "last":
        raise ModelError(
            f"{name} was trained with train.states = {trained.train.states}, and a critic reads one state: train one "
            "with train.states = last"
        )


def _init_from_peft(actor: ActorCriticLLM, loaded: LoadedModel, config: ModelConfig, name: str, folder: Path) -> None:
    """Initialise the critic from the PEFT adapter of a sequence classifier. Raises ModelError."""
    adapter = read_peft(folder, family_of(loaded.backbone), "model.value_init")
    if adapter.head is None:
        raise ModelError(f"{name} has no score.weight, so it is not of a sequence classifier: leave it empty")
    base = Path(adapter.base).expanduser().resolve()  # as a PEFT adapter names it
    if config.adapter or (adapter.base != config.path and base != loaded.folder.resolve()):
        raise ModelError(
            f"{name} uses another backbone: set model.path = '{adapter.base}' and model.adapter = '', as it was "
            "trained with"
        )
    found = {f"{ADAPTER}{key}": array for key, array in adapter.parameters.items()}
    found |= {"head.weight": adapter.head, "head.bias": mx.zeros(())}
    targets = sorted({key.split(".")[-2] for key in adapter.parameters})
    blocks = {part for key in adapter.parameters for part in key.split(".") if part.isdigit()}
    needed = (adapter.rank, targets, f"model.lora_layers for {counted(len(blocks), 'block')}")
    _check_adapter(name, actor.value_parameters(), found, *needed)
    factor = adapter.scale / config.lora_scale
    actor.update_value({key: array * factor if key.endswith("lora_b") else array for key, array in found.items()})


def _check_adapter(
    name: str, mine: Parameters, found: Parameters, rank: int, layers: Sequence[str], blocks: str
) -> None:
    """Raise ModelError if the arrays of an adapter differ from the critic's. The others: what its settings were."""
    adapter = found.keys() - {*_HEAD, "tie.log_nu"}
    if adapter | {*_HEAD} == mine.keys() and all(found[key].shape == mine[key].shape for key in mine):
        return
    targets = ", ".join(f'"{target}"' for target in layers)
    raise ModelError(
        f"{name} has a different adapter from the critic's: set model.lora_rank = {rank}, "
        f"model.lora_targets = [{targets}] and {blocks}, as it was trained with"
    )
