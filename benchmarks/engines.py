"""Round trips of policies and reward models through transformers, PEFT and TRL, and the names of exported settings.

Prints the tables of docs/other-engines.md. Our side runs here; transformers', PEFT's and TRL's in the environment of
requirements-trl.txt (engines_peer.py). The packages of OpenRLHF and verl are fetched without what they depend on, and
their own argument parser and configuration are asked for every name.

Run: .venv/bin/python benchmarks/engines.py [--trl-python PYTHON] [--packages FOLDER] [--only models|settings|training]
"""

from __future__ import annotations

import argparse
import ast
import json
import shlex
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Iterator
from itertools import product
from pathlib import Path
from typing import Any

import trainer  # noqa: F401  loads the BLAS, before anything imports mlx

# isort: split
import mlx.core as mx
import numpy as np
import yaml
from mlx.utils import tree_flatten
from peers import HERE, TRL
from tiny_families import tiny_backbone, tiny_config

sys.path.append(str(HERE.parent / "tests" / "support"))
from reward_model_runs import reward_workspace
from runs_helper import tiny_config as run_config
from tiny import make_tokenizer

from trainer import maths
from trainer.config.schema import BackboneConfig, Config
from trainer.exchange import openrlhf, trl, verl
from trainer.exchange.checkpoints import write_classifier
from trainer.exchange.report import flags
from trainer.exchange.run_export import ExportOptions, export_run
from trainer.exchange.settings import Facts, translated
from trainer.models.adapters import linear_places, lora_parameters, new_adapter, only_adapter
from trainer.models.backbone import load_backbone
from trainer.models.classifier import ScalarHead
from trainer.models.peft_adapters import WEIGHTS, read_peft, write_peft
from trainer.models.starter import starter_model
from trainer.models.transformers_names import FAMILIES
from trainer.models.trunk import family_of, hidden_states
from trainer.ppo_run.training import train
from trainer.rewards.model_reward import ClassifierModel
from trainer.runs.folder import RunFolder
from workbench.system.code_trust import trusted_code

STARTER = "starter"
PACKAGES = HERE / ".engines"
TOKENS = np.array([list(b"Hello wo"), [5, 6, 7, 8, 9, 10, 11, 12]])
RANK, SCALE = 4, 5.0
MODELS = (*FAMILIES, "mistral")  # which mlx-lm loads as llama
OWN: dict[str, dict[str, Any]] = {  # fields whose defaults differ, or whose types transformers checks
    "gemma": {"hidden_act": "gelu", "hidden_activation": "gelu"},
    "gemma2": {"query_pre_attn_scalar": 16, "hidden_activation": "gelu_pytorch_tanh"},
    "gemma3_text": {"query_pre_attn_scalar": 16, "hidden_activation": "gelu_pytorch_tanh"},
    "mistral": {"sliding_window": None},
    "starcoder2": {"hidden_act": "gelu"},
    "gpt_neox": {"intermediate_size": 256, "hidden_act": "gelu_pytorch_tanh"},
}
CHANGES: dict[str, list[Any]] = {  # values of settings that choose other rows of the tables
    "model.dtype": ["auto", "float32"],
    "rollout.samples_per_prompt": [1, 4],
    "reward.overlong_penalty": [0.0, 1.0],
    "ppo.estimator": ["gae", "reinforce", "rloo", "remax", "grpo"],
    "ppo.kl_in": ["reward", "loss"],
    "ppo.kl_controller": ["fixed", "adaptive"],
}
MORE = {  # values that the tables treat as set, in all of those
    "ppo": {"clip_high": 0.3, "dual_clip": 3.0, "importance_cap": 2.0, "entropy_coef": 0.01, "kl_estimator": "k3"},
    "reward": {"sources": [{"kind": "model", "path": "reward-model"}], "overlong_tokens": 4},
    "optim": {"ema_decay": 0.9, "schedule": "cosine", "warmup_steps": 3},
    "rollout": {"stop": ["END"]},
}


def make_models(root: Path) -> None:
    """Write a tiny random model of every family, an adapter on all its layers, a classifier, and what they compute."""
    for family in MODELS:
        names = FAMILIES.get(family, FAMILIES["llama"])
        folder = root / family
        folder.mkdir()
        config = tiny_config(family) | OWN.get(family, {}) | {"pad_token_id": 0}
        weights = dict(tree_flatten(tiny_backbone(family, mx.float32).parameters()))
        if config.get("tie_word_embeddings"):
            weights.pop("lm_head.weight", None)
        (folder / "model").mkdir()
        mx.save_safetensors(str(folder / "model" / "model.safetensors"), weights, metadata={"format": "mlx"})
        (folder / "model" / "config.json").write_text(json.dumps(config))
        make_tokenizer().save_pretrained(folder / "model")
        _write_parts(folder, whole=names.weights and names.classifier)
    (root / STARTER).mkdir()
    (root / STARTER / "model").symlink_to(starter_model())  # llama, of 135 million parameters
    _write_parts(root / STARTER, whole=True)


def _write_parts(folder: Path, *, whole: bool) -> None:
    """Write adapter and classifier of the model in `folder`, with log-probs and scores."""
    loaded = load_backbone(BackboneConfig(path=str(folder / "model")))
    backbone, tokens = loaded.backbone, mx.array(TOKENS)
    targets = sorted({name.rpartition(".")[2] for block in backbone.layers for name in linear_places(block)})
    settings = BackboneConfig(path=str(folder / "model"), lora_rank=RANK, lora_scale=SCALE, lora_targets=targets)
    layers = new_adapter(backbone, settings, mx.random.key(1)).layers
    for number, layer in enumerate(layers.values()):
        layer.lora_b = 0.02 * mx.random.normal(layer.lora_b.shape, key=mx.random.key(number))
    base = str(folder / "model")
    write_peft(
        folder / "adapter", lora_parameters(layers), family=family_of(backbone), rank=RANK, scale=SCALE, base=base
    )
    found = {"plain": _logprobs(backbone, tokens)}
    weight = 0.3 * mx.random.normal((hidden_states(backbone, tokens).shape[-1],), key=mx.random.key(5))
    head = ScalarHead(weight, 0.7, 2.0)
    with only_adapter(linear_places(backbone), layers):
        found["adapted"] = _logprobs(backbone, tokens)
        found["scores"] = (hidden_states(backbone, tokens)[:, -1] @ head.weight - head.mean) / head.std
    if whole:
        write_classifier(folder / "classifier", loaded, layers, head)
    np.savez(folder / "ours.npz", **{name: np.array(array) for name, array in found.items()}, tokens=TOKENS)


def _logprobs(backbone: Any, tokens: mx.array) -> mx.array:
    return maths.token_logprobs(backbone(tokens)[:, :-1].astype(mx.float32), tokens[:, 1:])


def compare_models(root: Path) -> Iterator[str]:
    """Yield a table of the largest differences of log-probs, in nats, and of scores, by family.

    "transformers against itself" is its policy with the adapter in float32 against float64.
    """
    yield "| family | base model | policy with adapter | transformers against itself | reward model |"
    yield "|---|---|---|---|---|"
    for family in (*MODELS, STARTER):
        ours, theirs = (np.load(root / family / f"{name}.npz") for name in ("ours", "theirs"))
        pairs = [(ours, "plain"), (ours, "adapted"), (theirs, "exact"), (ours, "scores")]
        others = ["plain", "adapted", "adapted", "scores"]
        cells = [
            _difference(side[name], theirs[other]) if other in theirs else "-"
            for (side, name), other in zip(pairs, others, strict=True)
        ]
        yield f"| {family} | {' | '.join(cells)} |"


def compare_back(root: Path) -> Iterator[str]:
    """Yield a table of the differences of what PEFT and transformers wrote and this program reads."""
    yield "| family | PEFT adapter as model.adapter | classifier as a reward | its PEFT adapter as a reward | arrays |"
    yield "|---|---|---|---|---|"
    for folder in sorted((root / "back").iterdir()):
        theirs = np.load(folder / "theirs.npz")
        config = BackboneConfig(path=str(folder / "model"), adapter=str(folder / "adapter"))
        cells = [_difference(np.array(_logprobs(load_backbone(config).backbone, mx.array(TOKENS))), theirs["adapted"])]
        for name in ("classifier", "classifier-adapter"):
            model = ClassifierModel(folder / name)
            scores = model.scores(mx.array(TOKENS), mx.array([TOKENS.shape[1]] * len(TOKENS)))
            cells.append(_difference(np.array(scores), theirs[name]))
        yield f"| {folder.name} | {' | '.join(cells)} | {_again(folder)} |"


def _again(folder: Path) -> str:
    """Read PEFT's adapter and write it again; return whether its arrays are the same bit for bit."""
    backbone = load_backbone(BackboneConfig(path=str(folder / "model"))).backbone
    found = read_peft(folder / "adapter", family_of(backbone))
    write_peft(
        folder / "again", found.parameters, family=family_of(backbone), rank=found.rank, scale=found.scale, base="model"
    )
    first, second = (dict(mx.load(str(folder / name / WEIGHTS))) for name in ("adapter", "again"))
    same = first.keys() == second.keys() and all(mx.array_equal(first[name], second[name]) for name in first)
    return "same bits" if same else "DIFFER"


def _difference(ours: Any, theirs: Any) -> str:
    return f"{float(np.abs(ours.astype(np.float64) - theirs.astype(np.float64)).max()):.1e}"


def translations() -> Iterator[tuple[str, Facts]]:
    """Yield configurations that use every row of the tables, with a name each."""
    for values in product(*CHANGES.values()):
        chosen = dict(zip(CHANGES, values, strict=True))
        if chosen["ppo.estimator"] in ("rloo", "grpo") and chosen["rollout.samples_per_prompt"] == 1:
            continue  # which no trainer takes
        for given in ({}, MORE):
            tables = {table: dict(settings) for table, settings in given.items()}
            for key, value in chosen.items():
                table, _, name = key.partition(".")
                tables.setdefault(table, {})[name] = value
            config = Config.model_validate(tables)
            for messages, critic in product((False, True), repeat=2):
                name = ", ".join(map(str, values))
                value = "value-model" if critic else ""
                yield name, Facts(config, 100, messages=messages, reward_model="reward-model", value_model=value)


def fetch(name: str, version: str, folder: Path) -> Path:
    """Return the unpacked package, fetched on first use without what it depends on. Raises SystemExit if pip fails."""
    place = folder / f"{name}-{version}"
    if not place.is_dir():
        folder.mkdir(exist_ok=True)
        (folder / ".gitignore").write_text("*\n")
        wheel = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--dest", str(folder)]
        if subprocess.run([*wheel, f"{name}=={version}"], check=False).returncode:
            raise SystemExit(f"could not fetch {name} {version}: see pip's message above, or unpack it in {place}")
        file = next(folder.glob(f"{name}-{version}-*.whl"))
        with zipfile.ZipFile(file) as archive:
            archive.extractall(place)
    return place


def openrlhf_parser(package: Path) -> argparse.ArgumentParser:
    """Return the argument parser of train_ppo_ray, from its source: the rest of the file needs Ray and CUDA."""
    source = next(package.rglob("openrlhf/cli/train_ppo_ray.py")).read_text(encoding="utf-8")
    [main] = [
        node for node in ast.parse(source).body if isinstance(node, ast.If) and "__main__" in ast.unparse(node.test)
    ]
    lines = [node for node in main.body if "parser" in ast.unparse(node) and "parse_args" not in ast.unparse(node)]
    from datetime import datetime

    found: dict[str, Any] = {"argparse": argparse, "datetime": datetime}
    exec(compile(ast.Module(lines, []), "train_ppo_ray.py", "exec"), found)
    parser: argparse.ArgumentParser = found["parser"]
    return parser


def verl_names(package: Path) -> set[str]:
    """Return the dotted names of verl's configuration, as its own generated file has them."""
    [file] = package.rglob("verl/trainer/config/_generated_ppo_trainer.yaml")

    def flat(node: Any, prefix: str = "") -> Iterator[str]:
        for name, value in node.items():
            yield f"{prefix}{name}"
            if isinstance(value, dict):
                yield from flat(value, f"{prefix}{name}.")

    return set(flat(yaml.safe_load(file.read_text(encoding="utf-8"))))


def check_settings(packages: Path, root: Path, python: Path) -> Iterator[str]:
    """Yield a table of how many names each trainer knows; raise SystemExit for one that it does not."""
    used: dict[str, set[str]] = {"openrlhf": set(), "verl": set()}
    parser = openrlhf_parser(fetch("openrlhf", openrlhf.VERSION, packages))
    known = verl_names(fetch("verl", verl.VERSION, packages))
    for_trl: dict[str, dict[str, Any]] = {}
    for name, facts in translations():
        values = translated(facts, openrlhf.SETTINGS).values | openrlhf.MACHINE
        used["openrlhf"] |= values.keys()
        parser.parse_args([word for flag in flags(values) for word in shlex.split(flag)])  # or it exits
        values = translated(facts, verl.SETTINGS).values | verl.MACHINE
        used["verl"] |= values.keys()
        if unknown := values.keys() - known:
            raise SystemExit(f"verl {verl.VERSION} does not know {', '.join(sorted(unknown))}")
        if table := trl.table(facts):
            config = trl.CONFIGS[facts.config.ppo.estimator]
            for_trl[f"{config} {name} {len(for_trl)}"] = {"config": config, "values": translated(facts, table).values}
    (root / "trl.json").write_text(json.dumps(for_trl))
    peer(python, "settings", root)
    yield "| trainer | checked with | settings |"
    yield "|---|---|---|"
    for config in sorted({one["config"] for one in for_trl.values()}):
        count = len({name for one in for_trl.values() if one["config"] == config for name in one["values"]})
        yield f"| TRL {trl.VERSION} | `{config}` itself | {count} |"
    yield f"| OpenRLHF {openrlhf.VERSION} | its argument parser | {len(used['openrlhf'])} |"
    yield f"| verl {verl.VERSION} | its generated configuration | {len(used['verl'])} |"


def check_training(root: Path, python: Path) -> Iterator[str]:
    """Train tiny runs, export them, and let TRL train on from each export; yield how that went."""
    workspace = root / "workspace"
    workspace.mkdir()
    model = f'reward.sources=[{{kind="model", path="{reward_workspace(workspace)}"}}]'
    yield "| estimator | reward | trainer | trained on | arrays of the adapter that changed |"
    yield "|---|---|---|---|---|"
    for number, (estimator, reward, more) in enumerate(
        (
            ("gae", model, ()),
            ("grpo", model, ("ppo.kl_in='loss'", "ppo.kl_estimator='k3'", "rollout.samples_per_prompt=2")),
            ("rloo", model, ("rollout.samples_per_prompt=2",)),
            ("rloo", "", ("rollout.samples_per_prompt=2",)),
        )
    ):
        given = [*filter(None, (reward,)), f"run.name=r{number}", f"ppo.estimator='{estimator}'", *more]
        train(run_config(workspace, *given), trust=trusted_code().check)
        output = root / "exports" / str(number)
        export_run(RunFolder(workspace / "runs" / f"r{number}"), output, ExportOptions(engines=["trl"]))
        found = json.loads(peer(python, "train", output))
        kind, changed = "reward model" if reward else "function", f"{found['changed']} of {found['arrays']}"
        yield f"| {estimator} | {kind} | {found['trainer']} | {found['steps']} steps | {changed} |"


def peer(python: Path, what: str, folder: Path) -> str:
    """Run engines_peer.py in TRL's environment and return the last line that it printed. Raises SystemExit."""
    command = [str(python), str(HERE / "engines_peer.py"), what, str(folder)]
    done = subprocess.run(command, stdout=subprocess.PIPE, check=False, text=True)
    if done.returncode:
        raise SystemExit(f"engines_peer.py {what} failed: see above")
    return (done.stdout.strip().splitlines() or [""])[-1]


def main() -> None:
    """Print the tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--trl-python", type=Path, help="interpreter with requirements-trl.txt (default: made once)")
    parser.add_argument("--packages", type=Path, default=PACKAGES, help="packages of OpenRLHF and verl (%(default)s)")
    parser.add_argument("--only", choices=("models", "settings", "training"))
    options = parser.parse_args()
    python = options.trl_python or TRL.python()
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder)
        if options.only in (None, "models"):
            (root / "models").mkdir()
            make_models(root / "models")
            peer(python, "models", root / "models")
            print("\n".join(compare_models(root / "models")), end="\n\n", flush=True)
            peer(python, "back", root)
            print("\n".join(compare_back(root)), end="\n\n", flush=True)
        if options.only in (None, "settings"):
            print("\n".join(check_settings(options.packages, root, python)), end="\n\n", flush=True)
        if options.only in (None, "training"):
            print("\n".join(check_training(root, python)), flush=True)


if __name__ == "__main__":
    main()
