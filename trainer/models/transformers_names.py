"""Names of layers and weights in transformers, for the families whose names are known to agree with mlx-lm's.

`benchmarks/engines.py` checks every family below with transformers itself.
"""

from __future__ import annotations

from typing import Literal, NamedTuple

from trainer.errors import ModelError


class Names(NamedTuple):
    """How far the names of a family agree. renamed: beginnings in mlx-lm and in transformers."""

    renamed: tuple[tuple[str, str], ...] = ()
    weights: bool = True  # all of them, not only those of layers that an adapter can be on
    classifier: bool = True  # transformers has a sequence classifier of the family


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
CLASSIFIER = "score"  # the head of ...ForSequenceClassification
Part = Literal["layers", "weights", "classifier"]
_PROBLEMS: dict[Part, str] = {
    "layers": "layers of the family {} are not known to have the same names in transformers",
    "weights": "weights of the family {} are not known to have the same names in transformers",
    "classifier": "family {} has no sequence classifier in transformers that takes its weights",
}


def check_names(family: str, part: Part = "layers") -> Names:
    """Return the names of `family`. Raises ModelError if `part` of it does not go over."""
    found = FAMILIES.get(family)
    if found is None or not _goes_over(found, part):
        known = ", ".join(sorted(name for name, one in FAMILIES.items() if _goes_over(one, part)))
        raise ModelError(f"the {_PROBLEMS[part].format(family)}: use a model of the families {known}")
    return found


def _goes_over(names: Names, part: Part) -> bool:
    return part == "layers" or (names.weights and (part == "weights" or names.classifier))


def to_transformers(name: str, names: Names) -> str:
    """Return the name in transformers of a layer or weight that mlx-lm calls `name`."""
    return _renamed(name, names.renamed)


def to_mlx(name: str, names: Names) -> str:
    """Return the name in mlx-lm of a layer or weight that transformers calls `name`."""
    return _renamed(name, tuple((theirs, ours) for ours, theirs in names.renamed))


def _renamed(name: str, beginnings: tuple[tuple[str, str], ...]) -> str:
    for old, new in beginnings:
        if name.startswith(old):
            return new + name.removeprefix(old)
    return name
