"""Train a tiny random model of every family that mlx-lm has, and print what works in which precision.

Each cell of the table is a new model on the default device. It trains for two iterations of PPO, with responses of
different lengths in fewer slots than there are prompts, so that rows join and leave the batch. The log-probs of the
sampler are compared with the teacher-forced ones of the same tokens.

Run: .venv/bin/python benchmarks/families.py [FAMILY ...] [--precisions float32 bfloat16 4-bit] [--json FILE]
"""

from __future__ import annotations

import argparse
import ast
import dataclasses
import importlib
import json
import math
import re
import time
import traceback
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import trainer  # noqa: F401  loads the BLAS, before anything imports mlx

# isort: split
import mlx.core as mx
import mlx.nn as nn
import mlx_lm.models
import numpy as np
from family_values import FIELDS, OWN, TEXT, VOCABULARY
from mlx.utils import tree_flatten, tree_unflatten
from mlx_lm.utils import MODEL_REMAPPING, _get_classes
from workers import Worker, WorkerError

from trainer.arrays import filled
from trainer.config import Config
from trainer.data import Prompt
from trainer.errors import ModelError, shortened
from trainer.models.actor_critic import ActorCriticLLM
from trainer.models.adapters import LoRA
from trainer.models.backbone import cast_backbone, quantize_backbone
from trainer.models.kernels import use_faster_functions
from trainer.ppo.loop import PPO, IterationResult
from trainer.rewards import RewardInput, Rewards, SourceScores, WeightedSource
from trainer.rollout.generation import Decoding

END = 256
_LARGEST = 8_000_000  # parameters; a field without a value here keeps its default, which may be a real model's
PRECISIONS = {"float32": ("float32", 0), "bfloat16": ("bfloat16", 0), "4-bit": ("auto", 4)}
PROMPT_LENGTHS = (1, 2, 5, 9, 14, 20, 33)  # some are longer than the windows of the tiny models, 16 tokens
NEW_TOKENS = 12
ITERATIONS = 2
GAPS = {"float32": 1e-3, "other": 0.05}  # nats; largest mean difference of the log-probs that passes
TIMEOUT = 600  # seconds per cell
_ENDS = range(7, VOCABULARY, 33)  # ids that end a response: about one token in thirty does


def families() -> list[str]:
    """Return the families: the modules of mlx-lm that have a model and its arguments, without importing any."""
    folder = Path(mlx_lm.models.__path__[0])
    return sorted((path.stem for path in folder.glob("*.py") if {"Model", "ModelArgs"} <= _names(path)), key=str.lower)


def tiny_config(family: str) -> dict[str, Any]:
    """Return the config.json of a tiny model of `family`, or of another model_type that mlx-lm loads as a family.

    Raises KeyError for a field without a value.
    """
    config: dict[str, Any] = {"model_type": family, "eos_token_id": END}
    family = MODEL_REMAPPING.get(family, family)
    if family not in TEXT:
        return config | _fields(family, "ModelArgs", OWN.get(family, {}))
    module, name = TEXT[family]
    text = {"model_type": module} | _fields(module, name, _text_values(family, module))
    outer = OWN[family] if family == "prism_hadamard_qwen35" else {}
    return config | outer | {"text_config": text, "vocab_size": VOCABULARY}


def tiny_backbone(family: str, dtype: mx.Dtype, *, bits: int = 0, seed: int = 0) -> nn.Module:
    """Build a tiny random model of `family`, its weights of type `dtype`, then quantised to `bits` bits unless 0.

    Raises ValueError if it has more than 8 million parameters.
    """
    config = tiny_config(family)
    model_class, arguments = _get_classes(config)
    mx.random.seed(seed)  # vectors keep what their layers draw
    backbone: nn.Module = model_class(arguments.from_dict(config))
    parameters = tree_flatten(backbone.parameters())
    if (size := sum(array.size for _, array in parameters)) > _LARGEST:
        raise ValueError(f"{family} has {size} parameters: give its fields smaller values")
    key = mx.random.key(seed)
    weights = []
    for name, array in parameters:
        key, draw = mx.random.split(key)
        weights.append((name, _random(name, array, draw, dtype)))
    backbone.update(tree_unflatten(weights))
    if bits:
        quantize_backbone(backbone, bits)
    mx.eval(backbone.parameters())
    return backbone


def _text_values(family: str, module: str) -> dict[str, Any]:
    """Return the values of a wrapping family's text model that take precedence over FIELDS."""
    if family == "prism_hadamard_qwen35":
        return {"num_experts": 0, "hidden_size": 128}
    if family == "qwen3_5_moe":
        return {"num_experts": 4}
    return OWN.get(family, OWN.get(module, {}))


def _names(path: Path) -> set[str]:
    """Return the names that the module at `path` defines or imports."""
    body = ast.parse(path.read_text(encoding="utf-8")).body
    defined = {node.name for node in body if isinstance(node, ast.ClassDef)}
    return defined | {alias.name for node in body if isinstance(node, ast.ImportFrom) for alias in node.names}


def _module(name: str) -> Any:
    return importlib.import_module(f"mlx_lm.models.{name}")


def _fields(module: str, name: str, own: dict[str, Any]) -> dict[str, Any]:
    """Return values for the fields of class `name` of `module`: those in `own`, then those in FIELDS."""
    values = dict(own)
    for field in dataclasses.fields(getattr(_module(module), name)):
        if field.name in values or field.name == "model_type":
            continue
        optional = field.default is not dataclasses.MISSING or field.default_factory is not dataclasses.MISSING
        if field.name in FIELDS:
            values[field.name] = FIELDS[field.name]
        elif not optional:
            raise KeyError(f"{module}.{name} needs a value for {field.name}")
    return values


def _random(name: str, array: mx.array, key: mx.array, dtype: mx.Dtype) -> mx.array:
    """Return random weights in the shape of `array`: matrices scaled by their inputs, others with some noise added."""
    if not mx.issubdtype(array.dtype, mx.floating):  # packed weights
        return mx.random.randint(0, 256, array.shape, key=key).astype(array.dtype) if array.ndim > 1 else array
    noise = mx.random.normal(array.shape, key=key)
    if name.endswith(("quant_key_scale", "quant_value_scale")):
        return mx.full(array.shape, 0.03, dtype)
    if array.ndim < 2 or re.search(r"(A_log|\.D|dt_bias)$", name):
        return (array + 0.05 * noise).astype(dtype)
    inputs = array[0].size if "conv" in name else array.shape[-1]
    return (noise * (1.5 * inputs**-0.5)).astype(dtype)


def check_family(
    family: str, dtype: str, bits: int, *, targets: Sequence[str] = (), iterations: int = ITERATIONS
) -> dict[str, Any]:
    """Train a tiny model of `family` on the default device and return a report. Catches every exception.

    dtype: as `model.dtype`; bits: of quantisation, 0 for none; targets: as `model.lora_targets`, by default auto. Keys
    of the report: family, dtype, bits, outcome (trains, off, refused or failed), error, place (file and line of the
    error), targets (layers with an adapter), blocks (number with an adapter, and of all), joins (whether rows are
    decoded together), gap_mean and gap_max (nats), steps, seconds.
    """
    started = time.perf_counter()
    report: dict[str, Any] = {"family": family, "dtype": dtype, "bits": bits, "outcome": "failed"}
    try:
        report |= _trained(family, dtype, bits, targets, iterations, report)
    except ModelError as error:
        report |= {"outcome": "refused", "error": _first_line(error)}
    except SystemExit:  # mlx-lm leaves the program where a package is missing; `load_backbone` refuses the model
        report |= {"outcome": "refused", "error": "it needs a package that is not installed"}
    except Exception as error:  # noqa: BLE001  the table shows the error of any family
        report |= {"error": f"{type(error).__name__}: {_first_line(error)}", "place": _place(error)}
    return report | {"seconds": round(time.perf_counter() - started, 2)}


def check_apart(worker: Worker, family: str, dtype: str, bits: int) -> dict[str, Any]:
    """Return the report of `check_family` in the worker's process, or one that says how that process ended."""
    try:
        reports = list(worker.results(_reports, family, dtype, bits, seconds=TIMEOUT))
    except WorkerError as error:
        return {"family": family, "dtype": dtype, "bits": bits, "outcome": "failed", "error": str(error)}
    report: dict[str, Any] = reports[0]
    return report


def main() -> None:
    """Check the families and print the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("families", nargs="*", help="families to check; default: all")
    parser.add_argument("--precisions", nargs="+", choices=PRECISIONS, default=list(PRECISIONS))
    parser.add_argument("--json", type=Path, help="file to write the raw numbers to")
    options = parser.parse_args()
    if unknown := set(options.families) - set(families()):
        raise SystemExit(f"{', '.join(sorted(unknown))}: no such family in mlx-lm")

    print(f"| family | {' | '.join(options.precisions)} | remark |")
    print(f"|---|{'---|' * len(options.precisions)}---|")
    reports, complete, worker = [], 0, Worker()
    for family in options.families or families():
        row = [check_apart(worker, family, *PRECISIONS[name]) for name in options.precisions]
        reports += row
        complete += all(report["outcome"] == "trains" for report in row)
        print(f"| {family} | {' | '.join(map(cell, row))} | {remark(row)} |", flush=True)
        if options.json:
            options.json.write_text(json.dumps(reports, indent=1) + "\n", encoding="utf-8")
    print(f"\n{complete} of {len(reports) // len(options.precisions)} families train in every precision")


def cell(report: dict[str, Any]) -> str:
    """Return the text of a cell of the table."""
    match report["outcome"]:
        case "trains":
            return "trains"
        case "off":
            return f"trains, sampler off by {report['gap_mean']:.2g} nats"
        case "refused":
            return "refused"
        case _:
            return shortened(report["error"].replace("|", "/"), 110)


def remark(row: Sequence[dict[str, Any]]) -> str:
    """Return remarks on a family: row by row, unusual layers of the adapter, reasons of refusals, places of errors."""
    notes = []
    if any(report.get("joins") is False for report in row):
        notes.append("decoded row by row")
    targets = next((report["targets"] for report in row if "targets" in report), [])
    if targets and targets != ["q_proj", "v_proj"]:
        notes.append(f"adapter on {', '.join(targets)}")
        reached, blocks = next(report["blocks"] for report in row if "blocks" in report)
        if reached < blocks:
            notes[-1] += f" in {reached} of {blocks} blocks"
    notes += dict.fromkeys(_reason(report["error"]) for report in row if report["outcome"] == "refused")
    notes += dict.fromkeys(report["place"] for report in row if "place" in report)
    return "; ".join(notes)


def _reason(refusal: str) -> str:
    """Return what a refusal says of the family, without what all refusals say."""
    found = re.search(r"cannot be trained here \((.*)\): choose another", refusal)
    return (found[1] if found else refusal).replace("|", "/")


def _reports(family: str, dtype: str, bits: int) -> Iterator[dict[str, Any]]:
    yield check_family(family, dtype, bits)


def _trained(
    family: str, dtype: str, bits: int, targets: Sequence[str], iterations: int, report: dict[str, Any]
) -> dict[str, Any]:
    """Train the model and return the results. Facts about it go into `report` at once, in case training fails."""
    backbone = tiny_backbone(family, mx.float32)
    exact = cast_backbone(backbone, dtype)
    if bits:
        quantize_backbone(backbone, bits)
    mx.eval(backbone.parameters())
    if mx.default_device() == mx.Device(mx.cpu):
        use_faster_functions(backbone)  # as `load_backbone` does
    config = Config.model_validate(
        {
            "model": {"lora_targets": targets or ["auto"], "lora_rank": 4},
            "rollout": {"batch_size": 8, "max_new_tokens": NEW_TOKENS, "slots": 5},
            "ppo": {"iterations": iterations, "epochs": 2, "minibatches": 2, "prefix_scores": 0},
            "optim": {"policy_lr": 1e-3, "value_lr": 1e-3, "micro_batch_tokens": 128},
        }
    )
    report["joins"] = Decoding(backbone, config.rollout).at_most > 1
    actor = ActorCriticLLM(backbone, config.model, key=mx.random.key(1))
    before = actor.policy_parameters()
    report["targets"] = sorted({name.split(".")[-2] for name in before})
    adapted = [any(isinstance(module, LoRA) for module in block.modules()) for block in backbone.layers]
    report["blocks"] = [sum(adapted), len(adapted)]
    rewards = Rewards([WeightedSource(_EvenTokens())])
    ppo = PPO(config, actor, _tokenizer(), _prompts(), rewards)
    results = [ppo.iteration(number) for number in range(1, iterations + 1)]

    gaps = np.concatenate([_gaps(result) for result in results])
    found: dict[str, Any] = {"gap_mean": float(gaps.mean()), "gap_max": float(gaps.max())}
    found["steps"] = sum(result.metrics.steps for result in results)
    report |= found
    if problem := update_problem(results, before, actor.policy_parameters()):
        return {"error": problem}
    bound = GAPS["float32" if exact == mx.float32 and not bits else "other"]
    return {"outcome": "trains" if found["gap_mean"] < bound else "off"}


def update_problem(results: Sequence[IterationResult], before: dict[str, mx.array], after: dict[str, mx.array]) -> str:
    """Return what is wrong with the updates, or an empty string."""
    names = ("kl", "entropy", "policy_loss", "value_loss", "ratio_mean", "log_ratio_max", "grad_norm", "value_mean")
    for result in results:
        if bad := [name for name in names if not math.isfinite(getattr(result.metrics, name))]:
            return f"not finite: {', '.join(bad)}"
        if result.metrics.skipped_steps:
            return f"{result.metrics.skipped_steps} steps skipped in iteration {result.metrics.iteration}"
    kept = [name for name, array in before.items() if mx.array_equal(array, after[name]).item()]
    if still := [name.removesuffix(".lora_b") for name in kept if name.endswith(".lora_b")]:  # A begins to change later
        return f"the updates did not change the adapter of {', '.join(still)}"
    return ""


def _gaps(result: IterationResult) -> np.ndarray:
    """Return |sampler - teacher-forced log-prob| of each real token, in nats."""
    batch = result.batch
    gaps = np.abs(np.array(batch.sampler_logprobs) - np.array(filled(batch.logprobs)))
    return gaps[np.array(batch.mask) > 0]


def _prompts() -> list[Prompt]:
    """Return prompts of different lengths, the longest of them twice."""
    draw = np.random.default_rng(0)
    ids = [draw.integers(0, 256, length).tolist() for length in PROMPT_LENGTHS]
    ids.append(list(ids[-1]))
    return [Prompt(index, "", "", tokens, {}) for index, tokens in enumerate(ids)]


def _tokenizer() -> Any:
    return SimpleNamespace(eos_token_ids=set(_ENDS), decode=lambda ids, **_: " ".join(map(str, ids)))


class _EvenTokens:
    """Reward: the share of even ids in a response."""

    name = "even tokens"

    def __call__(self, batch: Sequence[RewardInput]) -> SourceScores:
        ids = [sequence.completion_ids for sequence in batch]
        return SourceScores([sum(token % 2 == 0 for token in tokens) / max(len(tokens), 1) for tokens in ids])


def _first_line(error: BaseException) -> str:
    return next(iter(str(error).strip().splitlines()), "")


def _place(error: BaseException) -> str:
    """Return file and line of the innermost frame that has a source file."""
    frames = [frame for frame in traceback.extract_tb(error.__traceback__) if "<" not in frame.filename]
    frame = frames[-1]
    return f"{Path(frame.filename).parent.name}/{Path(frame.filename).name}:{frame.lineno}"


if __name__ == "__main__":
    main()
