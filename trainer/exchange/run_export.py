"""Export of a run for other trainers, in one folder that is written whole or not at all. This module imports MLX."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import mlx.core as mx

from trainer.config import SCHEMAS, AnyConfig, Config
from trainer.config.loading import load_config_as
from trainer.config.pairs import DPOConfig, RewardModelConfig
from trainer.config.problems import shown
from trainer.config.reward_sources import ModelSource, PythonSource
from trainer.config.schema import BackboneConfig
from trainer.errors import ModelError, TrainerError, UsageError, cannot_write
from trainer.exchange.checkpoints import write_model
from trainer.exchange.prompts import write_prompts
from trainer.exchange.trl import TRAINERS, RunFacts, Translated, only_source, readme, translated, trl_files
from trainer.files import is_folder, read_json, replace_folder
from trainer.models.adapters import ADAPTER, LoRA, Parameters, new_adapter, read_adapter_config, update_lora
from trainer.models.backbone import LoadedModel, ScalarHead, load_backbone
from trainer.models.forward import family_of
from trainer.models.peft_adapters import is_peft, write_peft
from trainer.pairs.comparisons import load_preferences
from trainer.policy_checkpoint import Snapshot, load_checkpoint
from trainer.preferences.formats import write_preferences
from trainer.reward_model.loaded import LoadedRewardModel, load_reward_model
from trainer.rewards.model_reward import classifier_config
from trainer.runs.checkpoint_files import find_checkpoint
from trainer.runs.folder import RunFolder, read_config

_POLICY, _BASE, _REWARD, _VALUE = "policy", "base", "reward-model", "value-model"
_MARKER = ".ppo-workbench-export.json"  # lists the files of an export


@dataclass(frozen=True, slots=True)
class ExportOptions:
    """Options of an export. checkpoint: last, best or a number; base: name of the base model on the other machine."""

    checkpoint: str = "last"
    average: bool = False
    base: str = ""
    copy_base: bool = False
    overwrite: bool = False


def export_run(folder: RunFolder, given: Path, options: ExportOptions) -> RunExport:
    """Write the export of a run of any kind to the folder `given`.

    Raises UsageError if it exists and may not be replaced, StorageError if it cannot be written, and another
    TrainerError for what the run or its model cannot give.
    """
    output = Path(os.path.abspath(given))  # noqa: PTH100  "." has no name to write beside; no link is followed
    if os.path.lexists(output):
        if not options.overwrite:
            raise UsageError(f"'{output}' exists: choose another folder with --output, or replace it with --force")
        _check_replaceable(output, folder)
    kind = str(read_config(folder).get("kind", "ppo"))
    if kind not in SCHEMAS:
        raise UsageError(f"run '{folder.name}' is of kind {shown(kind)}, which cannot be exported: name another run")
    try:
        output.parent.mkdir(parents=True, exist_ok=True)
        with TemporaryDirectory(prefix=f".{output.name}.", dir=output.parent, ignore_cleanup_errors=True) as temporary:
            new, old = Path(temporary, "new"), Path(temporary, "old")
            new.mkdir()
            found = RunExport(folder, new, output, options)
            _fill(found, load_config_as(SCHEMAS[kind], folder.config))
            text = "\n".join(readme(found.source, found.contents, found.warnings, found.settings))
            (new / "README.md").write_text(text + "\n", encoding="utf-8")
            (new / _MARKER).write_text(json.dumps([*_files(new), _MARKER], indent=2) + "\n", encoding="utf-8")
            replace_folder(output, new, old)
    except (OSError, RuntimeError) as error:  # mlx reports a failed write as RuntimeError
        raise cannot_write(f"the export '{output}'", error) from error
    return found


def _check_replaceable(output: Path, run: RunFolder) -> None:
    """Raise UsageError unless an earlier export wrote all that is in `output`, and nobody works inside it."""
    refused = f"--force does not replace '{output}'"
    inside = [place for place in (run.root.resolve(), Path.cwd()) if place.is_relative_to(output.resolve())]
    try:
        written = set(read_json(output / _MARKER)) if is_folder(output) and not inside else set()
    except (OSError, ValueError, TypeError):
        written = set()
    if not written:
        raise UsageError(f"{refused}, which is not the folder of an earlier export: choose another --output")
    if others := [name for name in _files(output) if name not in written]:
        raise UsageError(f"{refused}: no export wrote {shown(others[0])} in it; move that, or choose another --output")


def _files(folder: Path) -> list[str]:
    """Return the paths in `folder` of everything but folders, sorted."""
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*") if not is_folder(path))


@dataclass
class RunExport:
    """Export of a run, written to the folder `root`, which is then renamed to `output`."""

    run: RunFolder
    root: Path
    output: Path
    options: ExportOptions
    contents: dict[str, str] = field(default_factory=dict)  # what each file is, by path
    warnings: list[str] = field(default_factory=list)  # one line each
    settings: list[Translated] | None = field(default_factory=list)  # in TRL; None: it has no trainer for the estimator
    source: str = ""  # run and checkpoint

    def base(self, loaded: LoadedModel, config: BackboneConfig) -> str:
        """Return the base model's name for others; write the model if no folder or hub name stands for it."""
        if self.options.base:
            return self.options.base
        settings = read_json(loaded.folder / "config.json")
        changed = (
            config.adapter or config.quantize != "off" or {"quantization", "quantization_config"} & settings.keys()
        )
        if changed or self.options.copy_base:
            write_model(self.root / _BASE, loaded)
            self.contents[_BASE] = "the model under the adapter, as the run held it, for transformers"
            return _BASE
        is_hub = config.path != "starter" and not Path(config.path).expanduser().is_dir()
        return config.path if is_hub else str(loaded.folder.resolve())

    def policy(self, snapshot: Snapshot, settings: dict[str, Any], loaded: LoadedModel, config: BackboneConfig) -> str:
        """Write the policy's adapter; return the name of its base model."""
        if self.options.average and snapshot.average is None:
            raise UsageError(f"run '{self.run.name}' keeps no average of its policy (optim.ema_decay = 0)")
        base, lora = self.base(loaded, config), settings["lora_parameters"]
        write_peft(
            self.root / _POLICY,
            snapshot.average if self.options.average and snapshot.average else snapshot.policy,
            family=family_of(loaded.backbone),
            rank=lora["rank"],
            scale=lora["scale"],
            base=str(self.output.resolve() / base) if base == _BASE else base,
            revision=config.revision,
        )
        self.contents[_POLICY] = f"the policy's adapter for PEFT, on {base}"
        return base

    def preferences(self, config: DPOConfig | RewardModelConfig) -> None:
        """Write the run's preferences in TRL's format, which OpenRLHF reads too."""
        try:
            found = load_preferences(config.data)
            written = write_preferences(found, self.root / "preferences.jsonl", format="trl", ties="drop")
        except TrainerError as error:  # they may have moved since the training, and the model is here without them
            self.warnings.append(f"without preferences: {error}")
            return
        self.contents["preferences.jsonl"] = "prompt, chosen and rejected, for TRL and OpenRLHF"
        self.warnings += [f"preferences.jsonl leaves out {count} x {name}" for name, count in written.left_out.items()]

    def classifier(self, name: str, loaded: LoadedModel, layers: Mapping[str, LoRA], head: ScalarHead) -> str:
        """Write a sequence classifier; return its name, or an empty string with a warning if the family has none."""
        try:
            write_model(self.root / name, loaded, layers, head)
        except ModelError as error:
            self.warnings.append(f"without {name}: {error}")
            return ""
        what = "the critic" if name == _VALUE else "the reward model"
        self.contents[name] = f"{what} as a sequence classifier of transformers, num_labels = 1"
        if name != _VALUE and (constant := -head.mean / head.std):
            self.warnings.append(f"{name}: our score is the classifier's plus {constant:.6g}, -mean in its config.json")
        return name

    def reward_model(self, name: str, loaded: LoadedRewardModel) -> str:
        """Write a reward model of ours as a sequence classifier; return its name, as `classifier` does."""
        if loaded.model.reads_mean:
            self.warnings.append(f"without {name}: train.states = last+mean, and a classifier reads one token")
            return ""
        with loaded.model.on():
            modules = loaded.base.backbone.named_modules()
            layers = {name: module for name, module in modules if isinstance(module, LoRA)}
        arrays, scale = loaded.model.parameters(), loaded.model.scale
        head = ScalarHead(arrays["head.weight"], scale.mean - float(arrays["head.bias"]), scale.std)
        return self.classifier(name, loaded.base, layers, head)

    def reward_models(self, config: Config, loaded: LoadedModel) -> str:
        """Write the reward models of the run; return the path of the only one, or an empty string."""
        paths = [path for one in config.reward.sources if isinstance(one, ModelSource) for path in one.paths]
        written = []
        for number, path in enumerate(paths, 1):
            given, name = Path(path).expanduser(), _REWARD if len(paths) == 1 else f"{_REWARD}-{number}"
            if is_peft(given):
                own = load_backbone(classifier_config(given), classifier=True)
                written.append(self.classifier(name, own, {}, own.head) if own.head else "")
            elif (given / "config.json").is_file():  # a sequence classifier already
                written.append(str(given.resolve()))
            else:
                written.append(self.reward_model(name, load_reward_model(given, loaded)))
        return written[0] if len(written) == 1 else ""

    def value_model(self, config: Config, snapshot: Snapshot, loaded: LoadedModel) -> str:
        """Write the critic as a sequence classifier; return its name, or an empty string if it is none."""
        if config.ppo.estimator != "gae" or config.model.value_model == "fitted":
            return ""
        own = config.model.value_model == "adapter"
        arrays: Parameters = snapshot.value if own else snapshot.policy
        layers, _ = new_adapter(loaded.backbone, config.model, mx.random.key(0))
        update_lora(layers, arrays, ADAPTER if own else "")
        unit = snapshot.value_scale or 1.0
        head = ScalarHead(unit * snapshot.value["head.weight"], -unit * float(snapshot.value["head.bias"]))
        return self.classifier(_VALUE, loaded, layers, head)


def _fill(export: RunExport, config: AnyConfig) -> None:
    path, ignored = find_checkpoint(export.run, export.options.checkpoint)
    export.source = f"{export.run.name}, {path.name}"
    export.warnings += ignored  # damaged ones that are newer
    if isinstance(config, RewardModelConfig):
        export.reward_model(_REWARD, load_reward_model(path))
        export.preferences(config)
        return
    settings = read_adapter_config(path / "policy")
    snapshot = load_checkpoint(path, settings)
    loaded = load_backbone(config.model)
    base = export.policy(snapshot, settings, loaded, config.model)
    if isinstance(config, DPOConfig):
        export.preferences(config)
        return
    contents, warning = write_prompts(export.root, config, loaded.tokenizer)
    export.contents |= contents
    export.warnings += [warning] if warning else []
    source = only_source(config)
    facts = RunFacts(
        config,
        base=base,
        reward_model=export.reward_models(config, loaded),
        reward_function=source.path if isinstance(source, PythonSource) and ".py:" in source.path else "",
        value_model=export.value_model(config, snapshot, loaded),
    )
    if config.ppo.estimator not in TRAINERS:
        export.settings = None
        return
    export.settings = translated(facts)
    for file, text in trl_files(facts, export.settings).items():
        (export.root / file).parent.mkdir(exist_ok=True)
        (export.root / file).write_text(text, encoding="utf-8")
        export.contents[file] = "the settings, for TRL" if file.endswith(".json") else "the command, for TRL"
