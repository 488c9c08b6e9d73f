"""Compare memory and time of an iteration with and without gradient checkpointing.

Run: .venv/bin/python benchmarks/bench_grad_checkpoint.py [NAME ...] [--rounds 2]

The model has the shape of the starter model and random weights; responses never stop. Both ways run in turns in one
process, after a warm-up of each. Times are medians, of one epoch of the update (a pass over the batch with its
optimiser step) and of a whole iteration with the four epochs of the default, three of which are counted, not run.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from statistics import median
from typing import Any, NamedTuple

from bench_memory import F32, SMOLLM2
from memory_runs import Case, new_ppo

from trainer.config.loading import load_config, parse_overrides
from trainer.ppo.loop import PPO

EPOCHS = 4  # the default of ppo.epochs


def case(rows: int, prompt: int, responses: int) -> Case:
    """Return a case of `rows` sequences in one micro-batch."""
    tokens = rows * (prompt + responses)
    settings = (
        f"rollout.batch_size={rows}",
        f"rollout.max_new_tokens={responses}",
        f"data.max_prompt_tokens={prompt}",
        f"optim.micro_batch_tokens={tokens}",
        "ppo.epochs=1",
        F32,
    )
    return Case(SMOLLM2, prompt, settings)


CASES = {  # sequences x tokens
    "8 x 64": case(8, 32, 32),
    "2 x 512": case(2, 448, 64),
    "1 x 1024": case(1, 960, 64),
    "4 x 1024": case(4, 960, 64),
    "1 x 2048": case(1, 1984, 64),
}


class Measured(NamedTuple):
    """Measurements of one iteration."""

    peak: float  # MB, of the update
    update: float  # seconds of an epoch
    rest: float  # seconds of the other phases


def main() -> None:
    """Measure the named cases, or all, and print a table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"of {', '.join(CASES)}")
    parser.add_argument("--rounds", type=int, default=2, help="iterations of each way (default: %(default)s)")
    options = parser.parse_args()
    print("| sequences x tokens | checkpointing | peak of the update, MB | epoch, s | iteration, s |")
    print("|---|---|---|---|---|")
    for name in options.names or CASES:
        for line in lines(name, CASES[name], options.rounds):
            print(line, flush=True)


def lines(name: str, case: Case, rounds: int) -> Iterator[str]:
    """Yield a line for each way."""
    config = load_config("quickstart", parse_overrides(case.settings))
    ppo = new_ppo(case, config)
    found: dict[bool, list[Measured]] = {False: [], True: []}
    for number in range(2 * rounds + 2):
        on = number % 2 == 1
        optim = config.optim.model_copy(update={"grad_checkpoint": on})
        ppo.configure(config.model_copy(update={"optim": optim}))
        found[on].append(measured(ppo, number + 1))
    before: Measured | None = None
    for on, every in found.items():
        mean = Measured(*map(median, zip(*every[1:], strict=True)))
        iterations = [one.rest + EPOCHS * one.update for one in every[1:]]
        share = f" ({mean.peak / before.peak:.0%})" if before else ""
        slower = f" ({mean.update / before.update:.2f} x)" if before else ""
        yield (
            f"| {name} | {'on' if on else 'off'} | {mean.peak:,.0f}{share} | {mean.update:.2f}{slower} "
            f"| {median(iterations):.1f} |"
        )
        before = mean


def measured(ppo: PPO, number: int) -> Measured:
    """Run iteration `number`."""
    metrics: Any = ppo.iteration(number).metrics
    update = metrics.seconds["update"]
    return Measured(metrics.memory["update"] / 1e6, update, sum(metrics.seconds.values()) - update)


if __name__ == "__main__":
    main()
