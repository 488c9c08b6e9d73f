"""LoRA adapters in the format of PEFT, which transformers, TRL, OpenRLHF and verl read and write, and their names.

PEFT's A is [rank, inputs] and its B [outputs, rank], the transposes of ours; its scale is alpha / rank.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal, NamedTuple

import mlx.core as mx
import mlx.nn as nn
from mlx_lm.tuner.lora import LoRALinear

from trainer.errors import ModelError, one_line
from trainer.files import read_json
from trainer.models.adapters import Parameters, linear_places
from trainer.models.forward import family_of

CLASSIFIER = "score"  # the head of ...ForSequenceClassification
Part = Literal["layers", "weights", "classifier"]

WEIGHTS = "adapter_model.safetensors"
SETTINGS = "adapter_config.json"
_PREFIX = "base_model.model."
_A, _B = ".lora_A.weight", ".lora_B.weight"
_HEAD = f"{CLASSIFIER}.weight"
_REFUSED = {  # settings of peft.LoraConfig under which an adapter is more than A and B of one rank and one scale
    "use_dora": "DoRA",
    "rank_pattern": "ranks that differ between layers",
    "alpha_pattern": "scales that differ between layers",
    "lora_bias": "a bias in B",
    "target_parameters": "adapters on parameters, such as fused experts",
    "trainable_token_indices": "trained token embeddings",
    "layer_replication": "replicated layers",
    "alora_invocation_tokens": "activated LoRA",
    "use_qalora": "QALoRA",
    "use_bdlora": "BD-LoRA",
    "arrow_config": "Arrow",
    "kasa_config": "KaSA",
    "monteclora_config": "MonteCLoRA",
}
_OTHER_BASE = ("pissa", "olora", "corda", "loftq", "lora_ga")  # initialisations that change the base model's weights


class Names(NamedTuple):
    """How far the names of a family in mlx-lm and in transformers agree; `benchmarks/engines.py` at b9e8a6a checked it.

    renamed: beginnings in mlx-lm and in transformers.
    """

    renamed: tuple[tuple[str, str], ...] = ()
    weights: bool = True  # all of them, not only those of layers that an adapter can be on
    classifier: bool = True  # transformers has a sequence classifier of the family

    def to_transformers(self, name: str) -> str:
        """Return the name in transformers of a layer or weight that mlx-lm calls `name`."""
        return next((new + name[len(old) :] for old, new in self.renamed if name.startswith(old)), name)

    def to_mlx(self, name: str) -> str:
        """Return the name in mlx-lm of a layer or weight that transformers calls `name`."""
        return next((new + name[len(old) :] for new, old in self.renamed if name.startswith(old)), name)


_SAME, _NO_CLASSIFIER = Names(), Names(classifier=False)
FAMILIES: dict[str, Names] = {
    **dict.fromkeys(("gemma", "gemma2", "gemma3_text", "glm4", "helium", "hunyuan_v1_dense", "llama"), _SAME),
    **dict.fromkeys(("ministral3", "nemotron", "olmo2", "phi", "phi3", "qwen2", "qwen3", "seed_oss"), _SAME),
    **dict.fromkeys(("smollm3", "stablelm", "starcoder2"), _SAME),
    **dict.fromkeys(("cohere", "cohere2", "ernie4_5", "granite"), _NO_CLASSIFIER),
    # Their weights have other names or shapes as well, so only adapters go over.
    "gpt2": Names((("model.", "transformer."),), weights=False),
    "gptj": Names((("model.", "transformer."),), weights=False),
    "gpt_neox": Names((("model.h.", "gpt_neox.layers."), ("model.", "gpt_neox.")), weights=False),
}
_PROBLEMS: dict[Part, str] = {
    "layers": "layers of the family {} are not known to have the same names in transformers",
    "weights": "weights of the family {} are not known to have the same names in transformers",
    "classifier": "family {} has no sequence classifier in transformers that takes its weights",
}


def check_names(family: str, part: Part = "layers") -> Names:
    """Return the names of `family`. Raises ModelError if `part` of it does not go over."""
    known = {
        name: one
        for name, one in sorted(FAMILIES.items())
        if part == "layers" or (one.weights and (part == "weights" or one.classifier))
    }
    if family not in known:
        raise ModelError(f"the {_PROBLEMS[part].format(family)}: use a model of the families {', '.join(known)}")
    return known[family]


class PeftAdapter(NamedTuple):
    """An adapter in PEFT's format, with mlx-lm's names and shapes."""

    parameters: Parameters  # as `adapters.lora_parameters` returns them, float32
    rank: int
    scale: float
    base: str  # the model that it was trained on: a folder or a hub name
    head: mx.array | None = None  # [D] weight of a sequence classifier's only label


def is_peft(folder: Path) -> bool:
    """Return whether `folder` holds an adapter in PEFT's format, readable or not."""
    if any((folder / name).is_file() for name in (WEIGHTS, "adapter_model.bin")):
        return True
    try:
        return "peft_type" in read_json(folder / SETTINGS)
    except (OSError, ValueError, TypeError):
        return False


def check_peft(folder: Path, what: str = "model.adapter") -> dict[str, Any]:
    """Return adapter_config.json of the PEFT adapter in `folder`.

    what: the setting that names it. Raises ModelError for a folder without its files and for what cannot be
    represented here.
    """
    named = f"{what} = '{folder}'"
    if not (folder / WEIGHTS).is_file():
        raise ModelError(f"{named} has no {WEIGHTS}: save the adapter again with safe_serialization=True")
    try:
        settings = read_json(folder / SETTINGS)
        if not isinstance(settings, dict):
            raise ValueError("it is not a JSON object")
        problem = _problem(settings)
    except (OSError, ValueError, TypeError) as error:
        raise ModelError(f"{named}: its {SETTINGS} cannot be read ({one_line(error, 200)}): save it again") from error
    if problem:
        raise ModelError(
            f"{named} has {problem}, which is not supported: merge the adapter into its model with PEFT's "
            "merge_and_unload(), save that, and name it in model.path"
        )
    return settings


def _problem(settings: dict[str, Any]) -> str:
    """Return what in adapter_config.json cannot be represented here, or an empty string."""
    if settings.get("peft_type") != "LORA":
        return f"peft_type {settings.get('peft_type')}"
    for key, name in _REFUSED.items():
        if settings.get(key):
            return f"{name} ({key})"
    if settings.get("bias", "none") != "none":
        return f"trained biases (bias = {settings['bias']})"
    start = settings.get("init_lora_weights")
    if isinstance(start, str) and start.lower().startswith(_OTHER_BASE):
        return f"a base model changed by its initialisation (init_lora_weights = {start})"
    if other := sorted(set(settings.get("modules_to_save") or ()) - {CLASSIFIER, "classifier"}):
        return f"whole modules trained beside it (modules_to_save: {', '.join(other)})"
    rank, alpha = settings.get("r"), settings.get("lora_alpha")
    numbers = all(
        isinstance(one, int | float) and not isinstance(one, bool) and 0 < one < math.inf for one in (rank, alpha)
    )
    return "" if numbers else f"r = {rank} and lora_alpha = {alpha}"


def read_peft(folder: Path, family: str, what: str = "model.adapter") -> PeftAdapter:
    """Read the adapter in `folder`, which is of a model of `family`. Raises ModelError."""
    settings, names, named = check_peft(folder, what), check_names(family), f"{what} = '{folder}'"
    try:
        arrays = dict(mx.load(str(folder / WEIGHTS)))  # type: ignore[arg-type]
    except (OSError, RuntimeError, ValueError) as error:
        raise ModelError(f"{named} cannot be read ({one_line(error, 200)}): copy it again") from error
    arrays = {name.removeprefix(_PREFIX): array.astype(mx.float32) for name, array in arrays.items()}
    head = arrays.pop(_HEAD, None)
    if head is not None and head.shape[0] != 1:
        raise ModelError(f"{named} has {head.shape[0]} labels: a reward model has 1")
    rank = int(settings["r"])
    parameters: Parameters = {}
    for name, array in arrays.items():
        layer, ending = next(((name.removesuffix(end), end) for end in (_A, _B) if name.endswith(end)), ("", ""))
        if not ending or array.ndim != 2 or array.shape[ending == _B] != rank:
            raise ModelError(
                f"{named} has '{name}' {list(array.shape)}, which is not A or B of a linear layer with rank {rank}: "
                "merge the adapter into its model with PEFT's merge_and_unload(), and name that in model.path"
            )
        parameters[f"{names.to_mlx(layer)}.{'lora_a' if ending == _A else 'lora_b'}"] = array.T
    divisor = math.sqrt(rank) if settings.get("use_rslora") else rank
    return PeftAdapter(
        dict(sorted(parameters.items())),
        rank,
        float(settings["lora_alpha"]) / divisor,
        str(settings.get("base_model_name_or_path") or ""),
        None if head is None else head[0],
    )


def fuse_peft(backbone: nn.Module, folder: Path) -> mx.array | None:
    """Fold the adapter in `folder` into the weights of `backbone`; return a classifier's head [D], if it has one.

    Raises ModelError.
    """
    adapter = read_peft(folder, family_of(backbone))
    places = linear_places(backbone)
    for name in sorted({name.rpartition(".")[0] for name in adapter.parameters}):
        place = places.get(name)
        lora_a, lora_b = (adapter.parameters.get(f"{name}.{leaf}") for leaf in ("lora_a", "lora_b"))
        fits = False
        if place is not None and lora_a is not None and lora_b is not None and place.linear.weight.ndim == 2:
            own = LoRALinear.from_base(place.linear, r=1)
            fits = (lora_a.shape[0], lora_b.shape[1]) == (own.lora_a.shape[0], own.lora_b.shape[1])
        if place is None or not fits:
            raise ModelError(
                f"model.adapter = '{folder}' does not fit the model at {name}: use the model that it was trained on"
                + (f", {adapter.base}" if adapter.base else "")
            )
        layer = LoRALinear.from_base(place.linear, r=adapter.rank, dropout=0.0, scale=adapter.scale)
        layer.lora_a, layer.lora_b = lora_a, lora_b
        place.parent[place.key] = layer.fuse(
            dequantize=True
        )  # rounded to a few bits again, a small change would be lost
    return adapter.head


def write_peft(
    folder: Path,
    parameters: Mapping[str, mx.array],
    *,
    family: str,
    rank: int,
    scale: float,
    base: str,
    revision: str = "",
    head: mx.array | None = None,
) -> None:
    """Write an adapter, named as in `adapters.lora_parameters`, to `folder` in PEFT's format.

    base: folder or hub name of the model; revision: of the hub; head: [D] of a sequence classifier with one label.
    Raises ModelError for a family whose layers have other names in transformers, and for experts.
    """
    names = check_names(family)
    arrays: Parameters = {}
    for name, array in parameters.items():
        if array.ndim != 2:
            raise ModelError(
                f"the adapter of {name.rpartition('.')[0]} is on experts, which transformers holds in one array: "
                "train without 'experts' in model.lora_targets"
            )
        layer, _, leaf = name.rpartition(".")
        arrays[f"{_PREFIX}{names.to_transformers(layer)}{_A if leaf == 'lora_a' else _B}"] = array.T
    layers = sorted({names.to_transformers(name.rpartition(".")[0]) for name in parameters})
    alpha = float(rank * scale)
    settings = {
        "peft_type": "LORA",
        "task_type": "CAUSAL_LM" if head is None else "SEQ_CLS",
        "base_model_name_or_path": base,
        "revision": revision or None,
        "inference_mode": True,
        "r": rank,
        "lora_alpha": int(alpha) if alpha.is_integer() else alpha,
        "lora_dropout": 0.0,
        "target_modules": layers,
        "bias": "none",
        "fan_in_fan_out": family == "gpt2",  # its layers are Conv1D
        "modules_to_save": None if head is None else [CLASSIFIER],
    }
    if head is not None:
        arrays[f"{_PREFIX}{_HEAD}"] = head[None].astype(mx.float32)
    folder.mkdir(parents=True, exist_ok=True)
    mx.save_safetensors(str(folder / WEIGHTS), arrays, metadata={"format": "pt"})
    (folder / SETTINGS).write_text(json.dumps(settings, indent=2) + "\n", encoding="utf-8")
