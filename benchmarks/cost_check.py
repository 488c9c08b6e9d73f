"""Compare `cost_model.py` with PPO on one rank and on two, which exchange over the loopback of this machine.

Run: .venv/bin/python benchmarks/cost_check.py [--iterations 3] [--new 32] [--epochs 2]

The starter model with the quickstart's adapter; each rank has one core and one thread for products. Before each
iteration, all ranks measure at the same time how fast their cores multiply and read memory, and how long the loopback
takes for small and large sums. The predictions are made from these figures, with the shares of docs/benchmarks.md.

Durations of the phases are processor time, because other programs may share the cores; those of exchanges are on the
clock, each on the rank that came last to it, for which the others wait. All are the shortest of the iterations, before
which one more runs. Linux only.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

sys.path.append(str(Path(__file__).resolve().parent.parent / "tests" / "support"))

SUMMED, GATHERED = 2**22, 2**18  # numbers of 4 bytes
PHASES = {"rollout": "generate", "scoring": "score", "update": "update"}
Rank = list[dict[str, Any]]  # what a rank has measured in each iteration


def train(options: argparse.Namespace) -> Rank:
    """Train as one of the ranks; return what was measured in each iteration but the first."""
    import trainer  # noqa: F401  loads the BLAS, before anything imports mlx

    # isort: split
    import mlx.core as mx
    from bench_limit import limit

    from trainer.arrays import to_list
    from trainer.config.loading import parse_overrides
    from trainer.config.problems import validate
    from trainer.control.control import Control
    from trainer.data import encode_prompts, load_prompts
    from trainer.distributed.ranks import Ranks
    from trainer.models.actor_critic import ActorCriticLLM
    from trainer.models.backbone import load_backbone
    from trainer.ppo.loop import PPO
    from trainer.rewards import build_rewards

    class Timed(Ranks):
        """Ranks that note each exchange."""

        def begin(self) -> None:
            super().begin()
            self.noted: list[tuple[str, int, float]] = []  # operation, bytes, seconds

        def _exchange(self, operation: Any, array: mx.array) -> mx.array:
            before = self.seconds
            found = super()._exchange(operation, array)
            self.noted.append((operation.__name__, array.nbytes, self.seconds - before))
            return found

    class OnCore(Control):
        """Control whose clock is the processor time of this process."""

        def clock(self) -> float:
            return time.process_time()

    ranks = Timed(mx.distributed.init(strict=True) if options.ranks > 1 else None)
    config = validate(parse_overrides(settings(options)))
    model = load_backbone(config.model)
    prompts = encode_prompts(load_prompts(config.data), model.tokenizer, config.data).prompts
    actor = ActorCriticLLM(model.backbone, config.model, key=mx.random.key(0))
    rewards = build_rewards(config.reward, ranks=ranks)
    ppo = PPO(config, actor, model.tokenizer, prompts, rewards, control=OnCore(), ranks=ranks)
    row, matrix = mx.ones((1, 4096)), mx.ones((16384, 4096))
    large, small = mx.ones((SUMMED,)), mx.ones((options.ranks,))
    mx.eval(row, matrix, large, small)
    found = []
    for number in range(1, options.iterations + 2):
        ranks.gather(number)  # so that all measure at the same time
        rate = limit(time.process_time)
        read = matrix.nbytes / best(lambda: mx.eval(row @ matrix.T), time.process_time)
        sums = [best(lambda array=array: mx.eval(ranks.summed(array))) for array in (small, large)]
        result = ppo.iteration(number)
        prompt = sum(to_list(result.batch.prompt_lengths)) / result.batch.size
        measured = {"rate": rate, "read": read, "sums": sums, "prompt": prompt}
        found.append(measured | {"seconds": result.metrics.seconds, "noted": list(ranks.noted)})
    return found[1:]


def count(options: argparse.Namespace) -> Rank:
    """Return the bytes that the loopback has sent for a sum and for a gathering."""
    import mlx.core as mx

    mx.distributed.init(strict=True)
    arrays = {"all_sum": mx.ones((SUMMED,)), "all_gather": mx.ones((GATHERED,))}
    found = dict.fromkeys(arrays, 2**62)
    for name, array in [*arrays.items()] * options.iterations:
        before = sent_over_loopback()
        mx.eval(mx.distributed.all_sum(mx.ones((options.ranks,))))  # nobody begins before all have looked
        mx.eval(getattr(mx.distributed, name)(array))
        mx.eval(mx.distributed.all_sum(mx.ones((options.ranks,))))
        found[name] = min(found[name], sent_over_loopback() - before)
    return [found]


def sent_over_loopback() -> int:
    """Return the bytes that the loopback has sent for all processes."""
    return int(Path("/sys/class/net/lo/statistics/tx_bytes").read_text())


def best(call: Callable[[], object], clock: Callable[[], float] = time.perf_counter) -> float:
    """Return the shortest of ten durations of a call, seconds."""
    durations = []
    for _ in range(10):
        started = clock()
        call()
        durations.append(clock() - started)
    return min(durations)


def settings(options: argparse.Namespace) -> list[str]:
    """Return the settings of the run."""
    return [
        "model.dtype=float32",
        "model.lora_targets=['q_proj','k_proj','v_proj','o_proj']",
        "rollout.ignore_stop=true",
        f"rollout.max_new_tokens={options.new}",
        f"ppo.epochs={options.epochs}",
    ]


def measured(work: str, ranks: int, options: argparse.Namespace) -> list[Rank]:
    """Return what the ranks have measured, each in a process of its own."""
    from ranks_helper import ended, started

    os.environ |= dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"), "1")
    arguments = [f"--{name}={getattr(options, name)}" for name in ("iterations", "new", "epochs")]
    command = [__file__, *arguments, "--work", work, f"--ranks={ranks}"]
    commands = [[*command, f"--core={rank}"] for rank in range(ranks)]
    with tempfile.TemporaryDirectory(prefix="cost-check-") as folder, started(Path(folder), commands) as processes:
        results = ended(Path(folder), processes, 590.0)
    for result in results:
        if result.code:
            raise SystemExit(result.err)
    return [json.loads(result.out) for result in results]


def compare(found: list[Rank], options: argparse.Namespace) -> list[dict[str, float]]:
    """Print predicted and measured seconds of each part; return both."""
    from cost_model import Device, Link, Task, exchanges, iteration

    from trainer.config.loading import parse_overrides
    from trainer.config.problems import validate
    from trainer.memory.shape import STARTER, decoder_shape

    ranks, everything = len(found), [one for rank in found for one in rank]
    prompt = round(sum(one["prompt"] for one in everything) / len(everything))
    task = Task(decoder_shape(STARTER), validate(parse_overrides(settings(options))), prompt, options.new)
    rate, read = (max(one[name] for one in everything) for name in ("rate", "read"))
    device = Device(0, read, rate, decodes=1, reaches=1, scores=435, trains=511, launch=1e-3)
    print(f"\n{ranks} on one core each: {rate / 1e9:.0f} GFLOP/s, reading {read / 1e9:.1f} GB/s")
    runs = range(len(found[0]))
    seen = {part: min(max(rank[i]["seconds"][phase] for rank in found) for i in runs) for part, phase in PHASES.items()}
    link = None
    if ranks > 1:
        small, large = (min(one["sums"][place] for one in everything) for place in (0, 1))
        link = Link(4 * SUMMED * 2 * (ranks - 1) / ranks / (large - small), 1.0, small / (2 * (ranks - 1)))
        print(f"loopback: {link.bandwidth / 1e9:.2f} GB/s, {link.latency * 1e6:.0f} us a message")
        expected, noted = exchanges(task, ranks), [one["noted"] for one in everything]
        if any([name for name, *_ in one] != [each.operation for each in expected] for one in noted):
            raise SystemExit(f"the exchanges are not those of the model: {[one[:2] for one in noted[0]]}")
        print_bytes(expected, found[0][-1]["noted"])
        shortest = [min(each) for each in zip(*([one[2] for one in each] for each in noted), strict=True)]
        for part in ("gradient", "other"):
            seen[part] = sum(time for time, one in zip(shortest, expected, strict=True) if one.part == part)
    predicted = iteration(task, device, ranks, link)._asdict()
    print_ratios("", predicted, seen)
    return [predicted, seen]


def print_bytes(expected: list[Any], noted: list[Any]) -> None:
    """Print the bytes that a rank gives to exchanges, by kind."""
    print("\n| bytes of one rank | predicted | measured |\n|---|---|---|")
    for part, operation in [("gradient", "all_sum"), *(("other", f"all_{name}") for name in ("sum", "gather", "max"))]:
        places = [i for i, one in enumerate(expected) if (one.part, one.operation) == (part, operation)]
        sizes = sum(expected[i].size for i in places), sum(noted[i][1] for i in places)
        print(f"| {part}: {len(places)} x {operation} | {sizes[0]:,} | {sizes[1]:,} |")


def print_ratios(source: str, predicted: dict[str, float], seen: dict[str, float]) -> None:
    """Print predicted and measured seconds of each part."""
    print(f"\n| part | predicted{source} s | measured s | measured / predicted |\n|---|---|---|---|")
    for part, seconds in seen.items():
        print(f"| {part} | {predicted[part]:.3g} | {seconds:.3g} | {seconds / predicted[part]:.2f} |")


def main() -> None:
    """Measure and print the tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name, default in {"iterations": 3, "new": 32, "epochs": 2}.items():
        parser.add_argument(f"--{name}", type=int, default=default)
    for name in ("work", "ranks", "core"):
        parser.add_argument(f"--{name}", type=str if name == "work" else int, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.work:
        os.sched_setaffinity(0, {sorted(os.sched_getaffinity(0))[options.core % len(os.sched_getaffinity(0))]})
        print(json.dumps(train(options) if options.work == "train" else count(options)))
        return
    print("| ranks | sum of 16.8 MB: predicted bytes of all | counted | gathering of 1 MB: predicted | counted |")
    print("|---|---|---|---|---|")
    for ranks in (2, 3, 4):
        found = [one[0] for one in measured("count", ranks, options)]
        counted = {name: min(one[name] for one in found) for name in found[0]}
        wire = {"all_sum": 2 * (ranks - 1) * 4 * SUMMED, "all_gather": ranks * (ranks - 1) * 4 * GATHERED}
        print(f"| {ranks} | " + " | ".join(f"{wire[name]:,} | {counted[name]:,}" for name in wire) + " |")
    alone, two = (compare(measured("train", ranks, options), options) for ranks in (1, 2))
    scaled = {part: alone[1][part] * two[0][part] / alone[0][part] for part in PHASES}
    print("\nTwo ranks, predicted from the measured seconds of one:")
    print_ratios(" from one rank", scaled, {part: two[1][part] for part in PHASES})
    print(f"\nload {os.getloadavg()[0]:.1f}")


if __name__ == "__main__":
    main()
