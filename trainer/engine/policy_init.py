"""Initialisation of the policy from an adapter that was trained before, here or by another trainer."""

from __future__ import annotations

from pathlib import Path

import mlx.core as mx

from trainer.config.schema import ModelConfig
from trainer.errors import ModelError, StorageError
from trainer.models.actor_critic import ActorCriticLLM
from trainer.models.adapters import ADAPTER_FILE, Parameters, check_adapter, read_adapter_config, reason_of
from trainer.models.peft_adapters import check_peft, is_peft, read_peft
from trainer.models.trunk import family_of

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
        raise ModelError(f"{_WHAT} = '{folder}' cannot be read ({reason_of(error)}): copy it again") from error
    if kind != "lora":
        raise ModelError(f"{_WHAT} = '{folder}' is of the kind {kind}: name it in model.adapter, which takes any kind")
    return {name: array.astype(mx.float32) for name, array in arrays.items()}, scale
