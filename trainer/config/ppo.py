"""[ppo]: the algorithm."""

from __future__ import annotations

from typing import Literal

from trainer.config.fields import Section, setting

_TUNING = "PPO concepts reference, hyperparameter guide"
_ZIEGLER = "Ziegler et al. 2019, section 2.2"
_DAPO = "Yu et al. 2025 (DAPO)"


class PPOConfig(Section):
    """[ppo]: the algorithm."""

    iterations: int = setting(100, "Iterations of the run.", ge=1)
    estimator: Literal["gae", "reinforce", "rloo", "remax", "grpo"] = setting(
        "gae",
        "Estimator of the advantages: gae by the critic; else a baseline: the batch's (reinforce), the "
        "prompt's (rloo, grpo), the greedy response's (remax).",
        source="Schulman et al. 2015",
        advice="Iterations are faster without a critic. rloo and grpo need several samples per prompt.",
    )
    group_std: bool = setting(
        True, "Divide the advantages of grpo by the standard deviation of the prompt's scores; false: Dr. GRPO."
    )
    epochs: int = setting(4, "Passes over each batch.", ge=1, le=100, source=_TUNING, live=True)
    minibatches: int = setting(
        1,
        "Optimiser steps per epoch; must divide rollout.batch_size.",
        ge=1,
        advice="More minibatches: smaller steps, steadier training.",
    )
    kl_coef: float = setting(
        0.05,
        "Strength of the KL penalty.",
        unit="score per nat",
        ge=0,
        le=100,
        live=True,
        source=_TUNING,
        advice="KL too high: raise it. Nothing is learned: lower it.",
    )
    kl_estimator: Literal["k1", "k2", "k3", "abs", "full"] = setting(
        "k1",
        "Estimator of the KL in the penalty. full: not estimated, the KL of the whole distributions; in the loss only.",
        source="Schulman 2020, Approximating KL divergence",
    )
    kl_in: Literal["reward", "loss"] = setting(
        "reward",
        "Where the KL penalty goes: subtracted from the tokens' rewards, or added to the loss (full, k3 or k2), as in "
        "GRPO.",
        source=_ZIEGLER,
    )
    kl_controller: Literal["fixed", "adaptive"] = setting(
        "fixed", "adaptive: adjust kl_coef after each iteration to bring the KL to kl_target.", source=_ZIEGLER
    )
    kl_target: float = setting(
        6.0, "Target KL of the adaptive controller.", unit="nats per sequence", gt=0, live=True, source=_ZIEGLER
    )
    kl_horizon: int = setting(
        10_000,
        "Number of sequences over which kl_coef changes by at most a fifth.",
        unit="sequences",
        ge=1,
        live=True,
        source=_ZIEGLER,
        advice="For short runs, use a tenth of all their sequences.",
    )
    policy_loss: Literal["clip", "cispo"] = setting(
        "clip",
        "Loss of a token. clip: PPO's; cispo: minus its log-prob, weighted by the advantage and the ratio up to "
        "1 + clip_high, so that no token loses its gradient.",
        source="Schulman et al. 2017; cispo: MiniMax 2025",
        advice="For cispo, set clip_high (1 to 4).",
    )
    ratio: Literal["token", "sequence"] = setting(
        "token",
        "Policy ratio that is clipped. token: of each token; sequence: its geometric mean over the response.",
        source="sequence: Zheng et al. 2025 (GSPO)",
        advice="For sequence, clip = 3e-4, clip_high = 4e-4 and loss_aggregation = 'sequence'.",
    )
    clip: float = setting(
        0.2,
        "The policy ratio is clipped to 1 - clip .. 1 + clip.",
        gt=0,
        live=True,
        source="Schulman et al. 2017",
        advice="Unstable: lower it (0.1). Nothing is learned: raise it (0.3).",
    )
    clip_high: float = setting(
        0.0,
        "Upper clip range: the ratio is clipped to at most 1 + clip_high; 0 for 1 + clip.",
        ge=0,
        live=True,
        source=_DAPO,
    )
    dual_clip: float = setting(
        0.0,
        "Limit the loss at negative advantages to this multiple of the advantage, above 1; 0 for no limit.",
        ge=0,
        live=True,
        source="Ye et al. 2020 (dual-clip PPO): 3",
    )
    loss_aggregation: Literal["token", "sequence", "constant"] = setting(
        "token",
        "Loss of a batch. token: mean over all tokens; sequence: mean of the sequences' means; constant: sum over "
        "max_new_tokens times the sequences.",
        source=f"token: {_DAPO}; sequence: GRPO; constant: Dr. GRPO",
    )
    target_approx_kl: float = setting(
        0.0,
        "End the epochs of an iteration early, before a step whose minibatch has an approximate KL from the sampling "
        "policy above this; 0 for never.",
        unit="nats per token",
        ge=0,
        live=True,
        advice="Usual: 0.01 to 0.05.",
    )
    ratio_threshold: float = setting(
        10.0, "Skip a minibatch whose mean ratio is above this; 0 for never.", ge=0, live=True, source="TRL 0.11"
    )
    importance_cap: float = setting(
        0.0,
        "Weight each token's loss by its probability ratio of trainer to sampler, capped at this; 0 for off.",
        ge=0,
        live=True,
        source="Yao et al. 2025 (truncated importance sampling): 2",
    )
    relative_value_clip: float = setting(
        1.0,
        "Clip range of the values, in units of the critic's error; 0 for no clipping. Unused by a fitted critic.",
        ge=0,
        live=True,
    )
    value_coef: float = setting(
        0.1, "Weight c1 of the value loss; unused by a fitted critic.", ge=0, live=True, source=_TUNING
    )
    critic_warmup: int = setting(0, "Iterations at the start that train the critic alone.", unit="iterations", ge=0)
    entropy_coef: float = setting(0.0, "Weight c2 of the entropy bonus.", ge=0, live=True)
    gamma: float = setting(1.0, "Discount factor.", ge=0, le=1, live=True, source=_TUNING)
    lam: float = setting(
        0.95,
        "Lambda of GAE: 0 is one-step TD, 1 is Monte Carlo. Below 1, errors of the values bias the advantages.",
        ge=0,
        le=1,
        live=True,
    )
    prefix_scores: int = setting(
        -1,
        "Score responses also as far as they are written, every so many tokens: the critic begins with that. 0: off; "
        "-1: for cheap rewards, up to 64 of a response.",
        unit="tokens",
        ge=-1,
        live=True,
        advice="For scores that build up along the text. Cheap are lexicon, length and regex. Without prefix scores, "
        "the value model is the critic alone. With lam below 1, a token may gain by a score that is lost again later.",
    )
    whiten_advantages: bool = setting(
        True, "Normalise advantages to mean 0 and standard deviation 1 over the tokens of the batch."
    )
    whiten_rewards: bool = setting(
        False,
        "Scale rewards to standard deviation 1 and keep their mean. Not for fewer than 16 sequences.",
        source=_TUNING,
    )
    bootstrap_truncated: bool = setting(
        False,
        "Bootstrap truncated responses: the critic's value after the last token takes the place of their score.",
        advice="For scores that only mean something for complete responses. If all are truncated, nothing tells the "
        "critic what they are worth.",
    )

    @property
    def bootstraps(self) -> bool:
        """Return whether the critic's value takes the place of the score of a truncated response."""
        return self.bootstrap_truncated and self.estimator == "gae"
