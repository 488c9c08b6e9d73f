"""Trial of the largest parts of an iteration, to see before the first one what memory they take."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import mlx.core as mx
import numpy as np

from trainer.config import Config
from trainer.data import Prompt
from trainer.events import Phase, PhaseProgress
from trainer.fitting.memory_limit import peak_of
from trainer.models.trunk import vocabulary_size
from trainer.ppo.learner import StepOptions
from trainer.ppo.loop import PPO
from trainer.ppo.steps import Progress
from trainer.rewards import RewardInput
from trainer.rollout.decoding import Decoding
from trainer.rollout.experience import Experience
from trainer.rollout.generation import Response, lay_out


def phase_peaks(ppo: PPO, prompts: Sequence[Prompt]) -> dict[Phase, int]:
    """Run the largest part of each phase once; return the peaks of MLX's allocations, bytes, or `REFUSED`.

    The parts are as large as the prompts and `rollout.max_new_tokens` allow: the responses to the longest prompts that
    are written together, and the micro-batch of the longest sequences: scored, read by the reward models if there are
    any, and with its gradient. Nothing is trained, no other reward is asked, and no statistics change. Raises
    Interrupted if the run is to end.
    """
    longest = sorted(prompts, key=lambda prompt: -len(prompt.tokens))
    parts: dict[Phase, Callable[[], None]] = {
        "generate": lambda: _generate(ppo, longest),
        "score": lambda: _evaluate_scores(ppo, longest),
        "reward": lambda: ppo.rewards.try_models(_reward_inputs(ppo, longest)),
        "update": lambda: _differentiate(ppo, longest),
    }
    if not ppo.rewards.has_models:
        del parts["reward"]
    peaks: dict[Phase, int] = {}
    for number, (phase, part) in enumerate(parts.items()):
        ppo.control.check_end()
        ppo.emit(PhaseProgress(iteration=0, phase=phase, done=number, total=len(parts)))
        with ppo.ranks.apart():  # the share of a rank is smaller, or one sequence as well
            peaks[phase] = peak_of(part)
    return peaks


def _generate(ppo: PPO, longest: Sequence[Prompt]) -> None:
    """Decode one token of as many rows as are decoded together, beside what their caches have grown to at the end."""
    rollout = ppo.config.rollout
    decoding = Decoding(ppo.actor.backbone, rollout)
    count = min(decoding.at_most, rollout.batch_size)
    contexts = [prompt.tokens for prompt in _repeated(longest, ppo.config, count)]
    decoding.admit(range(count), contexts, mx.random.split(mx.random.key(0), count))
    mx.eval(decoding.step().tokens)
    end = len(contexts[0]) + rollout.max_new_tokens
    grown = mx.zeros((decoding.bytes_at(end) - decoding.bytes_at(0),), dtype=mx.uint8)
    mx.eval(grown, decoding.step().tokens)


def _evaluate_scores(ppo: PPO, longest: Sequence[Prompt]) -> None:
    mx.eval(_scored(ppo, longest, ppo.config.rollout.batch_size).logprobs)


def _reward_inputs(ppo: PPO, longest: Sequence[Prompt]) -> list[RewardInput]:
    """Return as many rows as an iteration has, the longest prompts first, with responses of the greatest length.

    The responses are words that exist, because a reward model may split others into many more tokens. They differ,
    because it reads equal ones once.
    """
    c = ppo.config
    prompts = _repeated(longest, c, c.rollout.batch_size)
    draws = np.random.default_rng(0)
    rows = []
    for prompt in prompts:
        words = "".join(draws.choice([" the", " and"], size=c.rollout.max_new_tokens))
        tokens = ppo.tokenizer.encode(words, add_special_tokens=False)[: c.rollout.max_new_tokens]
        text = ppo.tokenizer.decode(tokens)
        rows.append(RewardInput(prompt.prompt, text, tokens, prompt.columns, truncated=True))
    return rows


def _differentiate(ppo: PPO, longest: Sequence[Prompt]) -> None:
    c = ppo.config
    batch = _scored(ppo, longest, c.rollout.batch_size // c.ppo.minibatches)
    ones = mx.ones_like(batch.mask)
    batch = batch._replace(advantages=ones, returns=ones)
    if ppo.scores_while_learning:
        batch = batch._replace(logprobs=None)
    options = StepOptions(temperature=c.rollout.temperature, progress=_heard(ppo), alternatives=ppo.alternatives)
    for objective in ppo.objectives(c.ppo.critic_warmup + 1):
        mx.eval(ppo.learner.gradients(batch, c.ppo, objective, **options).of)


def _scored(ppo: PPO, longest: Sequence[Prompt], most: int) -> Experience:
    """Return one micro-batch of the longest prompts with responses of the greatest length, scored."""
    c = ppo.config
    length = len(longest[0].tokens) + c.rollout.max_new_tokens
    count = max(1, min(most, c.optim.micro_batch_tokens // length))
    draws = np.random.default_rng(0)
    tokens = draws.integers(vocabulary_size(ppo.actor.backbone), size=(count, c.rollout.max_new_tokens)).tolist()
    responses = [Response(row, [0.0] * len(row), "", True) for row in tokens]
    batch = lay_out(_repeated(longest, c, count), responses)
    return ppo.score(batch, _heard(ppo), alternatives=ppo.alternatives)


def _heard(ppo: PPO) -> Progress:
    """Return a progress that hears a stop between two parts of a pass."""
    return lambda done, total: ppo.control.check_end()


def _repeated(longest: Sequence[Prompt], config: Config, count: int) -> list[Prompt]:
    """Return `count` prompts, the longest first, each as often as an iteration repeats it."""
    samples = config.rollout.samples_per_prompt
    return [longest[place // samples % len(longest)] for place in range(count)]
