"""Measure what grows with the data: prompts, preferences, training on them, long responses, and runs in the list.

Each size runs in a process of its own, so that peaks of memory do not mix; they come from the kernel and include the
commands that are run. Below each table stands the exponent of a power law, fitted to all sizes and to the last two:
1 is linear. What costs the same at every size, such as starting Python, lowers the first one.

The texts are random words, 12 of a prompt and 24 of a completion, and the tokens those of the starter model's
tokenizer. The backbone of the reward model and the policy, which writes bytes, are tiny (two layers of width 32): only
what surrounds the model is measured.
"""

from __future__ import annotations

import argparse
import json
import math
import multiprocessing
import os
import random
import resource
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NamedTuple

sys.path.append(str(Path(__file__).resolve().parent.parent / "tests" / "support"))

WORDS = ("time", "once", "the", "a", "river", "joyful", "of", "and", "gloomy", "house", "went", "she", "into", "is")
STEPS = 100
SEQUENCES = 4


def main() -> None:
    """Print one table for each kind of data."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("kinds", nargs="*", help=f"what to measure, of {', '.join(KINDS)} (default: all)")
    parser.add_argument("--sizes", type=int, nargs="+", help="instead of the usual ones")
    args = parser.parse_args()
    for name in args.kinds or KINDS:
        print_table(name, args.sizes or KINDS[name].sizes)
    print(f"\nload {os.getloadavg()[0]:.1f}, {os.cpu_count()} cores")


def print_table(name: str, sizes: list[int]) -> None:
    """Measure `name` at each of `sizes`; print seconds and peak of memory, and how they grow."""
    columns = [*(f"{column} s" for column in KINDS[name].columns), "peak MB"]
    print(f"\n{name:>12}" + "".join(f"{column:>18}" for column in columns))
    spawn, rows = multiprocessing.get_context("spawn"), []
    for size in sizes:
        with tempfile.TemporaryDirectory(prefix="bench-scale-") as folder, spawn.Pool(1) as pool:
            rows.append(pool.apply(measure, (name, size, folder)))
        print(f"{size:>12,}" + "".join(f"{value:>18,.2f}" for value in rows[-1]), flush=True)
    for label, first in (("exponent", 0), ("of the last", -2)):
        if len(sizes) > 1:
            found = [exponent(sizes[first:], column[first:]) for column in zip(*rows, strict=True)]
            print(f"{label:>12}" + "".join(f"{value:>18.2f}" for value in found))


def exponent(sizes: list[int], values: tuple[float, ...]) -> float:
    """Return b of the least squares fit log value = a + b log size."""
    import numpy as np

    return float(np.polyfit([math.log(size) for size in sizes], [math.log(max(value, 1e-4)) for value in values], 1)[0])


def measure(name: str, size: int, folder: str) -> list[float]:
    """Return the seconds of each column of `name`, and the peak of resident memory, MB."""
    seconds = list(KINDS[name].measure(size, Path(folder)))
    unit = 1e6 if sys.platform == "darwin" else 1e3
    peaks = [resource.getrusage(who).ru_maxrss for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return [*seconds, max(peaks) / unit]


def timed(step: Callable[[], object]) -> float:
    """Return the seconds that `step` takes."""
    began = time.perf_counter()
    step()
    return time.perf_counter() - began


def prompts(size: int, folder: Path) -> Iterator[float]:
    """Time reading the file, and encoding and splitting the prompts."""
    from trainer.config import load_config
    from trainer.data import load_prompts
    from trainer.engine.ppo import run_prompts

    rng = random.Random(0)
    write(folder / "prompts.jsonl", ({"prompt": words(rng, number, 12)} for number in range(size)))
    config = load_config("quickstart", {"data": {"prompts": str(folder / "prompts.jsonl"), "limit": 0}})
    model, rows = starter(), []
    yield timed(lambda: rows.extend(load_prompts(config.data)))
    yield timed(lambda: run_prompts(config, rows, model))


def store(size: int, folder: Path) -> Iterator[float]:
    """Time the commands on a store of labels, and a first label there."""
    file = write_pairs(size, folder)
    yield timed(lambda: command(folder, "preferences", "import", str(file)))
    yield timed(lambda: command(folder, "preferences", "list"))
    yield timed(lambda: command(folder, "preferences", "card"))
    yield timed(lambda: command(folder, "preferences", "check"))
    yield timed(lambda: command(folder, "preferences", "export", "out.jsonl", "--format", "trl"))
    yield timed(lambda: one_label(folder / "preferences.db"))


def store_training(size: int, folder: Path) -> Iterator[float]:
    """Time a reward model's run on a store of labels: to its first step, the evaluation before it, steps, stopping."""
    command(folder, "preferences", "import", str(write_pairs(size, folder)))
    yield from train_reward_model("preferences.db", folder)


def one_label(path: Path) -> None:
    """Open the store at `path`, begin a session, label an item of it and read the progress, as the Label pane does."""
    from preference_samples import preference

    from trainer.preferences.records import Item, Judgement, QueuePlan, SessionPlan
    from trainer.preferences.sessions import begin_session, list_sessions
    from trainer.preferences.store import PreferenceStore

    comparison = preference("a prompt", ["one", "other"]).comparison
    with PreferenceStore(path) as opened:
        list_sessions(opened)
        opened.flagged()
        session = begin_session(opened, "me", SessionPlan(queues=(QueuePlan(queue="dataset", source="out.jsonl"),)))
        session.put([Item(queue="dataset", comparison=comparison, order=(0, 1))])
        session.label(session.item(0), Judgement.chosen("a"))
        session.progress(None)


def responses(size: int, folder: Path) -> Iterator[float]:
    """Time the second iteration of PPO with responses of `size` tokens, phase by phase, and its samples file."""
    from tiny import make_checkpoint

    from trainer.arrays import Purpose, key_for
    from trainer.config.loading import load_config
    from trainer.data import load_prompts
    from trainer.engine.artifacts import save_samples
    from trainer.engine.ppo import run_prompts
    from trainer.models.actor_critic import ActorCriticLLM
    from trainer.models.backbone import load_backbone
    from trainer.ppo.loop import PPO
    from trainer.rewards import build_rewards
    from trainer.runs.folder import RunFolder

    make_checkpoint(folder / "model")
    edit_config(folder / "model", max_position_embeddings=4096)
    overrides = {
        "model": {"path": str(folder / "model")},
        "data": {"limit": 16},
        "rollout": {"batch_size": SEQUENCES, "max_new_tokens": size, "ignore_stop": True},
        "ppo": {"minibatches": 1},
        "optim": {"micro_batch_tokens": 4096},
        "reward": {"sources": [{"kind": "regex", "pattern": "a", "count": True}]},
        "run": {"seed": 0},
    }
    config = load_config("quickstart", overrides)
    model, run = load_backbone(config.model), RunFolder(folder)
    actor = ActorCriticLLM(model.backbone, config.model, key=key_for(0, Purpose.ADAPTER))
    prompts = run_prompts(config, load_prompts(config.data), model).train
    ppo = PPO(config, actor, model.tokenizer, prompts, build_rewards(config.reward))
    ppo.iteration(1)  # compiles
    result = ppo.iteration(2)
    yield from (result.metrics.seconds[phase] for phase in ("generate", "score", "reward", "update"))
    yield timed(lambda: save_samples(run, config, 2, result))


def runs(size: int, folder: Path) -> Iterator[float]:
    """Time listing runs of 50 iterations each, and the command that does so."""
    from long_journal import write_long_journal

    from trainer.config.loading import config_text, load_config
    from trainer.runs.listing import list_runs

    first = folder / "run"
    first.mkdir()
    write_long_journal(first / "events.jsonl", 50)
    (first / "config.toml").write_text(config_text(load_config("quickstart", {})))
    for number in range(size):
        shutil.copytree(first, folder / "runs" / f"run-{number:04}")
    yield timed(lambda: list_runs(folder / "runs"))
    yield timed(lambda: command(folder, "runs"))


class Kind(NamedTuple):
    """Data of which there may be much: the sizes to measure, and what is timed."""

    measure: Callable[[int, Path], Iterator[float]]
    sizes: list[int]
    columns: tuple[str, ...]


TRAINING = ("to first step", "evaluation", f"{STEPS} steps", "stop")
KINDS = {
    "prompts": Kind(prompts, [1_000, 10_000, 100_000], ("read", "encode")),
    "store": Kind(store, [10_000, 100_000, 1_000_000], ("import", "list", "card", "check", "export", "one label")),
    "store-training": Kind(store_training, [10_000, 100_000, 1_000_000], TRAINING),
    "responses": Kind(responses, [256, 512, 1024, 2048], ("generate", "score", "reward", "update", "save")),
    "runs": Kind(runs, [10, 100, 1_000], ("list", "command")),
}


def train_reward_model(source: str, folder: Path) -> Iterator[float]:
    """Run the command on `source`, take STEPS steps, and end it with SIGTERM.

    Yields the seconds to the first step, those of the evaluation before it, of the steps, and from the signal to the
    end.
    """
    make_backbone(folder / "model")
    options = ["--data", source, "--set", f"model.path={folder / 'model'}", "--set", "eval.every=0"]
    began = time.perf_counter()
    run = subprocess.Popen(
        [*WORKBENCH, "reward-model", "train", *options, "--display", "json"],
        cwd=folder,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    )
    assert run.stdout is not None
    evaluation, steps = 0.0, 0
    try:
        for line in run.stdout:
            event = json.loads(line)
            if event["event"] == "reward_model_evaluation" and not steps:
                evaluation = event["seconds"]
            if event["event"] == "reward_model_step":
                steps += 1
                if steps == 1:
                    yield time.perf_counter() - began
                    yield evaluation
                    began = time.perf_counter()
                elif steps == STEPS + 1:
                    yield time.perf_counter() - began
                    began = time.perf_counter()
                    run.send_signal(signal.SIGTERM)
        run.wait()
        yield time.perf_counter() - began
    finally:  # nothing is left running if the benchmark is interrupted
        run.kill()
        run.wait()


WORKBENCH = (sys.executable, "-m", "workbench")


def command(folder: Path, *words: str) -> None:
    """Run a command of the workbench in `folder`."""
    subprocess.run([*WORKBENCH, *words], cwd=folder, check=True, capture_output=True)


def starter() -> Any:
    """Return what is needed of a loaded model: the tokenizer of the starter model, without its weights."""
    from mlx_lm.utils import load_tokenizer

    from trainer.models.starter import starter_model

    folder = starter_model()
    return SimpleNamespace(tokenizer=load_tokenizer(folder), context=8192)


def make_backbone(folder: Path) -> None:
    """Write a tiny random model with the vocabulary and the tokenizer of the starter model."""
    import tiny

    from trainer.models.starter import starter_model

    tiny.FAMILIES["starter"] = tiny.FAMILIES["llama"] | {"vocab_size": 49_152, "eos_token_id": 2}
    tiny.make_checkpoint(folder, "starter")
    edit_config(folder, max_position_embeddings=8192)
    for file in starter_model().glob("*token*"):
        shutil.copy(file, folder)


def edit_config(folder: Path, **values: object) -> None:
    """Change `values` of the model's config.json in `folder`."""
    file = folder / "config.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | values))


def write_pairs(size: int, folder: Path) -> Path:
    """Write `size` rows with a prompt of their own and two completions, and return the file."""
    path, rng = folder / "pairs.jsonl", random.Random(0)
    names = ("prompt", 12), ("chosen", 24), ("rejected", 24)
    write(path, ({name: words(rng, number, count) for name, count in names} for number in range(size)))
    return path


def words(rng: random.Random, number: int, count: int) -> str:
    """Return `number` and random words."""
    return " ".join([str(number), *rng.choices(WORDS, k=count)])


def write(path: Path, rows: Iterator[dict[str, str]]) -> None:
    """Write `rows` as JSON lines."""
    with path.open("w") as file:
        file.writelines(json.dumps(row) + "\n" for row in rows)


if __name__ == "__main__":
    main()
