"""The side of transformers, PEFT and TRL in the round trips of engines.py, in the environment of requirements-trl.txt.

It imports nothing of ours. `models FOLDER` loads what we wrote, `back FOLDER` writes what we are to read, `settings
FOLDER` makes TRL's configurations, and `train FOLDER` trains on from an export.
"""

from __future__ import annotations

import contextlib
import json
import os
import runpy
import sys
from pathlib import Path
from typing import Any

os.environ["TRL_EXPERIMENTAL_SILENCE"] = "1"  # read when trl.experimental is imported
os.environ["HF_HUB_OFFLINE"] = "1"

import numpy as np
import torch
import transformers
from peft import LoraConfig, PeftModel, get_peft_model
from transformers import AutoModelForCausalLM, AutoModelForSequenceClassification

BACK = ("llama", "phi3", "qwen3")
RENAMED = ("gpt2", "gptj", "gpt_neox")


def logprobs(model: Any, tokens: torch.Tensor) -> Any:
    """Return the log-probs of `tokens` [B, L] after the first, [B, L - 1]."""
    with torch.no_grad():
        logits = model(tokens).logits[:, :-1].double()
    return torch.log_softmax(logits, -1).gather(-1, tokens[:, 1:, None])[..., 0].numpy()


def scores(model: Any, tokens: torch.Tensor) -> Any:
    """Return the score of each sequence, with an end token after it that must not be read; [B]."""
    padded = torch.nn.functional.pad(tokens, (0, 2), value=model.config.pad_token_id)
    with torch.no_grad():
        found = model(padded).logits[:, 0].numpy()
    return found - getattr(model.config, "mean", 0.0) / getattr(model.config, "std", 1.0)


def load(kind: Any, folder: Path, **more: Any) -> Any:
    """Load a checkpoint whole. Exits if a weight is missing or left over."""
    model, about = kind.from_pretrained(folder, dtype=torch.float32, output_loading_info=True, **more)
    if left := [*about["missing_keys"], *about["unexpected_keys"]]:
        sys.exit(f"{folder}: missing or unexpected weights {left[:3]}")
    return model.eval()


def read_models(root: Path) -> None:
    """Load each family's model, adapter and classifier, and save what they compute."""
    for folder in sorted(root.iterdir()):
        tokens = torch.tensor(np.load(folder / "ours.npz")["tokens"])
        found: dict[str, Any] = {}
        model = _renamed(folder) if folder.name in RENAMED else load(AutoModelForCausalLM, folder / "model")
        found["plain"] = logprobs(model, tokens)
        model = PeftModel.from_pretrained(model, folder / "adapter").eval()
        found["adapted"] = logprobs(model, tokens)
        found["exact"] = logprobs(model.double(), tokens)
        if (folder / "classifier").is_dir():
            found["scores"] = scores(load(AutoModelForSequenceClassification, folder / "classifier"), tokens)
        np.savez(folder / "theirs.npz", **found)


def _renamed(folder: Path) -> Any:
    """Load a base model whose weights have other names in mlx-lm."""
    from safetensors.torch import load_file

    weights = load_file(folder / "model" / "model.safetensors")
    model = AutoModelForCausalLM.from_config(transformers.AutoConfig.from_pretrained(folder / "model")).float().eval()
    renamed = {}
    for name, array in weights.items():
        other = name.replace("model.h.", "gpt_neox.layers." if "neox" in folder.name else "transformer.h.")
        other = other.replace("model.embed_out", "lm_head")
        other = other.replace("model.", "gpt_neox." if "neox" in folder.name else "transformer.", 1)
        conv = folder.name == "gpt2" and array.ndim == 2 and ".c_" in name
        renamed[other] = array.T.contiguous() if conv else array
    left = model.load_state_dict(renamed, strict=False)
    missing = [name for name in left.missing_keys if not name.endswith((".bias", "lm_head.weight", "masked_bias"))]
    if missing or left.unexpected_keys:
        sys.exit(f"{folder}: missing {missing[:3]}, unexpected {left.unexpected_keys[:3]}")
    return model


def write_back(root: Path) -> None:
    """Write, for some families, an adapter with other options, a classifier, and a classifier's adapter."""
    for family in BACK:
        folder, base = root / "back" / family, root / "models" / family / "model"
        folder.mkdir(parents=True)
        (folder / "model").symlink_to(base)
        tokens = torch.tensor(np.load(root / "models" / family / "ours.npz")["tokens"])
        torch.manual_seed(0)
        lora = LoraConfig(r=3, lora_alpha=7, use_rslora=True, target_modules="all-linear", task_type="CAUSAL_LM")
        model = _noisy(get_peft_model(load(AutoModelForCausalLM, base), lora))
        model.save_pretrained(folder / "adapter")
        found = {"adapted": logprobs(model, tokens)}
        whole = AutoModelForSequenceClassification.from_pretrained(base, num_labels=1, dtype=torch.float32).eval()
        whole.config.pad_token_id = 256
        whole.save_pretrained(folder / "classifier")
        for name in ("tokenizer.json", "tokenizer_config.json"):
            (folder / "classifier" / name).write_bytes((base / name).read_bytes())
        found["classifier"] = scores(whole, tokens)
        lora = LoraConfig(r=2, lora_alpha=8, target_modules="all-linear", task_type="SEQ_CLS")
        model = _noisy(get_peft_model(whole, lora))
        model.save_pretrained(folder / "classifier-adapter")
        found["classifier-adapter"] = scores(model, tokens)
        np.savez(folder / "theirs.npz", **found)


def _noisy(model: Any) -> Any:
    """Give B, which begins at zero, some noise."""
    for name, parameter in model.named_parameters():
        if "lora_B" in name:
            parameter.data = 0.05 * torch.randn_like(parameter)
    return model.eval()


def make_settings(root: Path) -> None:
    """Make TRL's configuration of each set of settings. A name or value that TRL refuses raises."""
    import trl
    from trl.experimental.ppo import PPOConfig

    kinds = {"PPOConfig": PPOConfig, "GRPOConfig": trl.GRPOConfig, "RLOOConfig": trl.RLOOConfig}
    for one in json.loads((root / "trl.json").read_text()).values():
        kinds[one["config"]](**one["values"] | {"bf16": False, "use_cpu": True, "output_dir": str(root / "trl")})


def train_on(export: Path) -> None:
    """Run trl/train.py of an export on the CPU; print what it trained."""
    file = export / "trl" / "config.json"
    about = json.loads(file.read_text())
    about["dtype"] = "float32"
    about["settings"] |= {"bf16": False, "use_cpu": True}
    file.write_text(json.dumps(about))
    with contextlib.redirect_stdout(sys.stderr):
        done = runpy.run_path(str(export / "trl" / "train.py"))
    from safetensors.torch import load_file

    before = load_file(export / "policy" / "adapter_model.safetensors")
    after = load_file(next((export / "trl" / "output").glob("adapter_model.safetensors")))
    changed = sum(not torch.equal(before[name], after[name]) for name in before)
    print(
        json.dumps(
            {
                "trainer": type(done["trainer"]).__name__,
                "steps": done["trainer"].state.global_step,
                "changed": changed,
                "arrays": len(before),
            }
        )
    )


if __name__ == "__main__":
    transformers.logging.set_verbosity_error()
    transformers.utils.logging.disable_progress_bar()
    work = {"models": read_models, "back": write_back, "settings": make_settings, "train": train_on}
    work[sys.argv[1]](Path(sys.argv[2]).resolve())
