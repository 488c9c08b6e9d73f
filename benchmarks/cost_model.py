"""Estimate the seconds of a PPO iteration on several machines, from published figures alone.

Run: .venv/bin/python benchmarks/cost_model.py [--devices "M3 Ultra" H100] [--models 8B] [--machines 1 2 8 64]
         [--prompt 256] [--new 512] [--set ppo.epochs=2 model.lora_rank=32 model.lora_targets="['q_proj']" ...]

Nothing here was measured on a link between machines; `cost_check.py` compares the parts with two ranks on one machine.

- Decoding a token reads the weights and the caches of its rows, at a share of the memory's bandwidth, and takes a fixed
  time a layer to start its kernels. It is never faster than its matrix products.
- The prompts' pass, scoring and update take the operations of their matrix products (`operations.py`), at a share of
  the published rate. Products grow with the square of a model's width and everything else with the width, so the share
  is reaches * width / (width + half), where a model of width `half` spends half of its time on everything else.
- A ring of n machines sums S bytes in 2 (n - 1) messages of S / n bytes, and gathers S bytes of each in n - 1 of S.
- All sequences are equally long, so no machine waits for another; with other lengths, the slowest counts.
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Literal, NamedTuple

from machines import DEVICES, LINKS, MODELS, Device, Link
from operations import Work, counted

from trainer.config import Config
from trainer.config.loading import parse_overrides
from trainer.config.problems import validate
from trainer.errors import TrainerError
from trainer.memory.footprint import footprint
from trainer.memory.passes import adapter_parameters, held_model
from trainer.memory.shape import ModelShape

GIGA = 1e9
JSON_BYTES = 33  # of a generated token in an exchange: its id, its log-prob and its text


SMALLER = {  # what to try until a model fits, in this order
    "bfloat16": (),
    "bfloat16, checkpointed": ("optim.grad_checkpoint=true",),
    "4 bits": ("model.quantize=4-bit",),
    "4 bits, checkpointed": ("model.quantize=4-bit", "optim.grad_checkpoint=true"),
}


class Task(NamedTuple):
    """What an iteration works on: a model, a configuration, and tokens of each prompt and response."""

    shape: ModelShape
    config: Config
    prompt: int
    new: int


class Exchange(NamedTuple):
    """A collective operation. size: bytes that each machine gives to it."""

    part: Literal["gradient", "other"]
    operation: Literal["all_sum", "all_max", "all_gather"]
    size: int


class Seconds(NamedTuple):
    """Duration of the parts of an iteration."""

    rollout: float
    scoring: float
    update: float
    gradient: float = 0.0  # all-reduce of the adapter's gradient
    other: float = 0.0  # exchanges

    @property
    def total(self) -> float:
        """Duration of the iteration."""
        return sum(self)


def exchanges(task: Task, machines: int) -> list[Exchange]:
    """Return the exchanges of `PPO.iteration` with built-in rewards, in their order."""
    config, new = task.config, task.new
    ppo, rows = config.ppo, config.rollout.batch_size
    critic, kept = ppo.estimator == "gae", config.run.alternatives if config.run.save_samples else 0
    apart = critic and config.model.value_model == "adapter"
    tokens = rows * new

    def gather(size: int) -> list[Exchange]:
        return [Exchange("other", "all_gather", 4), Exchange("other", "all_gather", size)]  # first the length

    def summed(numbers: int, part: Literal["gradient", "other"] = "other") -> Exchange:
        return Exchange(part, "all_sum", 4 * numbers)

    word, agreed = gather(len('{"do": "go"}')), gather(len("null"))
    found = [*word, *agreed, *gather(JSON_BYTES * new * math.ceil(rows / machines))]
    scored_at_once = not critic and ppo.kl_in == "loss" and ppo.minibatches == 1
    by_token = 2 + 2 * kept + 1  # log-probs and entropy; those of the alternatives; the reference's log-prob
    if not scored_at_once:
        scores = tokens * (by_token + 1 + critic) + rows * critic  # KL and values, and the value of the last state
        found += [*word, *agreed, summed(scores), *([summed(tokens * kept)] if kept else [])]
    found += [*word, *word]  # of reward and update
    adapter, head, sums = adapter_parameters(config.model, task.shape), task.shape.hidden + 1, 7
    ratios = tokens // ppo.minibatches
    for step in range(ppo.epochs * ppo.minibatches):
        sizes = [adapter + head + sums + ratios] if critic and not apart else [adapter + sums + ratios]
        if apart:
            sizes.append(adapter + head + sums)
        at_once = scored_at_once and step == 0
        for size in sizes:
            found += [*agreed, summed(size + tokens * by_token * at_once, "gradient")]
            found += [summed(tokens * kept)] if at_once and kept else []
            found.append(Exchange("other", "all_max", 8))
    if config.run.final_ratios and config.run.save_samples:
        found += [*agreed, summed(ratios)] * ppo.minibatches
    return found + gather(120)  # what each machine has done


def exchange_seconds(exchange: Exchange, link: Link, machines: int) -> float:
    """Return the seconds of an exchange on a ring."""
    messages, size = machines - 1, float(exchange.size)
    if exchange.operation != "all_gather":
        messages, size = 2 * messages, size / machines
    return messages * (link.latency + size / (link.bandwidth * link.share))


def decoding_seconds(task: Task, device: Device, rows: int, work: Work) -> float:
    """Return the seconds to decode the responses of `rows` sequences, `rollout.slots` at a time. work: of one."""
    shape, total = task.shape, 0.0
    model = held_model(task.config.model, shape, gpu=True)
    weights = model.weights * (1 if shape.tied else 1 - shape.vocabulary * shape.hidden / shape.parameters)
    cache = 2 * shape.layers * shape.kv_heads * shape.head_size * model.width * (task.prompt + task.new / 2)
    while rows > 0:
        together = min(rows, task.config.rollout.slots)
        read = task.new * (weights + together * cache) / (device.bandwidth * device.decodes)
        multiplied = together * work.decode / device.rate(shape, device.scores)
        total += max(read, multiplied) + task.new * shape.layers * device.launch
        rows -= together
    return total


def iteration(task: Task, device: Device, machines: int = 1, link: Link | None = None) -> Seconds:
    """Return the seconds of an iteration, of which each machine computes an equal share."""
    config = task.config
    work = counted(task.shape, config, [task.prompt], [task.new])  # of one sequence
    rows = math.ceil(config.rollout.batch_size / machines)
    trained = math.ceil(config.rollout.batch_size / config.ppo.minibatches / machines) * config.ppo.minibatches
    scoring = device.rate(task.shape, device.scores)
    prefill = math.ceil(rows / config.rollout.samples_per_prompt) * work.prefill / scoring
    parts = {"gradient": 0.0, "other": 0.0}
    for exchange in exchanges(task, machines) if link else ():
        parts[exchange.part] += exchange_seconds(exchange, link, machines)
    return Seconds(
        rollout=prefill + decoding_seconds(task, device, rows, work),
        scoring=rows * work.score / scoring,
        update=trained * work.update / device.rate(task.shape, device.trains),
        **parts,
    )


def efficiency(alone: Seconds, together: Seconds, machines: int) -> float:
    """Return the share of the machines' time that is not lost, against one machine with the same work."""
    return alone.total / (machines * together.total)


def peak(task: Task, *, least: bool = False) -> int:
    """Return the estimated peak of memory, bytes; least: with one sequence at a time."""
    config = task.config
    if least:
        rollout = config.rollout.model_copy(update={"slots": 1})
        optim = config.optim.model_copy(update={"micro_batch_tokens": task.prompt + task.new, "grad_checkpoint": True})
        config = config.model_copy(update={"rollout": rollout, "optim": optim})
    return footprint(config, task.shape, task.prompt, gpu=True).peak


def lowered(task: Task, limit: float) -> Task | None:
    """Return the task with as many slots and as large micro-batches as a run would find to fit `limit`, or None."""
    while True:
        config = task.config
        found = footprint(config, task.shape, task.prompt, gpu=True)
        over = [phase for phase in found.phases if found.peak_of(phase) > limit]
        if not over:
            return task
        slots, budget = config.rollout.slots, config.optim.micro_batch_tokens
        if ("generate" in over and slots == 1) or (over != ["generate"] and budget < task.prompt + task.new):
            return None
        rollout = config.rollout.model_copy(update={"slots": slots // 2 if "generate" in over else slots})
        optim = config.optim.model_copy(update={"micro_batch_tokens": budget // 2 if over != ["generate"] else budget})
        task = task._replace(config=config.model_copy(update={"rollout": rollout, "optim": optim}))


def fitting(task: Callable[..., Task], device: Device) -> tuple[str, Task] | None:
    """Return the first way of SMALLER in which the task fits the device, or None. task: takes overrides."""
    for name, overrides in SMALLER.items():
        if ("4 bits" in name) <= device.packs and (found := lowered(task(*overrides), device.memory)):
            return name, found
    return None


def markdown(header: str, rows: Iterable[str]) -> str:
    """Return a table."""
    columns = header.count("|") + 1
    return "\n".join([f"| {header} |", "|---" * columns + "|", *(f"| {row} |" for row in rows)])


def short(seconds: float) -> str:
    """Return a duration with two digits, or as a whole number."""
    return f"{seconds:,.0f}" if seconds >= 10 else f"{seconds:.2g}"


def assumptions() -> str:
    """Return the figures of devices and links."""
    devices = (
        f"{name} | {one.memory / GIGA:.0f} | {one.bandwidth / GIGA:,.0f} | {one.products / 1e12:.0f} | "
        f"{one.decodes:.0%} | {one.reaches:.0%} | {one.scores:,} | {one.trains:,} | {one.launch * 1e3:.1f}"
        for name, one in DEVICES.items()
    )
    links = (
        f"{name} | {8 * one.bandwidth / GIGA:,g} | {one.share:.0%} | {one.latency * 1e6:.0f} | {one.most}"
        for name, one in LINKS.items()
    )
    header = "device | memory for a run, GB | bandwidth, GB/s | products, TFLOP/s | decoding reaches | a large product"
    header += " reaches | width of half in scoring | in the update | launch of a layer, ms"
    tables = markdown(header, devices), markdown("link | Gb/s | a ring reaches | message, us | machines", links)
    return "\n\n".join(tables)


def memory_table(tasks: dict[str, Callable[..., Task]]) -> str:
    """Return which devices hold which models, and in which precision."""

    def rows() -> Iterator[str]:
        for name, task in tasks.items():
            sizes = [f"{peak(task(), least=least) / GIGA:,.0f}" for least in (False, True)]
            sizes += [f"{peak(task('model.quantize=4-bit'), least=least) / GIGA:,.0f}" for least in (False, True)]
            held = [(fitting(task, device) or ("no",))[0] for device in DEVICES.values()]
            yield " | ".join([name, *sizes, *held])

    devices = " | ".join(f"{name}, {device.memory / GIGA:.0f} GB" for name, device in DEVICES.items())
    return markdown(f"model | bfloat16, GB | at least | 4 bits, GB | at least | {devices}", rows())


def time_table(device: Device, tasks: dict[str, Callable[..., Task]], machines: Sequence[int]) -> str:
    """Return the seconds of an iteration by part, and the efficiency of each link."""

    def rows() -> Iterator[str]:
        for name, build in tasks.items():
            if (found := fitting(build, device)) is None:
                yield f"{name} | does not fit" + " |" * (3 + 2 * len(device.links))
                continue
            how, task = found
            alone, slots = iteration(task, device), task.config.rollout.slots
            if slots < build().config.rollout.slots:
                how += f", {slots} slots"
            for n in machines:
                grown = batch_of(task, n * task.config.rollout.batch_size)
                cells = [f"{name}, {how}", f"{n}", *(f"{part:,.1f}" for part in iteration(task, device, n)[:3])]
                for link in (LINKS[link] for link in device.links):
                    if 1 < n <= link.most:
                        same, more = (iteration(one, device, n, link) for one in (task, grown))
                        cells.append(f"{short(same.gradient)} + {short(same.other)}")
                        cells.append(f"{efficiency(alone, same, n):.0%}, {alone.total / more.total:.0%}")
                    else:
                        cells += ["-", "-"]
                yield " | ".join(cells)

    header = ["model", "machines", "rollout s", "scoring s", "update s"]
    header += [f"{link}: {what}" for link in device.links for what in ("exchanges s", "efficiency")]
    return markdown(" | ".join(header), rows())


def limits_table(tasks: dict[str, Callable[..., Task]], least: float) -> str:
    """Return how many machines work at an efficiency of `least`, and with how many sequences 64 of them do."""
    link = LINKS["10 Gb/s"]

    def reached(task: Task, device: Device, machines: int) -> bool:
        return efficiency(iteration(task, device), iteration(task, device, machines, link), machines) >= least

    def cell(found: tuple[str, Task] | None, device: Device) -> str:
        if found is None:
            return "does not fit"
        task, most = found[1], 64
        numbers = [n for n in range(2, most + 1) if reached(task, device, n)]
        each = (rows for rows in range(1, 1025) if reached(batch_of(task, most * rows), device, most))
        return f"{max(numbers, default=1)}, {next(each, 'more')}"

    def rows() -> Iterator[str]:
        for name, build in tasks.items():
            yield " | ".join([name, *(cell(fitting(build, device), device) for device in DEVICES.values())])

    return markdown(f"model | {' | '.join(DEVICES)}", rows())


def batch_of(task: Task, sequences: int) -> Task:
    """Return the task with another batch size."""
    rollout = task.config.rollout.model_copy(update={"batch_size": sequences})
    return task._replace(config=task.config.model_copy(update={"rollout": rollout}))


def positive(text: str) -> int:
    """Return the number that an option gives."""
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text} is not a whole number of at least 1")
    return int(text)


def main() -> None:
    """Print the tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--devices", nargs="+", choices=DEVICES, default=["M3 Ultra", "H100"])
    parser.add_argument("--models", nargs="+", choices=MODELS, default=list(MODELS))
    parser.add_argument("--machines", nargs="+", type=positive, default=[1, 2, 8, 64])
    parser.add_argument("--prompt", type=positive, default=256, help="tokens of each prompt")
    parser.add_argument("--new", type=positive, default=512, help="tokens of each response")
    parser.add_argument("--set", nargs="+", default=[], metavar="KEY=VALUE", help="settings of the run")
    options = parser.parse_args()
    settings = ["rollout.batch_size=128", "rollout.slots=128", f"rollout.max_new_tokens={options.new}", *options.set]

    def builder(shape: ModelShape) -> Callable[..., Task]:
        def build(*overrides: str) -> Task:
            return Task(shape, validate(parse_overrides([*settings, *overrides])), options.prompt, options.new)

        return build

    tasks = {name: builder(MODELS[name]) for name in options.models}
    try:
        config = builder(MODELS["0.6B"])().config
    except TrainerError as error:
        parser.error(str(error))
    if max(options.machines) > (minibatch := config.rollout.batch_size // config.ppo.minibatches):
        parser.error(f"a minibatch of {minibatch} sequences gives {max(options.machines)} machines less than one each")
    print(f"{assumptions()}\n\n{memory_table(tasks)}")
    print(f"\n{limits_table(tasks, 0.7)}")
    for name in options.devices:
        print(f"\n{name}\n\n{time_table(DEVICES[name], tasks, options.machines)}")


if __name__ == "__main__":
    main()
