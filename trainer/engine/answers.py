"""Answers to questions: what the policy of a run, or of a checkpoint, writes on request, on the model's thread."""

from __future__ import annotations

import contextlib
import functools
import math
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import mlx.core as mx

from trainer.arrays import Purpose, clear_cache, filled, key_for, to_list
from trainer.config import Config, load_config
from trainer.config.problems import broken_rule
from trainer.config.schema import RolloutConfig
from trainer.data import Prompt, PromptRow, render_prompt
from trainer.errors import DataError, Interrupted, RewardError, TrainerError, UntrustedCodeError, UsageError, one_line
from trainer.models.actor_critic import ActorCriticLLM
from trainer.models.backbone import LoadedModel, load_backbone
from trainer.models.forward import vocabulary_size
from trainer.policy_checkpoint import load_checkpoint
from trainer.ppo.steps import add_kl_to_sa_pairs, add_policy_logprobs_and_values
from trainer.questions import Answer, Question, QuestionDroppedError, WrittenResponse
from trainer.rewards import RewardInput, RewardResult, TrainerState, Trust, build_rewards
from trainer.rewards.code import trust_none
from trainer.rollout.generation import Response, generate_responses, lay_out
from trainer.rollout.token_texts import TokenTexts
from trainer.runs.checkpoint_files import checkpoints, read_newest
from trainer.runs.folder import RunFolder

MOST_COMPLETIONS = 16

Score = Callable[[Sequence[RewardInput]], RewardResult]
"""The run's reward, without an update of its statistics. Raises RewardError."""


def answer(
    question: Question,
    *,
    actor: ActorCriticLLM,
    model: LoadedModel,
    score: Score,
    config: Config,
    iteration: int,
    progress: Callable[[], None],
) -> Answer:
    """Continue with `actor` what `question` gives, and score what it wrote; `problem` says why if that fails.

    model: the model that `actor` is built on; iteration: completed iterations of its training. The log-probs use the
    run's own temperature, as in its samples, whatever temperature was sampled with. All draws use keys from the
    question's seed, so a question changes nothing in the run.

    progress: called after every token step and micro-batch. It may raise Interrupted or a TrainerError to end the run;
    nothing else is raised. QuestionDroppedError ends only the answer.
    """
    began = time.perf_counter()
    text, written, problem = "", list[WrittenResponse](), ""
    try:
        size = vocabulary_size(model.backbone)
        if unknown := [one for one in (*(question.prompt_tokens or ()), *question.prefix) if not 0 <= one < size]:
            raise UsageError(f"token id {unknown[0]}: the model's ids are 0 to {size - 1}")
        prompt = _prompt(question, model, config)
        text = prompt.text
        sampling = _sampling(question, prompt, model, config.rollout)
        with actor.reference() if question.writer == "reference" else contextlib.nullcontext():
            responses = generate_responses(
                model.backbone,
                model.tokenizer,
                [prompt] * question.count,
                sampling,
                key=mx.random.key(question.seed),
                begun=question.prefix,
                progress=lambda done, total: progress(),
            )
        written, problem = _measured(prompt, responses, actor, model.tokenizer, score, config, progress)
    except QuestionDroppedError as dropped:
        problem = str(dropped)
    except (UsageError, DataError) as refusal:
        problem = " ".join(str(refusal).split())
    except (Interrupted, TrainerError):
        raise
    except Exception as error:  # noqa: BLE001  a question, whatever is wrong with it, must not end a run
        problem = f"the model could not answer: {one_line(error, 200)}"
    finally:
        clear_cache()  # training uses other shapes
    seconds = time.perf_counter() - began
    return Answer(
        writer=question.writer,
        iteration=iteration,
        prompt=text,
        completions=written,
        seconds=seconds,
        problem=problem,
    )


def _prompt(question: Question, model: LoadedModel, config: Config) -> Prompt:
    tokenizer = model.tokenizer
    if question.prompt_tokens is not None:
        text = str(tokenizer.decode(question.prompt_tokens))
        given = text if question.prompt is None else question.prompt
        prompt = Prompt(0, given, text, list(question.prompt_tokens), question.columns)
    elif question.prompt is None:
        raise UsageError("a question must have a prompt: give it as text, messages or prompt_tokens")
    else:
        prompt = render_prompt(PromptRow(0, question.prompt, question.columns), tokenizer, config.data)
    count, limit = len(prompt.tokens), config.data.max_prompt_tokens
    if not 1 <= count <= limit:
        raise UsageError(f"the prompt has {count} tokens, data.max_prompt_tokens = {limit}: give 1 to {limit}")
    return prompt


def _sampling(question: Question, prompt: Prompt, model: LoadedModel, rollout: RolloutConfig) -> RolloutConfig:
    """Return how to sample `question`.

    Raises UsageError for numbers that no rollout may have, a prefix that has ended, and more tokens than fit.
    """
    if not 1 <= question.count <= MOST_COMPLETIONS:
        raise UsageError(f"count = {question.count}: must be 1 to {MOST_COMPLETIONS}")
    if not 0 <= question.seed < 2**32:
        raise UsageError(f"seed = {question.seed}: must be 0 to 4294967295")
    wanted = {"temperature": question.temperature, "max_new_tokens": question.max_new_tokens}
    given = {name: value for name, value in wanted.items() if value is not None}
    for name, value in given.items():
        if rule := broken_rule(f"rollout.{name}", value):
            raise UsageError(f"{name} = {value}: {rule}")
    sampling = rollout.model_copy(update=given)
    prefix, tokenizer = question.prefix, model.tokenizer
    if not sampling.ignore_stop:
        ended = bool(set(prefix) & set(tokenizer.eos_token_ids))
        if ended or any(stop in tokenizer.decode(prefix) for stop in sampling.stop):
            raise UsageError("the prefix ends the response already: cut it before its stop")
    needed = len(prompt.tokens) + len(prefix) + sampling.max_new_tokens
    if model.context and needed > model.context:
        raise UsageError(
            f"prompt, prefix and max_new_tokens = {sampling.max_new_tokens} need {needed} tokens, but the model's "
            f"context is {model.context}: lower max_new_tokens, or shorten the prompt"
        )
    return sampling


def _measured(
    prompt: Prompt,
    responses: Sequence[Response],
    actor: ActorCriticLLM,
    tokenizer: Any,
    score: Score,
    config: Config,
    progress: Callable[[], None],
) -> tuple[list[WrittenResponse], str]:
    """Return the responses with log-probs and scores, and why they have no score if they have none."""
    passes: Any = {
        "temperature": config.rollout.temperature,
        "micro_batch_tokens": config.optim.micro_batch_tokens,
        "progress": lambda done, total: progress(),
    }
    batch = lay_out([prompt] * len(responses), responses)
    batch = add_policy_logprobs_and_values(actor, batch, critic=False, **passes)
    batch = add_kl_to_sa_pairs(actor, batch, estimator="k1", **passes)
    result, problem = None, ""
    try:
        result = score([RewardInput(prompt.prompt, r.text, r.tokens, prompt.columns, r.truncated) for r in responses])
    except RewardError as error:
        problem = one_line(error)
    logprobs, ref_logprobs = (to_list(filled(of)) for of in (batch.logprobs, batch.ref_logprobs))
    texts, written = TokenTexts(tokenizer), list[WrittenResponse]()
    for row, response in enumerate(responses):
        count = len(response.tokens)
        total, parts = math.nan, dict[str, float]()
        if result is not None:
            total = result.scores[row] + sum(result.token_rewards[row] if result.token_rewards else ())
            parts = {name: values[row] for name, values in result.parts.items()}
        written.append(
            WrittenResponse(
                text=response.text,
                tokens=response.tokens,
                token_texts=texts(response.tokens),
                logprobs=logprobs[row][:count],
                ref_logprobs=ref_logprobs[row][:count],
                score=total,
                parts=parts,
                truncated=response.truncated,
            )
        )
    return written, problem


class SavedPolicy:
    """Model, adapter and reward of the run in `folder`, loaded on the calling thread, which alone may use them.

    checkpoint: name of its folder; empty for the newest undamaged one, or for the untrained policy of a run that has no
    checkpoints. trust: as for `build_rewards`; without it no Python code of the run is executed. If the reward cannot
    be built, the answers say so. Raises a TrainerError if anything else is not available.
    """

    def __init__(self, folder: RunFolder, checkpoint: str = "", *, trust: Trust = trust_none) -> None:
        self.iteration = 0  # completed iterations of the policy's training
        self._folder = folder
        self._ignored = ""  # why newer checkpoints are not used
        self._config = load_config(folder.config)
        self._model = load_backbone(self._config.model)
        key = key_for(self._config.run.seed, Purpose.ADAPTER)
        self._actor = ActorCriticLLM(self._model.backbone, self._config.model, key=key)
        self._reward_problem = ""
        try:
            self._rewards = build_rewards(
                self._config.reward,
                backbone=self._model,
                max_new_tokens=self._config.rollout.max_new_tokens,
                micro_batch_tokens=self._config.optim.micro_batch_tokens,
                trust=trust,
            )
        except UntrustedCodeError as error:
            self._reward_problem = f"not scored: {error}"
        except RewardError as error:  # a function that was moved away, say: the policy can still write
            self._reward_problem = str(error)
        self.use(checkpoint)

    def use(self, checkpoint: str) -> None:
        """Answer with the policy of another checkpoint from now on; the backbone stays. Raises a TrainerError."""
        load = functools.partial(load_checkpoint, adapter_config=self._actor.adapter_config)
        found, problems = checkpoints(self._folder), list[str]()
        if checkpoint:
            paths = {path.name: path for path in found.paths}
            if checkpoint not in paths:
                what = f"run '{self._folder.name}' has no complete checkpoint '{checkpoint}'"
                raise UsageError(f"{what}; available: {', '.join(paths) or 'none'}")
            snapshot = load(paths[checkpoint])
        elif any(found):
            snapshot, problems = read_newest(self._folder, load)
        else:
            return
        self._ignored = "; ".join(problems)
        self._actor.update_policy(snapshot.policy)
        if not self._reward_problem and snapshot.has_statistics_of(self._config.reward):
            self._rewards.restore(snapshot.rewards)
        self.iteration = snapshot.iteration

    def answer(self, question: Question, progress: Callable[[], None]) -> Answer:
        """Answer like `trainer.engine.answers.answer`; raises only what `progress` raises.

        `problem` names damaged checkpoints that were ignored.
        """
        found = answer(
            question,
            actor=self._actor,
            model=self._model,
            score=self._score,
            config=self._config,
            iteration=self.iteration,
            progress=progress,
        )
        return replace(found, problem="; ".join(filter(None, (self._ignored, found.problem))))

    def _score(self, batch: Sequence[RewardInput]) -> RewardResult:
        if self._reward_problem:
            raise RewardError(self._reward_problem)
        self._rewards.use_state(TrainerState(self.iteration, self._config.ppo.iterations))
        return self._rewards(batch, update_statistics=False)
