"""Compare the estimate of a run's memory with what MLX allocates, phase by phase.

Run: .venv/bin/python benchmarks/bench_memory.py [NAME ...]

Each case is a model of a real shape with random weights and a configuration. It runs in a process of its own: an
iteration of PPO, with random prompts, all of the longest length, and responses that never stop; or two steps of a
reward model or of DPO, on comparisons of the longest length; then an evaluation, if it has one. Exits with 1 if the
estimate of a peak is off by more than 15%.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from typing import Any, get_args

import trainer  # noqa: F401  loads the BLAS, before anything imports mlx

# isort: split
from memory_runs import Case, measured

from trainer.config.loading import load_config, parse_overrides
from trainer.memory.footprint import MemoryPhase, footprint
from trainer.memory.shape import decoder_shape


def decoder(
    family: str, hidden: int, inner: int, layers: int, heads: int, kv: int, vocabulary: int, **more: Any
) -> Any:
    """Return the config.json of a decoder."""
    return {
        "model_type": family,
        "hidden_size": hidden,
        "intermediate_size": inner,
        "num_hidden_layers": layers,
        "num_attention_heads": heads,
        "num_key_value_heads": kv,
        "vocab_size": vocabulary,
        "head_dim": hidden // heads,
        "rms_norm_eps": 1e-6,
        "max_position_embeddings": 4096,
        "rope_theta": 1e5,
        "tie_word_embeddings": True,
    } | more


SMOLLM2 = decoder("llama", 576, 1536, 30, 9, 3, 49152)
SMOLLM2_360M = decoder("llama", 960, 2560, 32, 15, 5, 49152)
QWEN3 = decoder("qwen3", 1024, 3072, 28, 16, 8, 151936, head_dim=128)
QWEN2 = decoder("qwen2", 896, 4864, 24, 14, 2, 151936)
LLAMA = decoder("llama", 768, 3072, 12, 12, 12, 32000, tie_word_embeddings=False)
GEMMA3 = decoder(
    "gemma3_text", 640, 2048, 18, 4, 1, 262144, head_dim=256, query_pre_attn_scalar=256, sliding_window=512,
    sliding_window_pattern=6, rope_local_base_freq=1e4, rope_traditional=False,
)  # fmt: skip
MOE = decoder(
    "qwen3_moe", 512, 1024, 12, 8, 4, 49152, head_dim=64, num_experts=16, num_experts_per_tok=4,
    decoder_sparse_step=1, mlp_only_layers=[], moe_intermediate_size=256, norm_topk_prob=True,
)  # fmt: skip

TINY = decoder("llama", 320, 896, 12, 5, 5, 16000)
SMALL = decoder("llama", 256, 1024, 8, 8, 4, 32000)
SEVEN = decoder("llama", 4096, 11008, 32, 32, 32, 32000, tie_word_embeddings=False)

ALL = "model.lora_targets=['q_proj','k_proj','v_proj','o_proj']"
CHECKPOINTED = "optim.grad_checkpoint=true"
F32, BF16 = "model.dtype=float32", "model.dtype=bfloat16"
CASES = {
    "quickstart": Case(SMOLLM2, 32, (ALL, "rollout.max_new_tokens=32", F32)),
    "long responses": Case(SMOLLM2, 32, ("rollout.max_new_tokens=224", "rollout.batch_size=4", F32)),
    "one long sequence": Case(
        SMOLLM2, 700, ("rollout.max_new_tokens=68", "rollout.batch_size=1", "data.max_prompt_tokens=900", F32)
    ),
    "large batch": Case(SMOLLM2, 64, ("rollout.batch_size=32", "rollout.max_new_tokens=32", F32)),
    "small micro-batches": Case(
        SMOLLM2, 64, ("rollout.batch_size=16", "rollout.max_new_tokens=32", "optim.micro_batch_tokens=256", F32)
    ),
    "critic apart": Case(SMOLLM2, 32, (ALL, "model.value_model=adapter", "model.lora_rank=64", F32)),
    "rloo, all layers": Case(
        SMOLLM2,
        32,
        (
            "model.lora_targets=['auto']",
            "ppo.estimator=rloo",
            "rollout.samples_per_prompt=4",
            "model.lora_rank=32",
            F32,
        ),
    ),
    "grpo, scored by its first step": Case(
        SMOLLM2,
        32,
        (
            ALL,
            "ppo.estimator=grpo",
            "ppo.kl_in=loss",
            "ppo.kl_estimator=k3",
            "rollout.samples_per_prompt=4",
            "rollout.max_new_tokens=32",
            F32,
        ),
    ),
    "exact KL": Case(SMOLLM2, 32, (ALL, "ppo.kl_in=loss", "ppo.kl_estimator=full", "rollout.max_new_tokens=32", F32)),
    "exact KL, one chunk": Case(
        SMOLLM2,
        32,
        (ALL, "ppo.kl_in=loss", "ppo.kl_estimator=full", "rollout.batch_size=2", "rollout.max_new_tokens=32", F32),
    ),
    "exact KL, grpo": Case(
        SMOLLM2,
        32,
        (
            ALL,
            "ppo.estimator=grpo",
            "ppo.kl_in=loss",
            "ppo.kl_estimator=full",
            "rollout.samples_per_prompt=4",
            "rollout.max_new_tokens=32",
            F32,
        ),
    ),
    "bfloat16": Case(LLAMA, 32, ("rollout.batch_size=4", "rollout.max_new_tokens=16", BF16)),
    "4 bits": Case(LLAMA, 64, ("rollout.max_new_tokens=32", "model.quantize=4-bit", F32)),
    "llama, long prompts": Case(LLAMA, 400, ("rollout.max_new_tokens=32", "data.max_prompt_tokens=512", F32)),
    "qwen2 0.5B": Case(QWEN2, 64, ("rollout.max_new_tokens=32", F32)),
    "qwen3 0.6B": Case(QWEN3, 64, ("rollout.max_new_tokens=32", F32)),
    "gemma3 270M": Case(GEMMA3, 64, ("rollout.max_new_tokens=32", F32)),
    "smollm2 360M": Case(SMOLLM2_360M, 128, ("rollout.max_new_tokens=24", "rollout.batch_size=6", ALL, F32)),
    "qwen2, two minibatches": Case(
        QWEN2, 48, ("rollout.max_new_tokens=24", "rollout.batch_size=12", "ppo.minibatches=2", F32)
    ),
    "experts": Case(MOE, 64, ("rollout.max_new_tokens=32", F32)),
    "adapters on experts": Case(
        MOE, 64, ("rollout.max_new_tokens=16", "rollout.batch_size=4", "model.lora_targets=['auto','experts']", F32)
    ),
    "checkpointed": Case(SMOLLM2, 32, (ALL, "rollout.max_new_tokens=32", CHECKPOINTED, F32)),
    "checkpointed, long responses": Case(
        SMOLLM2, 32, ("rollout.max_new_tokens=224", "rollout.batch_size=4", CHECKPOINTED, F32)
    ),
    "checkpointed, one long sequence": Case(
        SMOLLM2,
        1016,
        ("rollout.max_new_tokens=8", "rollout.batch_size=1", "data.max_prompt_tokens=1016", CHECKPOINTED, F32),
    ),
    "checkpointed, gemma3": Case(GEMMA3, 120, ("rollout.max_new_tokens=8", CHECKPOINTED, F32)),
    "checkpointed, experts": Case(MOE, 120, ("rollout.max_new_tokens=8", CHECKPOINTED, F32)),
    "checkpointed, dpo": Case(SMOLLM2, 128, ("train.batch_size=3", CHECKPOINTED, F32), "dpo"),
    "reward model apart": Case(SMOLLM2, 64, ("rollout.max_new_tokens=16", F32), scorer=SMALL),
    "reward model shared": Case(TINY, 56, ("rollout.max_new_tokens=8", F32), scorer=TINY),
    "large adapters": Case(
        TINY, 16, (ALL, "model.lora_rank=512", "rollout.max_new_tokens=8", "rollout.batch_size=8", F32)
    ),
    "evaluation of 16 prompts": Case(
        TINY, 96, ("rollout.max_new_tokens=8", "rollout.batch_size=2", "eval.every=1", "eval.prompts=16", F32)
    ),
    "reward model": Case(TINY, 96, ("train.batch_size=4", F32), "reward-model"),
    "reward model, bfloat16": Case(
        TINY, 32, ("train.batch_size=4", "optim.micro_batch_tokens=256", BF16), "reward-model"
    ),
    "dpo": Case(TINY, 96, ("train.batch_size=4", F32), "dpo"),
    "smollm2, reward model": Case(SMOLLM2, 128, ("train.batch_size=4", F32), "reward-model"),
    "smollm2, dpo": Case(SMOLLM2, 128, ("train.batch_size=3", F32), "dpo"),
    "checkpointed, reward model": Case(SMOLLM2, 128, ("train.batch_size=4", CHECKPOINTED, F32), "reward-model"),
}
FITTED = {  # the factors in trainer/memory/footprint.py are fitted to these cases
    *("quickstart", "long responses", "one long sequence", "large batch", "critic apart", "rloo, all layers"),
    *("bfloat16", "4 bits", "llama, long prompts", "qwen2 0.5B", "qwen3 0.6B", "gemma3 270M", "experts"),
    *("adapters on experts", "reward model apart", "reward model shared", "evaluation of 16 prompts"),
    *("reward model", "reward model, bfloat16", "dpo", "large adapters", "checkpointed"),
    *("checkpointed, long responses", "checkpointed, one long sequence"),
}
MARGIN = 0.15


def main() -> int:
    """Measure the named cases, or all, print a table, and return the exit code."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"of {', '.join(CASES)}")
    parser.add_argument("--seven", action="store_true", help="only print the estimate for a model of 7B")
    parser.add_argument("--measure", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.seven:
        print("\n".join(seven_billion()))
        return 0
    if options.measure:
        print(json.dumps(measured(CASES[options.names[0]])))
        return 0
    print(f"| case | {' | '.join(get_args(MemoryPhase))} | peak | estimate | off by |")
    print("|---|" + "---|" * (len(get_args(MemoryPhase)) + 3))
    failed = False
    for name in options.names or CASES:
        found = subprocess.run([sys.executable, __file__, "--measure", name], stdout=subprocess.PIPE, text=True)
        if found.returncode:
            print(f"{name}: exit code {found.returncode}", file=sys.stderr)
            failed = True
            continue
        sizes = json.loads(found.stdout.splitlines()[-1])
        print(row(name, sizes), flush=True)
        failed |= abs(error(*sizes["peak"])) > MARGIN
    return int(failed)


def row(name: str, found: dict[str, tuple[float, float]]) -> str:
    """Return a line of the table. found: measured and estimated bytes of each phase, and of the peak."""
    cells = [
        f"{found[phase][0] / 1e6:,.0f} ({error(*found[phase]):+.0%})" if phase in found else "-"
        for phase in get_args(MemoryPhase)
    ]
    real, guess = found["peak"]
    cells += [f"{real / 1e6:,.0f}", f"{guess / 1e6:,.0f}", f"{error(real, guess):+.0%}"]
    return f"| {name}{' *' if name in FITTED else ''} | {' | '.join(cells)} |"


def error(real: float, guess: float) -> float:
    """Return by which share of `real` the estimate is too large."""
    return guess / real - 1


def seven_billion() -> list[str]:
    """Return the estimate for a model of 7B on a GPU beside that of four models in bfloat16, in GB."""
    shape = decoder_shape(SEVEN)
    settings = ("rollout.max_new_tokens=512", "rollout.batch_size=8", "data.max_prompt_tokens=512")
    found = []
    for more in ((), ("model.quantize=4-bit",)):
        config = load_config("quickstart", parse_overrides([*settings, *more, "model.dtype=bfloat16"]))
        found.append(footprint(config, shape, 512, gpu=True))
    lines = ["| GB | four models | here, bfloat16 | here, 4 bits |", "|---|---|---|---|"]
    rows = {
        "policy": ("14", ("weights", "adapters", "optimiser", "gradients")),
        "reference": ("14", ()),
        "value model": ("14", ()),
        "reward model": ("14", ()),
        "activations and logits of the update": ("15 to 20", ("activations", "logits")),
    }
    for name, (theirs, parts) in rows.items():
        sizes = [sum(one.phases["update"].get(part, 0) for part in parts) / 1e9 for one in found]
        lines.append(f"| {name} | {theirs} | {' | '.join(f'{size:.1f}' if parts else 'shared' for size in sizes)} |")
    caches = [one.phases["generate"]["KV cache"] / 1e9 for one in found]
    lines.append(f"| rollout: keys and values | 5 to 10 | {' | '.join(f'{size:.1f}' for size in caches)} |")
    lines.append(f"| peak | 75 to 85 | {' | '.join(f'{one.peak / 1e9:.1f}, {one.phase}' for one in found)} |")
    return lines


if __name__ == "__main__":
    os.environ.setdefault("HF_HUB_OFFLINE", "1")
    raise SystemExit(main())
