"""Rule on the speed of a run."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import median, quantiles

from trainer.config.schema import Config
from trainer.events import Iteration
from trainer.monitoring import fixes
from trainer.monitoring.history import FIRST, History, mean_of
from trainer.monitoring.rule import Sign

SLOWER = 1.4
"""Tokens a second of the run's first tenth over the current ones. As in rlprobe."""
FEWEST, MOST = 5, 10
"""Bounds on the iterations at the start whose median is the baseline."""
NOW = 10
"""Newest iterations; their fastest quarter counts, because other programs that come and go do not matter. On two shared
cores healthy runs had up to 6 slow iterations in a row."""
LONG = 120.0
"""Seconds that those take at least: shorter slowdowns do not matter, and short runs are fast enough."""
SIMILAR = 1.25
"""Factor within which lengths and passes must agree for speeds to be comparable: short texts cost more a token."""
GROWN_MEMORY = 1.2


def throughput(history: History, config: Config) -> Sign | None:
    """Check whether the run has become slow at the same work; the first iteration compiles kernels and is ignored."""
    count = min(max(config.ppo.iterations // 10, FEWEST), MOST)
    rows = [row for row in history.speed.all_kept() if row.iteration > config.ppo.critic_warmup]
    if len(rows) < 1 + count + NOW:
        return None
    early, late = rows[1 : 1 + count], rows[-NOW:]
    before = median(row.tokens_per_second for row in early)
    now = quantiles((row.tokens_per_second for row in late), n=4)[2]
    if not before > SLOWER * now or not _same_work(early, late) or sum(map(_seconds, late)) < LONG:
        return None
    memory = [mean_of(rows, lambda row: row.memory_bytes) / 2**20 for rows in (early, late)]
    grown = memory[1] > GROWN_MEMORY * memory[0]
    phase, factor = _slowest(early, late)
    return Sign(
        "warning",
        f"{now:.3g} tokens/s at most in {NOW} iterations, {before:.3g} at the start: {phase} takes {factor:.2g} times "
        "what it did" + (f", and memory has grown from {memory[0]:.0f} to {memory[1]:.0f} MiB" if grown else ""),
        {"tokens_per_second": now, "early_tokens_per_second": before, "memory_mib": memory[1]},
        (
            "Memory grows, so the machine may be swapping: a smaller optim.micro_batch_tokens in a new run."
            if grown
            else "The same work takes longer: look for other programs on this machine, for heat, and for a reward "
            "function that gets slower."
        ),
        [fixes.pause()],
    )


def _seconds(row: Iteration) -> float:
    return sum(row.seconds.values())


def _same_work(early: Sequence[Iteration], late: Sequence[Iteration]) -> bool:
    def similar(a: float, b: float) -> bool:
        return not (a > SIMILAR * b or b > SIMILAR * a)  # NaN, as in older journals, counts as similar

    lengths = (mean_of(rows, lambda row: row.response_length) for rows in (early, late))
    passes = (mean_of(rows, lambda row: row.epochs_done) for rows in (early, late))
    return similar(*lengths) and similar(*passes)


def _slowest(early: Sequence[Iteration], late: Sequence[Iteration]) -> tuple[str, float]:
    """Return the phase whose time has grown most, and the factor."""

    def seconds(rows: Sequence[Iteration], phase: str) -> float:
        return median(row.seconds.get(phase, 0.0) for row in rows)

    phases = {phase: (seconds(early, phase), seconds(late, phase)) for phase in late[-1].seconds}
    phase = max(phases, key=lambda name: phases[name][1] - phases[name][0], default="an iteration")
    before, now = phases.get(phase, (1.0, SLOWER))
    return phase, now / before if before else SLOWER


assert FIRST > MOST  # so the history keeps the whole baseline
