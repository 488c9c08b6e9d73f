"""Run folders with samples, models that write and score by rules, and the drawing of a session's items."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from trainer.preferences.queues import QueueContext
from trainer.preferences.queues.mixture import Mixture
from trainer.preferences.records import Item, QueuePlan, SessionPlan, Text
from trainer.questions import Answer, Question, WrittenResponse
from trainer.runs.folder import RunFolder
from trainer.runs.samples import SampleSettings, write_samples

SETTINGS = SampleSettings(
    kl_coef=0.1, kl_estimator="k1", gamma=1.0, lam=0.95, clip=0.2, temperature=0.7, epochs=1, bootstrap_truncated=False,
    whiten_rewards=False, whiten_advantages=False, reward_mean=0.0, reward_std=1.0, advantage_mean=0.0,
    advantage_std=1.0,
)  # fmt: skip


def run_folder(
    path: Path, iterations: int = 1, prompts: int = 4, samples: int = 2, *, saves: bool = True, **columns: Any
) -> RunFolder:
    """Make a finished run with samples of every iteration."""
    folder = RunFolder(path)
    folder.samples.mkdir(parents=True)
    folder.config.write_text(f"[run]\nsave_samples = {str(saves).lower()}\n")
    for iteration in range(1, iterations + 1):
        add_samples(folder, iteration, prompts, samples, **columns)
    return folder


def add_samples(folder: RunFolder, iteration: int, prompts: int = 4, samples: int = 2, **columns: Any) -> None:
    """Write the samples of one more iteration; each text says where it comes from. columns: overrides for every row."""
    rows = [
        {
            "row": prompt * samples + sample,
            "prompt_index": prompt,
            "sample": sample,
            "prompt": f"prompt {prompt}",
            "completion": f"iteration {iteration} prompt {prompt} sample {sample}",
            "score": float(sample),
            "length": 5 + sample,
            "prompt_tokens": [prompt, 1],
            "tokens": [1, 2, 3],
            **columns,
        }
        for prompt in range(prompts)
        for sample in range(samples)
    ]
    write_samples(folder.samples_file(iteration), rows, iteration, SETTINGS)


def answering(asked: list[Question] | None = None, texts: Callable[[Question, int], str] | None = None) -> Any:
    """Return a model that writes back its question; texts: other texts, by question and place of the completion."""

    def ask(question: Question) -> Answer:
        if asked is not None:
            asked.append(question)
        say = texts or (lambda question, place: f"{question.writer} {question.prompt} {question.seed} {place}")
        completions = [
            WrittenResponse(text=say(question, place), tokens=[1] * (place + 3), token_texts=[], logprobs=[],
                       ref_logprobs=[], score=float(place), parts={}, truncated=False)
            for place in range(question.count)
        ]  # fmt: skip
        return Answer(
            writer=question.writer, iteration=7, prompt=str(question.prompt), completions=completions, seconds=0.1
        )

    return ask


class Drawing:
    """Mixture that waits for items where it announces them from another thread."""

    def __init__(self, plan: SessionPlan, store: Path, **context: Any) -> None:
        self.came = threading.Event()
        context = {"labeller": "ann", "path": store, "wake": self.came.set, **context}
        self.mixture = Mixture(plan, QueueContext(**context))

    def __iter__(self) -> Iterator[Item]:
        """Iterate like `items`."""
        return self.items()

    def items(self, *, hurry: bool = True) -> Iterator[Item]:
        """Return all items, up to the last; fail if nothing comes for a minute."""
        while True:
            self.came.clear()
            item = self.mixture.draw(hurry=hurry)
            if item is not None:
                yield item
            elif self.mixture.exhausted:
                return
            elif self.mixture.waiting:
                assert self.came.wait(60), self.mixture.waiting


def plan(*queues: QueuePlan, **more: Any) -> SessionPlan:
    """Return a session plan of `queues`, by default without repeats."""
    return SessionPlan(queues=queues, **{"repeats": 0.0, **more})


def of_run(queue: Any, folder: RunFolder, **more: Any) -> QueuePlan:
    """Return a queue of the run in `folder`."""
    return QueuePlan(queue=queue, source=str(folder.root), **more)


def pair_rows(path: Path, count: int, prompt: str = "question") -> QueuePlan:
    """Write a file of `count` unjudged pairs and return its queue."""
    rows = [{"prompt": f"{prompt} {n}", "a": f"yes {n}", "b": f"no {n}"} for n in range(count)]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return QueuePlan(queue="dataset", source=str(path))


def scoring(by: Callable[[str, str], float], calls: list[tuple[str, int]] | None = None) -> Any:
    """Return reward models that score by `by` of model name and completion; calls: collects what each was asked."""

    def score(model: str, rows: Sequence[tuple[Text, Text]]) -> list[float]:
        if calls is not None:
            calls.append((model, len(rows)))
        return [by(model, str(completion)) for _, completion in rows]

    return score
