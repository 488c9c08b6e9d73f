"""Options of `ppo-workbench reward-model`, defined without importing the command itself."""

from __future__ import annotations

import argparse
from typing import Any

from workbench.cli.runs_dir import add_dir

_SOURCE = "preferences.db, a .jsonl, .jsonl.gz, .json, .csv or .parquet file, a folder or a datasets name"


def add_reward_model(commands: Any, parser_class: type[argparse.ArgumentParser]) -> None:
    """Add the command and its subcommands to `commands`."""
    reward_model = commands.add_parser("reward-model", help="learn from preferences what people like, and score by it")
    actions = reward_model.add_subparsers(
        dest="action", required=True, title="commands", metavar="", parser_class=parser_class
    )
    _add_train(actions)
    evaluate = actions.add_parser("eval", help="print how good a reward model is on held-out preferences")
    evaluate.add_argument("run", metavar="RUN", help="the run's folder or name, or a checkpoint's folder")
    evaluate.add_argument("--data", metavar="SOURCE", help=f"{_SOURCE} (default: what the run held out)")
    evaluate.add_argument("--json", action="store_true", help="print one JSON object")
    add_dir(evaluate)
    score = actions.add_parser("score", help="score completions, one JSON object a line")
    score.add_argument("run", metavar="RUN", help="the run's folder or name, or a checkpoint's folder")
    score.add_argument("--prompt", metavar="TEXT", help="what is completed")
    score.add_argument("--completion", metavar="TEXT", action="append", default=[], help="may be given several times")
    score.add_argument("--data", metavar="FILE", help="a file whose rows have a prompt and a completion")
    add_dir(score)


def _add_train(actions: Any) -> None:
    train = actions.add_parser("train", help="train a reward model")
    train.add_argument("--data", metavar="SOURCE", help=f"{_SOURCE} (default: preferences.db)")
    # Also accepted before the command: an absent one here must not override the one there.
    train.add_argument(
        "--config", dest="config_given", metavar="FILE", default=argparse.SUPPRESS, help="TOML file (default: none)"
    )
    train.add_argument(
        "--set", dest="overrides_after", metavar="KEY=VALUE", action="append", default=[], help="change one field"
    )
    train.add_argument(
        "--name", default=argparse.SUPPRESS, help="name of the run's folder (default: reward-model and a number)"
    )
    train.add_argument("--resume", metavar="RUN", default=argparse.SUPPRESS, help="go on with a run: folder or name")
    add_dir(train)
    train.add_argument(
        "--display",
        choices=("rich", "plain", "json"),
        default=argparse.SUPPRESS,
        help="how to show the run (default: rich on a terminal, plain elsewhere)",
    )
