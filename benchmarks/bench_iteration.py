"""Compare one PPO iteration with TRL's PPOTrainer: same machine, model, prompts, lengths, epochs and adapter."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path

from comparison import comparison_parser, run_comparison
from peers import TRL
from workload import Workload, our_command, peer_command

SIDES = ("ours", "trl")


def _options(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = comparison_parser(__doc__, SIDES)
    add = parser.add_argument
    add("--value-model", choices=("head", "adapter"), default="head", help="critic of our side (model.value_model)")
    add("--trl-reward-model", action="store_true", help="score TRL's responses with a model instead of the lexicon")
    add(
        "--trl-value-lora",
        action="store_true",
        help="train only an adapter and the head of TRL's value model",
    )
    return parser.parse_args(arguments)


def _command(side: str, workload: Workload, folder: Path, options: argparse.Namespace) -> list[str]:
    if side == "ours":
        return our_command(workload, folder, {"model": {"value_model": options.value_model}})
    chosen = {"--reward-model": options.trl_reward_model, "--value-lora": options.trl_value_lora}
    flags = [flag for flag, is_on in chosen.items() if is_on]
    return peer_command(workload, folder, options.trl_python or TRL.python(), "trl_ppo.py", flags)


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the sides alternately and print the table."""
    run_comparison(_command, _options(arguments))


if __name__ == "__main__":
    main()
