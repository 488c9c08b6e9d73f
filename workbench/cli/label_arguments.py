"""Options of `ppo-workbench label`, defined without importing the command itself."""

from __future__ import annotations

from typing import Any

from workbench.cli.runs_dir import add_dir

QUEUES = ("samples", "policy-reference", "dataset", "uncertain", "disagreement")


def add_label(commands: Any) -> None:
    """Add the command to `commands`."""
    label = commands.add_parser("label", help="judge which completion is better, one key a decision")
    label.add_argument(
        "--labeller", metavar="NAME", help="who judges (default: the last one of the store, else your login name)"
    )
    label.add_argument("--run", metavar="RUN", help="whose samples are judged: a folder or name (default: the newest)")
    label.add_argument(
        "--data", metavar="SOURCE", help="pairs of a .jsonl, .json, .csv or .parquet file, a folder or a datasets name"
    )
    label.add_argument(
        "--queue",
        dest="queues",
        metavar="NAME[=WEIGHT]",
        nargs="+",
        action="extend",
        default=[],
        help=f"what is asked, in shares by weight: {', '.join(QUEUES)} (default: samples of a run, pairs of --data)",
    )
    label.add_argument(
        "--model",
        dest="models",
        metavar="RUN",
        nargs="+",
        action="extend",
        default=[],
        help="reward models for uncertain (the first) and disagreement (default: the newest)",
    )
    add_dir(label)
    label.add_argument("--guidelines", metavar="FILE", help="text to judge by; it is shown, and kept with the labels")
    label.add_argument("--store", metavar="FILE", help="the store (default: preferences.db, in this folder)")
    label.add_argument("--limit", metavar="N", type=int, help="at most so many items (default: all)")
    label.add_argument(
        "--repeats",
        metavar="SHARE",
        type=float,
        help="of the items that ask for an earlier label of yours again (default: 0.05)",
    )
