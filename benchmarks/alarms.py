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
import sys
import tempfile
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import trainer  # noqa: F401  loads the BLAS, before anything imports mlx

# isort: split
import mlx.core as mx
from alarm_cases import BASE, FAILURES, HEALTHY, Case
from mlx.utils import tree_flatten
from mlx_lm.models import llama
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from trainer.config import Config, load_config, validate
from trainer.engine.training import train
from trainer.errors import DivergedError
from trainer.events import Alarm, Event, Iteration
from trainer.monitoring import ALARM_RULES, Monitor
from trainer.runs.journal import read_journal

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
