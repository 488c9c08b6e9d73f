"""`ppo-workbench reward-bench`: what a reward makes of a run's stored samples, and what games it."""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from trainer.errors import counted, shortened
from trainer.events import plain
from trainer.runs.folder import open_run
from workbench.cli.config import runs_dir
from workbench.cli.parser import add, whole_number
from workbench.system import output
from workbench.system.code_trust import require_trust, trusted_code
from workbench.text import aligned, number, percent, visible

if TYPE_CHECKING:
    from trainer.engine.reward_bench import Attack, Judged, RewardBench

_STORE = Path("preferences.db")
_FEW = 30  # labelled pairs: fewer tell nothing
_STRONG = 0.5  # rank correlation with the length that deserves a word


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the options of the command."""
    parser.set_defaults(execute=run)
    add(parser, "run", help="the folder or name of a run that stored samples")
    reward = "'file.py:function', 'lexicon' or a list for reward.sources (default: the run's own)"
    parser.add_argument("--reward", metavar="SOURCE", default="", help=reward)
    samples = "about how many stored responses to score (default: %(default)s)"
    parser.add_argument("--samples", metavar="N", type=whole_number(2), default=512, help=samples)
    labels = f"store of labels to compare with (default: {_STORE}, if there is one)"
    parser.add_argument("--labels", metavar="DB", type=Path, help=labels)
    add(parser, "--trust-code", "--dir", "--json")


def run(args: argparse.Namespace) -> int:
    """Print the report."""
    folder = open_run(args.run, runs_dir(args))
    # Imported here, because this imports mlx: mistakes in the command line are reported first.
    from trainer.engine.checkpoint_evaluation import config_of
    from trainer.engine.reward_bench import bench_reward

    require_trust(config_of(folder, args.reward).reward, given=args.trust_code or bool(args.reward))
    labels = args.labels or (_STORE if _STORE.is_file() else None)
    trust = trusted_code().check
    report = bench_reward(folder, args.reward, samples=args.samples, labels=labels, trust=trust)
    output.data(json.dumps(plain(report), allow_nan=False) if args.json else "\n".join(report_lines(report)))
    return 0


def report_lines(report: RewardBench) -> Iterator[str]:
    """Yield the lines of the report, what training would exploit first."""
    told = f"{counted(report.responses, 'stored response')} to {counted(report.prompts, 'prompt')}"
    yield f"{visible(report.run)}: {told}, {report.seconds_per_thousand:.3g} s a thousand"
    yield ""
    yield from _verdict(report)
    yield ""
    numbers = {"mean": report.mean, "deviation": report.deviation, **report.quantiles}
    yield from aligned([("score", *numbers), ("", *(number(value, 3) for value in numbers.values()))])
    yield ""
    rows = [
        ("equal scores, of all pairs", percent(report.ties, 1)),
        ("rank correlation with length", number(report.with_length, 2)),
        ("rank correlation with the run's own score", number(report.with_old, 2)),
    ]
    if report.groups:
        rows.append(("groups whose responses all score alike", f"{report.dead_groups} of {report.groups}"))
    if report.unscored:
        rows.append(("responses it does not apply to", f"{report.unscored} of {report.responses}"))
    if report.labelled_pairs:
        share, low, high = (percent(bound, 0) for bound in report.labels)
        few = ": too few to tell" if report.labelled_pairs < _FEW else ""
        rows.append(
            ("agrees with labels", f"{share} of {counted(report.labelled_pairs, 'pair')}, {low} to {high}{few}")
        )
    yield from aligned(rows)
    yield ""
    yield from aligned(
        [
            ("a response changed to", "score", "95% interval", "scores more"),
            *((visible(one.name), *_gain(one)) for one in report.attacks),
        ]
    )
    for title, samples in (("it likes most", report.most_liked), ("it likes least", report.least_liked)):
        yield ""
        yield title
        for sample in samples:
            yield from _sample_lines(sample)


def _verdict(report: RewardBench) -> Iterator[str]:
    """Yield in words what training would exploit, and what else speaks against the reward."""
    if report.exploits:
        yield "Training will exploit it:"
        yield from aligned([(f"  {visible(one.name)}", f"{one.gain.value:+.2f} a response") for one in report.exploits])
    if report.unnoticed:
        yield "It does not mind:"
        yield from (f"  {visible(one.name)}" for one in report.unnoticed)
    for one in report.attacks:
        if one.error:
            yield f"It fails on {visible(one.name)}: {visible(one.error)}"
    if report.with_length > _STRONG:
        yield f"It follows the length: longer responses score more (rank correlation {report.with_length:.2f})."
    if report.groups and report.dead_groups * 2 > report.groups:
        yield "Most groups score alike: without a critic they teach nothing."
    if not (report.deviation > 0):
        yield "All responses score alike: it teaches nothing here."


def _gain(one: Attack) -> tuple[str, str, str]:
    value, low, high = one.gain
    return f"{value:+.3f}", f"{low:+.3f} to {high:+.3f}", percent(one.raised, 0)


def _sample_lines(sample: Judged) -> Iterator[str]:
    where = f"iteration {sample.iteration}, row {sample.row}, was {number(sample.old_score, 3)}"
    yield f"  {number(sample.score, 3)}  {where}"
    yield f"         {visible(shortened(' '.join(sample.completion.split()), 88))}"
    for name, value in sample.extra.items():
        if value not in (None, ""):
            yield f"         {visible(name)}: {visible(shortened(str(value), 90))}"
