"""Options of `ppo-workbench evaluate`, defined without importing the command itself."""

from __future__ import annotations

import argparse
from typing import Any

from workbench.cli.runs_dir import add_dir

TRUST_CODE = "run the Python files that the reward names, and trust them as they are now from here on"


def add_evaluate(commands: Any) -> None:
    """Add the command to `commands`."""
    evaluate = commands.add_parser("evaluate", help="compare any checkpoint of a run with its reference")
    evaluate.add_argument("run", metavar="RUN", help="the run's folder, or its name; of PPO or DPO")
    evaluate.add_argument(
        "--checkpoint", metavar="N", default="last", help="number of an iteration, best, or last (default: last)"
    )
    evaluate.add_argument(
        "--prompts",
        metavar="N_OR_FILE",
        help="so many of the held-out prompts, or all of a file (default: eval.prompts of the held-out ones)",
    )
    evaluate.add_argument(
        "--samples", metavar="K", type=int, default=1, help="responses to each prompt (default: %(default)s)"
    )
    evaluate.add_argument(
        "--best-of", metavar="N", type=int, help="best of so many of the reference (default: the run's eval.best_of)"
    )
    evaluate.add_argument("--average", action="store_true", help="judge the moving average of the policy")
    evaluate.add_argument(
        "--seed", metavar="N", type=int, help="of the draws (default: the run's own, as in its evaluations)"
    )
    evaluate.add_argument(
        "--reward", metavar="SOURCE", help="score by 'file.py:function', 'lexicon' or a list for reward.sources instead"
    )
    evaluate.add_argument("--trust-code", action="store_true", default=argparse.SUPPRESS, help=TRUST_CODE)
    add_dir(evaluate)
    evaluate.add_argument("--json", action="store_true", help="print one JSON object")
