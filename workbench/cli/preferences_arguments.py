"""Options of `ppo-workbench preferences`, defined without importing the command itself."""

from __future__ import annotations

import argparse
from typing import Any

from workbench.labelling.formats import FORMATS_IN, FORMATS_OUT


def add_preferences(commands: Any, parser_class: type[argparse.ArgumentParser]) -> None:
    """Add the command and its subcommands to `commands`."""
    preferences = commands.add_parser("preferences", help="import, export and describe what people prefer")
    actions = preferences.add_subparsers(
        dest="action", required=True, title="commands", metavar="", parser_class=parser_class
    )
    _add_import(actions)
    _add_export(actions)
    card = actions.add_parser("card", help="print a data card in Markdown: counts, lengths, agreement")
    _add_choice(card)
    agreement = actions.add_parser("agreement", help="how far labellers agree, with each other and with themselves")
    agreement.add_argument("--json", action="store_true", help="print one JSON object")
    actions.add_parser("check", help="look for damage; exit code 3 where there is some")
    listing = actions.add_parser("list", help="print the newest preferences")
    _add_choice(listing)
    listing.add_argument("--limit", metavar="N", type=int, default=20, help="at most so many (default: %(default)s)")
    listing.add_argument("--json", action="store_true", help="everything that is known of each, one JSON object a line")
    for action in actions.choices.values():
        action.add_argument("--store", metavar="FILE", help="the store (default: preferences.db, in this folder)")


def _add_import(actions: Any) -> None:
    command = actions.add_parser("import", help="read preferences from a file or a dataset into the store")
    command.add_argument(
        "source",
        metavar="SOURCE",
        help=".jsonl, .jsonl.gz, .json, .csv or .parquet file, folder of a saved dataset, or a datasets name",
    )
    command.add_argument(
        "--format", choices=FORMATS_IN, default="auto", help="default: by the columns of the first row"
    )
    command.add_argument("--split", default="train", help="of a dataset (default: %(default)s)")
    command.add_argument(
        "--column",
        dest="columns",
        metavar="ROLE=NAME",
        action="append",
        default=[],
        help="what the source calls a column, as in prompt=question; also chosen, rejected, a, b, choice, strength, "
        "labeller, note",
    )
    command.add_argument("--conversational", action="store_true", help="turn text and transcripts into chat messages")
    command.add_argument("--labeller", metavar="NAME", help="who judged, where the source does not say")
    command.add_argument("--skip-broken", action="store_true", help="leave broken rows out, and tell how many")
    command.add_argument("--dry-run", action="store_true", help="read and report, and keep nothing")


def _add_export(actions: Any) -> None:
    command = actions.add_parser("export", help="write preferences for other trainers, or all that is known of them")
    command.add_argument("file", metavar="FILE", help="the suffix says how: .jsonl, .parquet, or .csv for columns")
    command.add_argument("--format", choices=FORMATS_OUT, required=True, help="k-way alone loses nothing")
    command.add_argument(
        "--ties",
        choices=("keep", "drop"),
        default="keep",
        help="keep where the format can hold them (default), or drop",
    )
    command.add_argument(
        "--provenance", action="store_true", help="add columns with origins, judgement and the source's other columns"
    )
    _add_choice(command)
    command.add_argument("--force", action="store_true", help="overwrite FILE")


def _add_choice(command: argparse.ArgumentParser) -> None:
    command.add_argument("--labeller", metavar="NAME", help="only what this one judged")
    command.add_argument("--source", metavar="SOURCE", help="only what was imported from there")
