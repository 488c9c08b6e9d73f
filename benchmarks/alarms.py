"""Check that a run raises its alarm when it goes wrong, and that a healthy run raises none.

Trains a random llama of two layers with a failure seeded by a setting, a reward or a broken piece of the trainer, at
least once for each rule of trainer/monitoring, then ten healthy runs. Prints Markdown tables and both rates.

Run: .venv/bin/python benchmarks/alarms.py [--only NAME ...] [--seed N] [--journals events.jsonl ...]
--seed: added to the seed of every run.
--journals: journals of other runs, each beside its config.toml, to apply the rules to.
"""

from __future__ import annotations

import argparse
import json
import math
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from itertools import count
from pathlib import Path
from typing import Any, NamedTuple
from unittest import mock

import trainer  # noqa: F401  loads the BLAS, before anything imports mlx

# isort: split
import mlx.core as mx
from mlx.utils import tree_flatten, tree_map
from mlx_lm.models import llama
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from trainer.config import Config, load_config, validate
from trainer.distributed.ranks import Ranks
from trainer.engine.control import Control
from trainer.engine.training import train
from trainer.errors import DivergedError
from trainer.events import Alarm, Event, Iteration
from trainer.monitoring import ALARM_RULES, Monitor
from trainer.ppo import steps
from trainer.ppo.learner import Learner
from trainer.rollout import generation
from trainer.runs.journal import read_journal

REWARDS = Path(__file__).with_name("alarm_rewards.py")
STOP = list("rstuvwxyz")
"""Stop texts for runs whose responses vary in length; about one token in four is one of them."""

BASE: dict[str, Any] = {
    "model.lora_targets": ["v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"],
    "data.eval_fraction": 0.2,
    "rollout.batch_size": 16,
    "rollout.max_new_tokens": 8,
    "rollout.ignore_stop": True,
    "reward.sources": [f"{REWARDS}:digits"],
    "ppo.iterations": 40,
    "ppo.epochs": 2,
    "ppo.kl_coef": 0.05,
    "optim.policy_lr": 0.002,
    "checkpoint.every": 10,
    "run.save_samples": False,
}
HEAD = {"model.value_model": "head", "optim.value_lr": 0.003}


class Case(NamedTuple):
    """One run: the settings that differ from BASE, and the alarm that it must raise ("" for a healthy run).

    broken: makes the context that the run trains in, which may patch the trainer.
    """

    name: str
    settings: dict[str, Any]
    alarm: str = ""
    broken: Callable[[], AbstractContextManager[Any]] = nullcontext


def reward(*names: str, watched: str = "") -> dict[str, Any]:
    """Return a `reward.sources` setting: functions of alarm_rewards.py to train on, and one to watch with weight 0."""
    sources = [{"kind": "python", "path": f"{REWARDS}:{name}"} for name in names]
    if watched:
        sources.append({"kind": "python", "path": f"{REWARDS}:{watched}", "weight": 0.0})  # type: ignore[dict-item]
    return {"reward.sources": sources}


@contextmanager
def policy_scored_at(temperature: float) -> Iterator[None]:
    """Compute the old log-probs at `temperature` instead of the temperature of sampling."""
    original = steps.add_policy_logprobs_and_values

    def patched(*args: Any, **kwargs: Any) -> Any:
        return original(*args, **kwargs | {"temperature": temperature})

    with mock.patch.object(steps, "add_policy_logprobs_and_values", patched):
        yield


@contextmanager
def sharpened_draws(power: float) -> Iterator[None]:
    """Draw tokens in proportion to p^power, while everything that is reported of them says p."""
    original = generation.categorical

    with mock.patch.object(generation, "categorical", lambda weights, keys: original(weights**power, keys)):
        yield


@contextmanager
def nan_gradient(number: int) -> Iterator[None]:
    """Make the gradient of one optimiser step NaN: the one that follows `number` steps."""
    original = Learner.gradients

    def gradients(learner: Learner, *args: Any, **kwargs: Any) -> Any:
        found = original(learner, *args, **kwargs)
        return (tree_map(lambda g: g * math.nan, found[0]), *found[1:]) if learner.steps == number else found

    with mock.patch.object(Learner, "gradients", gradients):
        yield


@contextmanager
def slow_reward() -> Iterator[None]:
    """Make the reward take 15 s from the thirteenth batch on.

    Only the run's clock moves forward, so that the benchmark does not wait.
    """
    clock, compute_rewards = Control.clock, steps.compute_rewards
    calls, delay = count(1), 0.0

    def slow(*args: Any) -> Any:
        nonlocal delay
        delay += 15 * (next(calls) > 12)
        return compute_rewards(*args)

    with (
        mock.patch.object(Control, "clock", lambda control: clock(control) + delay),
        mock.patch.object(steps, "compute_rewards", slow),
    ):
        yield


@contextmanager
def slow_rank() -> Iterator[None]:
    """Report two ranks, the second of which takes 4 s longer than the first from the thirteenth iteration on."""
    calls = count(1)

    def described(*_: Any) -> list[dict[str, Any]]:
        delay = 4.0 * (next(calls) > 12)
        rest = {"seconds": 6.0 + delay, "sent": 1, "memory_bytes": 1}
        return [{"host": "rank 0 (a)", "waiting": 1.0 + delay, **rest}, {"host": "rank 1 (b)", "waiting": 1.0, **rest}]

    with mock.patch.object(Ranks, "described", described):
        yield


@contextmanager
def wrong_old_logprobs() -> Iterator[None]:
    """Lower the old log-probs by 3 nats from the eleventh iteration on, as if another policy had written the batch."""
    original = Learner.gradients

    def gradients(learner: Learner, batch: Any, *args: Any, **kwargs: Any) -> Any:
        if learner.steps >= 10 * BASE["ppo.epochs"]:
            batch = batch._replace(logprobs=batch.logprobs - 3)
        return original(learner, batch, *args, **kwargs)

    with mock.patch.object(Learner, "gradients", gradients):
        yield


@contextmanager
def critic_with_negated_returns() -> Iterator[None]:
    """Train the critic on the negated returns."""
    original = Learner.gradients

    def gradients(learner: Learner, batch: Any, *args: Any, **kwargs: Any) -> Any:
        return original(learner, batch._replace(returns=-batch.returns), *args, **kwargs)

    with mock.patch.object(Learner, "gradients", gradients):
        yield


LONG_TEXTS = {"rollout.stop": STOP, "rollout.max_new_tokens": 16, "rollout.ignore_stop": False}

FAILURES = [
    Case("noise is the reward, no penalty", {**reward("noise"), "ppo.kl_coef": 0.0, "optim.policy_lr": 0.1}, "kl_high"),
    Case(
        "noise is the reward, a high penalty",
        {**reward("noise"), "ppo.kl_coef": 0.2, "optim.policy_lr": 0.1},
        "kl_high",
    ),
    Case(
        "a controller that is too slow",
        {"ppo.kl_controller": "adaptive", "ppo.kl_target": 0.5, "optim.policy_lr": 0.02},
        "kl_high",
    ),
    Case("policy_lr = 0", {"optim.policy_lr": 0.0}, "not_training"),
    Case(
        "scored at another temperature than sampled",
        {"rollout.temperature": 0.5, "optim.policy_lr": 0.00003},
        "kl_negative",
        lambda: policy_scored_at(1.0),
    ),
    Case("draws sharper than the distribution", {}, "sampling_bias", lambda: sharpened_draws(1.2)),
    Case(
        "one letter pays, no penalty",
        {**reward("one_letter"), "ppo.kl_coef": 0.0, "optim.policy_lr": 0.02},
        "entropy_collapse",
    ),
    Case(
        "one letter pays, slowly", {**reward("one_letter"), "ppo.kl_coef": 0.0, "optim.policy_lr": 0.005}, "repetition"
    ),
    Case("eight epochs, high learning rate", {"ppo.epochs": 8, "optim.policy_lr": 0.03}, "clip_saturation"),
    Case("old log-probs of another policy", {}, "ratio_spike", wrong_old_logprobs),
    Case("constant reward", {**reward("constant")}, "no_signal"),
    Case("constant reward, no penalty", {**reward("constant"), "ppo.kl_coef": 0.0}, "no_signal"),
    Case("value_lr = 1", {**HEAD, "optim.value_lr": 1.0}, "critic_lost"),
    Case("a critic trained on the opposite", HEAD, "critic_lost", critic_with_negated_returns),
    Case("a heavy value loss", {**HEAD, "ppo.value_coef": 100.0}, "critic_pull"),
    Case(
        "one batch with a huge reward", {**reward("digits_then_huge"), "ppo.whiten_advantages": False}, "gradient_spike"
    ),
    Case("a gradient of NaN", {}, "step_nan", lambda: nan_gradient(30)),
    Case(
        "length pays",
        {**reward("length"), **LONG_TEXTS, "optim.policy_lr": 0.02, "ppo.kl_coef": 0.0},
        "length_exploitation",
    ),
    Case("length pays, slowly", {**reward("length"), **LONG_TEXTS, "optim.policy_lr": 0.01}, "truncation"),
    Case(
        "digits pay, letters are watched",
        {**reward("digits", watched="letters"), "optim.policy_lr": 0.005},
        "reward_hacking",
    ),
    Case(
        "gain in training, none in evaluations",
        {**reward("digits_in_training"), "optim.policy_lr": 0.005, "eval.every": 3, "eval.prompts": 12},
        "reward_hacking",
    ),
    Case("a reward that becomes slow", {}, "throughput", slow_reward),
    Case("a rank that becomes slow", {}, "straggler", slow_rank),
]

HEALTHY = [
    Case("default settings", {}),
    Case("another seed, a head as critic", {"run.seed": 1, **HEAD}),
    Case(
        "batches of 8, lengths vary",
        {"run.seed": 2, "rollout.batch_size": 8, "reward.missing_stop_penalty": 0.5, **LONG_TEXTS},
    ),
    Case(
        "adaptive kl_coef, evaluations",
        {"run.seed": 3, "ppo.kl_controller": "adaptive", "ppo.kl_target": 4.0, "ppo.kl_horizon": 200, "eval.every": 5},
    ),
    Case(
        "learning rates fall to 0, minibatches",
        {
            "run.seed": 4,
            "optim.schedule": "linear",
            "optim.warmup_steps": 4,
            "ppo.minibatches": 4,
            "optim.policy_lr": 0.0005,
        },
    ),
    Case("critic of its own, warm-up", {"run.seed": 5, **HEAD, "model.value_model": "adapter", "ppo.critic_warmup": 5}),
    Case(
        "rloo, watched source",
        {"run.seed": 6, "ppo.estimator": "rloo", "rollout.samples_per_prompt": 4, **reward("digits", watched="digits")},
    ),
    Case(
        "grpo, penalty as a loss",
        {
            "run.seed": 7,
            "ppo.estimator": "grpo",
            "rollout.samples_per_prompt": 4,
            "ppo.kl_in": "loss",
            "ppo.kl_estimator": "k3",
            "ppo.kl_coef": 0.3,
        },
    ),
    Case(
        "running normalisation, missing stop",
        {"run.seed": 8, "reward.normalize": "running", "reward.missing_stop_penalty": 0.5, **LONG_TEXTS},
    ),
    Case(
        "half the letters, average, entropy bonus",
        {"run.seed": 9, **reward("early_letters"), "optim.ema_decay": 0.9, "ppo.entropy_coef": 0.005, "eval.every": 5},
    ),
]

CHARACTERS = " 0123456789abcdefghijklmnopqrstuvwxyz"


def make_model(folder: Path) -> Path:
    """Write a random llama whose tokens are single characters to `folder`, and return `folder`."""
    shape = {"hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 4}
    rest = {"num_key_value_heads": 2, "rms_norm_eps": 1e-5, "vocab_size": len(CHARACTERS) + 2, "rope_theta": 10000.0}
    config = {"model_type": "llama", **shape, **rest, "tie_word_embeddings": True, "eos_token_id": len(CHARACTERS)}
    model = llama.Model(llama.ModelArgs.from_dict(config))
    keys = iter(mx.random.split(mx.random.key(0), 100))
    weights = {
        name: mx.random.normal(array.shape, key=next(keys)) * 0.2 if array.ndim > 1 else array
        for name, array in tree_flatten(model.parameters())
    }
    folder.mkdir(parents=True)
    mx.save_safetensors(str(folder / "model.safetensors"), weights, metadata={"format": "mlx"})
    (folder / "config.json").write_text(json.dumps(config))
    tokenizer = Tokenizer(models.BPE(vocab={character: i for i, character in enumerate(CHARACTERS)}, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.Split("", "isolated")
    tokenizer.decoder = decoders.Fuse()
    tokenizer.add_special_tokens(["<end>", "<pad>"])
    PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token="<end>", pad_token="<pad>").save_pretrained(folder)
    return folder


def make_workspace(folder: Path) -> None:
    """Write the model and sixty prompts to `folder`."""
    make_model(folder / "model")
    words = ["one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten"]
    prompts = [f"{first} {second}" for first in words for second in words[:6]]
    (folder / "prompts.jsonl").write_text("".join(json.dumps({"prompt": text}) + "\n" for text in prompts))


def configuration(folder: Path, settings: dict[str, Any]) -> Config:
    """Return the configuration of BASE with `settings`, for the workspace `folder`."""
    raw: dict[str, Any] = {"run": {"dir": str(folder / "runs")}}
    paths = {"model.path": str(folder / "model"), "data.prompts": str(folder / "prompts.jsonl")}
    for key, value in {**paths, **BASE, **settings}.items():
        table, _, name = key.partition(".")
        raw.setdefault(table, {})[name] = value
    return validate(raw)


class EventRecorder:
    """Sink that records a run's alarms and iterations."""

    def __init__(self) -> None:
        self.alarms: list[Alarm] = []
        self.iterations: list[Iteration] = []

    def emit(self, event: Event) -> None:
        """Record `event` if it is an alarm or an iteration."""
        match event:
            case Alarm():
                self.alarms.append(event)
            case Iteration():
                self.iterations.append(event)

    def close(self) -> None:
        """Do nothing: there is nothing to release."""


def run(case: Case, folder: Path) -> EventRecorder:
    """Train `case` until it ends or diverges, and return its alarms and iterations."""
    recorded = EventRecorder()
    with case.broken(), suppress(DivergedError):
        train(configuration(folder, case.settings), sinks=[recorded])
    return recorded


def journal_alarms(path: Path) -> list[Alarm]:
    """Return the alarms that the rules raise over the journal at `path`."""
    config = load_config(path.with_name("config.toml"))
    monitor = Monitor(lambda: config)
    found = []
    for event in read_journal(path).events:
        alarms = [alert for alert in monitor.take(event) if isinstance(alert, Alarm)]
        found += alarms
        for alarm in alarms:
            monitor.take(alarm)
    return found


def table(cases: Sequence[Case], folder: Path, seed: int) -> tuple[list[str], int]:
    """Train `cases`; return a table row for each, and the number of cases with the expected outcome.

    A seeded failure must raise its alarm, and a healthy run none.
    """
    rows, as_expected = [], 0
    for case in cases:
        started = time.perf_counter()
        settings = {**case.settings, "run.seed": case.settings.get("run.seed", 0) + seed}
        recorded = run(case._replace(settings=settings), folder)
        codes = list(dict.fromkeys(alarm.code for alarm in recorded.alarms))
        as_expected += case.alarm in codes if case.alarm else not codes
        first = next((alarm for alarm in recorded.alarms if alarm.code == case.alarm), None)
        raised = f"{first.iteration} of {len(recorded.iterations)}" if first else "-"
        others = ", ".join(code for code in codes if code != case.alarm) or "-"
        scores = [row.score_mean for row in recorded.iterations]
        trend = f"{sum(scores[:3]) / 3:.2f} -> {sum(scores[-3:]) / 3:.2f}"
        rows.append(f"| {case.name} | {case.alarm or '-'} | {raised} | {others} | {trend} |")
        print(f"{rows[-1]} {time.perf_counter() - started:.1f} s", file=sys.stderr)
        for alarm in recorded.alarms:
            print(f"    {alarm.iteration} {alarm.level} {alarm.code}: {alarm.message}", file=sys.stderr)
    return rows, as_expected


def main() -> None:
    """Train the chosen cases, then print the tables and the rates."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument(
        "--only", nargs="+", default=[], metavar="NAME", help="train only the cases with this name or alarm"
    )
    parser.add_argument("--journals", nargs="+", type=Path, default=[], metavar="EVENTS")
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()

    chosen = [
        [case for case in cases if not options.only or any(name in (case.name, case.alarm) for name in options.only)]
        for cases in (FAILURES, HEALTHY)
    ]
    missing = set(ALARM_RULES) - {case.alarm for case in FAILURES}
    assert not missing, f"no failure is seeded for {', '.join(sorted(missing))}"
    started = time.perf_counter()
    with tempfile.TemporaryDirectory() as folder:
        make_workspace(Path(folder))
        (failures, raised), (healthy, quiet) = (table(cases, Path(folder), options.seed) for cases in chosen)
    head = (
        "| run | alarm | raised in iteration | other alarms | mean score, first and last three iterations |\n"
        "|---|---|---|---|---|"
    )
    print("\n".join(["Seeded failures\n", head, *failures, "", "Healthy runs\n", head, *healthy, ""]))
    print(
        f"{raised} of {len(failures)} seeded failures raised their alarm; "
        f"{quiet} of {len(healthy)} healthy runs raised none"
    )
    for path in options.journals:
        codes = [f"{alarm.code} ({alarm.iteration})" for alarm in journal_alarms(path)]
        print(f"{path}: {', '.join(codes) or 'none'}")
    print(f"{time.perf_counter() - started:.0f} s", file=sys.stderr)


if __name__ == "__main__":
    main()
