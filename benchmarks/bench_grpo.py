"""Compare one GRPO iteration with TRL's GRPOTrainer and mlx-lm-lora's train_grpo.

Same machine, model, prompts, groups, lengths, updates and adapter. mlx-lm-lora runs with our BLAS and allocator;
`mlx-lm-lora-plain` runs as pip installs it.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path

from comparison import comparison_parser, positive, run_comparison
from peers import MLX_LM_LORA, TRL
from workload import Workload, our_blas, our_command, peer_command

SIDES = ("ours", "trl", "mlx-lm-lora", "mlx-lm-lora-plain")
GRPO = {
    "ppo": {
        "estimator": "grpo",
        "whiten_advantages": False,
        "kl_in": "loss",
        "kl_estimator": "k3",
        "loss_aggregation": "sequence",
    }
}
"""Settings of our side: GRPO as published, which is what the peers compute."""


def _options(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = comparison_parser(__doc__, SIDES)
    parser.set_defaults(epochs=1)
    add = parser.add_argument
    add("--samples-per-prompt", type=positive, default=4, help="responses to each prompt: the size of a group")
    add("--mlx-lm-lora-python", type=Path, help="interpreter of an environment with mlx-lm-lora (default: create one)")
    add("--micro-batch-tokens", type=positive, help="of our side: tokens that pass through the model together")
    options = parser.parse_args(arguments)
    if options.samples_per_prompt < 2 or options.batch_size % options.samples_per_prompt:
        parser.error(
            f"--samples-per-prompt {options.samples_per_prompt} does not make groups of two or more of --batch-size "
            f"{options.batch_size}: use a divisor of it above 1"
        )
    if options.epochs > 1 and any(side.startswith(MLX_LM_LORA.name) for side in options.sides):
        parser.error(
            f"--epochs {options.epochs}: mlx-lm-lora uses each batch once; give --epochs 1, or --sides ours trl"
        )
    return options


def _command(side: str, workload: Workload, folder: Path, options: argparse.Namespace) -> list[str]:
    if side == "ours":
        tokens: int | None = options.micro_batch_tokens
        return our_command(workload, folder, {**GRPO, "optim": {"micro_batch_tokens": tokens}} if tokens else GRPO)
    if side == "trl":
        return peer_command(workload, folder, options.trl_python or TRL.python(), "trl_grpo.py")
    blas = our_blas() if side == MLX_LM_LORA.name else ""
    python = options.mlx_lm_lora_python or MLX_LM_LORA.python()
    return peer_command(workload, folder, python, "mlx_lm_lora_grpo.py", ["--blas", blas] if blas else [])


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the sides alternately and print the table."""
    options = _options(arguments)
    run_comparison(_command, options, options.samples_per_prompt)


if __name__ == "__main__":
    main()
