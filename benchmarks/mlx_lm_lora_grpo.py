"""Train mlx-lm-lora's `train_grpo` on a workload of bench_grpo.py: mlx-lm-lora's side of the comparison.

Runs in mlx-lm-lora's own environment (requirements-mlx-lm-lora.txt), with or without our BLAS and allocator; imports
nothing else of ours. Prints one JSON event per line: `run` with the versions in use, then an `iteration` with the
seconds of its phases as soon as each iteration ends. MLX is lazy: the reference's log-probs belong to the update.
"""

from __future__ import annotations

import argparse
import importlib.metadata
import json
import os
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from side import PhaseClock, event_output

ROOT = Path(__file__).resolve().parent.parent


def use_our_blas(library: str) -> None:
    """Load a BLAS, and make glibc keep freed memory, exactly as ours do; before `mlx.core` is imported."""
    os.environ["PPO_WORKBENCH_BLAS"] = library
    sys.path.append(str(ROOT))
    import trainer

    blas = trainer.blas.loaded_blas()
    if blas.problem:
        sys.exit(blas.problem)


def train(workload: dict[str, Any], clock: PhaseClock, output_dir: str) -> None:
    """Train one iteration for each batch of prompts, in the order of the file: one update of each batch."""
    import mlx.core as mx  # these load MLX, which takes the BLAS that is loaded by then
    import mlx_lm
    import numpy as np
    from mlx.optimizers import Adam
    from mlx_lm.tuner.callbacks import TrainingCallback
    from mlx_lm.tuner.utils import linear_to_lora_layers
    from mlx_lm_lora.trainer import grpo_trainer
    from vaderSentiment.vaderSentiment import SentimentIntensityAnalyzer

    vader = SentimentIntensityAnalyzer()

    def sentiment(completions: list[str], **_: Any) -> list[float]:
        return [vader.polarity_scores(text)["compound"] for text in completions]

    def timed_generate(**arguments: Any) -> Any:
        rollout = generate(**arguments)
        clock.end_generation(sum(completion.size for completion in rollout[0]))
        return rollout

    class Iterations(TrainingCallback):
        def on_train_loss_report(self, train_info: dict[str, Any]) -> None:
            clock.end_iteration()

    generate, grpo_trainer.generate_grpo = grpo_trainer.generate_grpo, timed_generate
    mx.random.seed(workload["seed"])
    np.random.seed(workload["seed"])  # noqa: NPY002  # as its command line does

    model, tokenizer = mlx_lm.load(workload["model"])
    reference, _ = mlx_lm.load(workload["model"])  # a second copy, as its command line loads
    tokenizer.eos_token_ids = []  # no stop: every response has full length
    model.freeze()
    keys = {f"self_attn.{name}" for name in workload["lora_targets"]}
    lora = {"rank": workload["lora_rank"], "scale": workload["lora_scale"], "dropout": 0.0, "keys": keys}
    linear_to_lora_layers(model, len(model.layers), lora)
    per_iteration = workload["batch_size"] // workload["samples_per_prompt"]
    settings = grpo_trainer.GRPOTrainingArgs(
        batch_size=per_iteration,
        group_size=workload["samples_per_prompt"],
        iters=len(workload["prompts"]) // per_iteration,
        max_completion_length=workload["max_new_tokens"],
        temperature=workload["temperature"],
        top_p=1.0,
        top_k=0,
        beta=workload["kl_coef"],
        epsilon=0.2,
        steps_per_report=1,
        steps_per_save=sys.maxsize,
        adapter_file=f"{output_dir}/adapters.safetensors",
    )
    clock.start()
    grpo_trainer.train_grpo(
        model=model,
        ref_model=reference.freeze(),
        tokenizer=tokenizer,
        optimizer=Adam(learning_rate=workload["learning_rate"]),
        train_dataset=[(tokenizer.encode(prompt), [], prompt, "") for prompt in workload["prompts"]],
        reward_funcs=[sentiment],
        args=settings,
        iterate_batches=batches_in_order,
        training_callback=Iterations(),
        end_answer_token="",
    )


def batches_in_order(dataset: list[Any], batch_size: int, **_: Any) -> Iterator[tuple[Any, ...]]:
    """Yield batches as train_grpo reads them, in the order of the data set: its own iterator shuffles."""
    for start in range(0, len(dataset), batch_size):
        yield *zip(*dataset[start : start + batch_size], strict=True), None


def main() -> None:
    """Train the workload."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("workload", type=Path, help="workload file written by bench_grpo.py")
    parser.add_argument("--blas", help="BLAS library for MLX (default: what MLX's own wheel has)")
    options = parser.parse_args()
    workload = json.loads(options.workload.read_text(encoding="utf-8"))
    if options.blas:
        use_our_blas(options.blas)
    versions = {package: importlib.metadata.version(package) for package in ("mlx-lm-lora", "mlx", "mlx-lm")}
    versions["BLAS"] = Path(options.blas).name if options.blas else "MLX's own"
    with event_output() as emit, tempfile.TemporaryDirectory() as output_dir:
        emit({"event": "run", "versions": versions})
        train(workload, PhaseClock(emit), output_dir)


if __name__ == "__main__":
    main()
