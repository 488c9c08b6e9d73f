"""`ppo-workbench judge check`: hold the judge of a configuration against the labels of people."""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from trainer.config import Config, resolve_paths
from trainer.config.reward_sources import JudgeSource
from trainer.config.schema import RewardConfig
from trainer.errors import UsageError, counted
from trainer.events import plain
from trainer.files import may_exist
from trainer.preferences.store import STORE
from workbench.cli.config import configuration
from workbench.cli.parser import add
from workbench.system import output
from workbench.system.code_trust import is_given, require_trust, trusted_code
from workbench.text import aligned, number, percent, visible

if TYPE_CHECKING:
    from trainer.confidence import Interval
    from trainer.rewards.judge_check import JudgeReport


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the subcommand and its options."""
    actions = parser.add_subparsers(required=True, title="commands", metavar="")
    action = actions.add_parser("check", help="agreement with labels, bias to the left and to length; disputed pairs")
    action.set_defaults(execute=check, name=None)
    config = "configuration whose reward.sources have the judge (default: config.toml of a workspace)"
    add(action, "--config", help=config)
    add(action, "--set", "--trust-code", "--dir", "--json")
    action.add_argument("--store", metavar="FILE", help="the labels (default: preferences.db, in this folder)")
    pairs = "most labelled pairs to ask about, drawn at random (default: %(default)s)"
    add(action, "--limit", default=200, help=pairs)


def check(args: argparse.Namespace) -> int:
    """Print what the judge makes of the labels."""
    config = resolve_paths(configuration(args, Config), Path.cwd())
    source = next((one for one in config.reward.sources if isinstance(one, JudgeSource)), None)
    if source is None:
        raise UsageError(f"'{args.config}' has no judge: add one to reward.sources, or name another with --config")
    store = Path(args.store) if args.store else Path.cwd() / STORE
    if not may_exist(store):
        raise UsageError(f"no labels in '{store}': label some with ppo-workbench label, or name another with --store")
    require_trust(RewardConfig(sources=[source]), given=is_given(args))
    from trainer.rewards.judge_check import check_judge_against  # here, because it imports the HTTP client

    output.note(f"asking '{visible(source.model)}' about up to {counted(args.limit, 'pair')}")
    report = check_judge_against(source, store, most=args.limit, trust=trusted_code().check)
    output.data(json.dumps(plain(report), allow_nan=False) if args.json else "\n".join(report_lines(report)))
    return 0


def report_lines(report: JudgeReport) -> Iterator[str]:
    """Yield the lines of the report."""
    yield f"{visible(report.model)}, {report.mode}: {counted(report.pairs, 'labelled pair')}"
    yield ""
    rows = [
        ("", "share", "95% interval", ""),
        _row("prefers what the person preferred", report.agreement, "ties count half"),
    ]
    if report.mode == "pairwise":
        rows.append(_row("chooses the left side", report.left, "of its answers; 50% without a bias"))
        rows.append(_row("decides by the side alone", report.swayed, "of the pairs"))
    rows.append(_row("prefers the longer one", report.longer, "of the pairs that it decides"))
    rows.append(_row("people prefer the longer one", report.people_longer, "of the same pairs"))
    yield from aligned(rows, left=(0, 2, 3))
    yield ""
    yield f"ties {report.ties}, no answer {report.no_answer}, tokens {number(report.tokens, 0)}" + (
        f", cost {number(report.cost, 4)}" if report.cost else ""
    )
    if report.disputed:
        pairs = counted(len(report.disputed), "pair")
        yield f"{pairs} disputed: look at them again with {output.PROGRAM} label --queue disputed"


def _row(name: str, share: Interval, of: str) -> tuple[str, str, str, str]:
    return name, percent(share.value, 1), f"{percent(share.low, 1)} to {percent(share.high, 1)}", of
