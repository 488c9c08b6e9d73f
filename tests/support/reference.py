"""Slow and obvious versions in float64 of what the trainer computes: loops over sequences and tokens, from the papers.

Padding is never touched: every function takes the real lengths.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]


def float64(x: Any) -> Floats:
    """Convert an MLX array, or nested lists, to float64."""
    return np.array(x, dtype=np.float64)


def log_softmax(logits: Floats) -> Floats:
    """Return log-probabilities [..., V]; a logit of -inf gives -inf."""
    shifted = logits - logits.max(axis=-1, keepdims=True)
    return shifted - np.log(np.exp(shifted).sum(axis=-1, keepdims=True))


def entropy(logits: Floats) -> Floats:
    """Return - sum p log p with 0 log 0 = 0. [..., V] -> [...]."""
    logprobs = log_softmax(logits)
    return -np.where(np.isfinite(logprobs), np.exp(logprobs) * np.where(np.isfinite(logprobs), logprobs, 0), 0).sum(-1)


def real(x: Any, lengths: Sequence[int]) -> Floats:
    """Return the real tokens of [B, T], one after the other."""
    return np.concatenate([float64(x)[row, :length] for row, length in enumerate(lengths)])


def td_errors(
    rewards: Floats, values: Floats, lengths: Sequence[int], gamma: float, final_values: Sequence[float] | None = None
) -> Floats:
    """Return r_t + gamma V_{t+1} - V_t, with V = final_values (0) after the last token. [B, T], 0 in the padding."""
    deltas = np.zeros_like(rewards)
    for row, length in enumerate(lengths):
        for t in range(length):
            after = values[row, t + 1] if t + 1 < length else (final_values[row] if final_values is not None else 0.0)
            deltas[row, t] = rewards[row, t] + gamma * after - values[row, t]
    return deltas


def gae(deltas: Floats, lengths: Sequence[int], gamma: float, lam: float) -> Floats:
    """Return GAE by the double sum of its definition. [B, T], 0 in the padding."""
    advantages = np.zeros_like(deltas)
    for row, length in enumerate(lengths):
        for t in range(length):
            advantages[row, t] = sum((gamma * lam) ** (k - t) * deltas[row, k] for k in range(t, length))
    return advantages


def policy_loss(
    logprobs: Floats, old: Floats, advantages: Floats, clip: float, clip_high: float = 0.0, dual_clip: float = 0.0
) -> Floats:
    """Return max(-A rho, -A clip(rho)) per token, and at most -c A where A < 0; 0 switches the last two off."""
    losses = []
    for new, before, advantage in zip(logprobs.flat, old.flat, advantages.flat, strict=True):
        ratio = np.exp(new - before)
        held = min(max(ratio, 1 - clip), 1 + (clip_high or clip))
        loss = max(-advantage * ratio, -advantage * held)
        losses.append(min(loss, -dual_clip * advantage) if dual_clip and advantage < 0 else loss)
    return float64(losses).reshape(logprobs.shape)


def aggregated(losses: Floats, lengths: Sequence[int], aggregation: str, max_tokens: int) -> float:
    """Return the mean loss of real tokens, one sequence after the other, weighted as `aggregation` says."""
    parts = np.split(losses, np.cumsum(lengths)[:-1])
    if aggregation == "token":
        return float(losses.mean())
    if aggregation == "sequence":
        return float(np.mean([part.mean() for part in parts]))
    return float(sum(part.sum() / max_tokens for part in parts) / len(parts))


def kl_estimate(logprobs: Floats, ref: Floats, estimator: str) -> Floats:
    """Return Schulman's estimators of KL(pi || pi_ref)."""
    log_r = ref - logprobs
    return {"k1": -log_r, "k2": log_r**2 / 2, "k3": np.exp(log_r) - 1 - log_r, "abs": abs(log_r)}[estimator]


def value_loss(values: Floats, old: Floats, returns: Floats, clip: float | None) -> Floats:
    """Return max((V - G)^2, (V_held - G)^2) / 2 per token."""
    losses = []
    for value, before, target in zip(values.flat, old.flat, returns.flat, strict=True):
        held = value if clip is None else before + min(max(value - before, -clip), clip)
        losses.append(max((value - target) ** 2, (held - target) ** 2) / 2)
    return float64(losses).reshape(values.shape)


def explained_variance(values: Floats, returns: Floats) -> float:
    """Return 1 - Var(G - V) / Var(G) of the real tokens."""
    return float(1 - np.var(returns - values) / np.var(returns))


def adamw(
    theta: Floats, gradients: Sequence[Floats], *, lr: float, beta1: float, beta2: float, eps: float, decay: float
) -> Floats:
    """Apply Adam with bias correction and decoupled weight decay (arXiv 1711.05101), one step per gradient."""
    m, v = np.zeros_like(theta), np.zeros_like(theta)
    for step, gradient in enumerate(gradients, 1):
        m = beta1 * m + (1 - beta1) * gradient
        v = beta2 * v + (1 - beta2) * gradient**2
        theta = theta * (1 - lr * decay)
        theta = theta - lr * (m / (1 - beta1**step)) / (np.sqrt(v / (1 - beta2**step)) + eps)
    return theta
