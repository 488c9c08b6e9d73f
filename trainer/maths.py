"""Mathematics of PPO for language models and of reward models: arrays in, arrays out.

Shapes: B sequences, T response tokens (right-padded), V tokens of the vocabulary. `mask` is 1 on real response tokens
and 0 on padding. Logarithms are natural, so KL and entropy are in nats.
"""

from __future__ import annotations

import math
from typing import Literal

import mlx.core as mx
import numpy as np
import numpy.typing as npt

KLEstimator = Literal["k1", "k2", "k3", "abs", "full"]
Aggregation = Literal["token", "sequence", "constant"]

_LARGEST_LOG_R = 2.610868638149876  # k3 is 10 there
_LARGEST_KL_ERROR = 0.2  # of `adapted_kl_coef`


def token_logprobs(logits: mx.array, tokens: mx.array) -> mx.array:
    """Return the log-probability of each token, log softmax(logits)[token], in float32.

    logits: [..., V]; tokens: [...] of ids. Returns [...].
    """
    # The fused kernel returns float32 on every input dtype but rounds half-precision logits on the CPU: cast first.
    return -mx.fast.cross_entropy(logits.astype(mx.float32), tokens)


def entropy(logits: mx.array) -> mx.array:
    """Return the entropy of the full distribution, H = log Z - sum_v p_v l_v, in nats.

    logits: [..., V]. Returns [...], float32.
    """
    logits = logits.astype(mx.float32)
    logits = logits - mx.stop_gradient(logits.max(axis=-1, keepdims=True))  # large sums would cancel
    probabilities = mx.softmax(logits, axis=-1)
    possible = mx.where(probabilities > 0, logits, 0.0)  # 0 times a logit of -inf is 0 here
    return mx.logsumexp(logits, axis=-1) - (probabilities * possible).sum(axis=-1)


def kl_estimate(logprobs: mx.array, ref_logprobs: mx.array, estimator: KLEstimator = "k1") -> mx.array:
    """Estimate KL(pi || pi_ref) from tokens sampled by pi, with log r = log pi_ref - log pi.

        k1 = -log r,   k2 = (log r)^2 / 2,   k3 = rho - 1 - log rho,   abs = |log r|,   rho = min(r, 13.6)

    k1 and k3 are unbiased but for the bound on r, and k3 is never negative; k2 and abs are biased but never negative.
    "full" is the exact KL of two distributions (`kl_divergence`), which no single token tells: here it is k1, whose
    mean it is. The bound limits k3 to 10, as in verl, where the reference finds a token likelier. Without it, one token
    that only the reference likes could have a k3 of e^20 and outweigh the whole batch. logprobs, ref_logprobs: any one
    shape. Returns that shape. Schulman 2020, "Approximating KL divergence".
    """
    log_r = ref_logprobs - logprobs
    if estimator in ("k1", "full"):
        return -log_r
    if estimator == "k2":
        return 0.5 * log_r * log_r
    if estimator == "k3":
        log_rho = mx.minimum(log_r, _LARGEST_LOG_R)
        return mx.expm1(log_rho) - log_rho
    return mx.abs(log_r)


def kl_loss(logprobs: mx.array, ref_logprobs: mx.array, estimator: KLEstimator) -> mx.array:
    """Return `kl_estimate` with k3 continued by its tangent beyond the bound on r, for a penalty in the loss.

        k3 + (rho - 1) (log r - log rho)

    A bounded k3 has no gradient where the policy has all but forgotten a token that the reference likes. The tangent
    has one, 1 - rho by log pi, which is the largest that k3 has within the bound. logprobs, ref_logprobs: any one
    shape. Returns that shape.
    """
    estimate = kl_estimate(logprobs, ref_logprobs, estimator)
    if estimator != "k3":
        return estimate
    beyond = mx.maximum(ref_logprobs - logprobs - _LARGEST_LOG_R, 0.0)
    return estimate + math.expm1(_LARGEST_LOG_R) * beyond


def masked_mean(x: mx.array, mask: mx.array) -> mx.array:
    """Return the mean of x where mask is 1, as a scalar; 0 if the mask is empty. x, mask: one shape."""
    return mx.where(mask > 0, x, 0.0).sum() / mx.maximum(mask.sum(), 1)


def masked_variance(x: mx.array, mask: mx.array) -> mx.array:
    """Return the population variance of x where mask is 1, as a scalar. x, mask: one shape."""
    return masked_mean(mx.square(x - masked_mean(x, mask)), mask)


def root_mean_square(x: mx.array, mask: mx.array) -> mx.array:
    """Return the root of the mean square of x where mask is 1, as a scalar. x, mask: one shape."""
    return mx.sqrt(masked_mean(mx.square(x), mask))


def mean_of_known(x: npt.ArrayLike) -> float:
    """Return the mean of the numbers of x that are not NaN; NaN if there are none."""
    known = np.asarray(x, dtype=np.float64)
    known = known[~np.isnan(known)]
    return float(known.mean()) if known.size else math.nan


def whiten(x: mx.array, mask: mx.array, *, shift_mean: bool = True) -> mx.array:
    """Scale x to deviation 1 over the real tokens, and to mean 0 unless `shift_mean` is false.

    Numbers that are equal but for rounding get the deviation 0. There is no epsilon, which would depend on x's unit.
    Rewards are whitened with their mean kept ("N Implementation Details", detail 1.4). x, mask: [B, T]. Returns [B, T],
    0 outside the mask.
    """
    mean = masked_mean(x, mask)
    variance = masked_variance(x, mask)
    is_rounding = variance <= 1e-12 * masked_mean(mx.square(x), mask)
    whitened = mx.where(is_rounding, 0.0, (x - mean) * mx.rsqrt(variance))
    return mx.where(mask > 0, whitened if shift_mean else whitened + mean, 0.0)


def shaped_rewards(kl: mx.array, scores: mx.array, mask: mx.array, *, kl_coef: float) -> mx.array:
    """Return r_t = -beta KL_t, plus the score on the last real token.

    kl, mask: [B, T]; scores: [B]. Returns [B, T], 0 outside the mask. A row without real tokens loses its score.
    Ziegler et al. 2019 (arXiv 1909.08593), eq. 2.
    """
    last = mx.arange(mask.shape[1])[None] == mask.sum(axis=1, keepdims=True) - 1
    return mx.where(mask > 0, -kl_coef * kl, 0.0) + mx.where(last, scores[:, None], 0.0)


def td_errors(
    rewards: mx.array, values: mx.array, mask: mx.array, *, gamma: float, final_values: mx.array | None = None
) -> mx.array:
    """Return delta_t = r_t + gamma V(s_{t+1}) - V(s_t).

    V after the last real token is 0, or `final_values` [B] if given: the critic's estimate for a truncated response.
    rewards, values, mask: [B, T]. Returns [B, T], 0 outside the mask.
    """
    padded = mx.where(mask > 0, values, 0.0)
    next_values = mx.concatenate([padded[:, 1:], mx.zeros_like(padded[:, :1])], axis=1)
    if final_values is not None:
        last = mx.arange(mask.shape[1])[None] == mask.sum(axis=1, keepdims=True) - 1
        next_values = mx.where(last, final_values[:, None], next_values)
    return mx.where(mask > 0, rewards + gamma * next_values - padded, 0.0)


def discounted_sums(x: mx.array, mask: mx.array, discount: float) -> mx.array:
    """Return S_t = sum_{l >= 0} discount^l x_{t+l} over the real tokens, by S_t = x_t + discount S_{t+1}.

    In float64, on the host: the arrays are small, and a matrix product rounds its factors to ten bits on some GPUs. x,
    mask: [B, T]. Returns [B, T], 0 outside the mask, without gradient.
    """
    real = np.array(mask) > 0
    sums = np.where(real, np.array(x, dtype=np.float64), 0.0)
    for t in reversed(range(sums.shape[1] - 1)):
        sums[:, t] += discount * sums[:, t + 1]
    return mx.array(np.where(real, sums, 0.0).astype(np.float32))


def leave_one_out_mean(x: mx.array, group: int) -> mx.array:
    """Return, for each member of a group, the mean of the others: a baseline independent of that member.

        b_i = 1 / (n - 1) sum_{j != i} x_j

    x: [B], consecutive groups of `group` > 1 members, of which n are not NaN. Returns [B], x itself where it is alone.
    Kool et al. 2019, "Buy 4 REINFORCE samples, get a baseline for free!"; for language models Ahmadian et al. 2024
    (arXiv 2402.14740), eq. 7.
    """
    groups = _groups(x, group)
    others = (~np.isnan(groups)).sum(axis=1, keepdims=True) - 1
    means = (np.nansum(groups, axis=1, keepdims=True) - groups) / np.maximum(others, 1)
    return mx.array(np.where(others > 0, means, groups).reshape(-1).astype(np.float32))


def group_moments(x: mx.array, group: int) -> tuple[mx.array, mx.array]:
    """Return, for each member, the mean and the sample standard deviation (by n - 1) of its group.

    x: [B], consecutive groups of `group` > 1 members, of which n are not NaN. Returns two arrays [B]; the deviation is
    0 for n < 2. Shao et al. 2024 (arXiv 2402.03300), section 4.1.2, with the deviation as in TRL and the authors' code.
    """
    groups = _groups(x, group)
    known = (~np.isnan(groups)).sum(axis=1)
    means = np.nansum(groups, axis=1) / np.maximum(known, 1)
    squares = np.nansum(np.square(groups - means[:, None]), axis=1)
    moments = means, np.sqrt(squares / np.maximum(known - 1, 1))
    mean, deviation = (mx.array(np.repeat(moment, group).astype(np.float32)) for moment in moments)
    return mean, deviation


def _groups(x: mx.array, group: int) -> npt.NDArray[np.float64]:
    """Return x, [B], as [B / n, n] in float64, because the mean of equal numbers may differ from them in float32."""
    return np.array(x, dtype=np.float64).reshape(-1, group)


def sequence_log_ratio(log_ratio: mx.array, mask: mx.array) -> mx.array:
    """Return log s_i of GSPO at each token of response i: the mean of log rho over the tokens of the response.

        s_i = (pi(y_i) / pi_old(y_i))^(1 / |y_i|) = exp(1 / |y_i| sum_t log rho_it),   s_it = sg[s_i] pi_it / sg[pi_it]

    The second form (GSPO-token) equals the first, and its gradient by a token is that of the token alone, so tokens may
    have advantages and weights of their own. Where all tokens of a response have the same, as with groups, the gradient
    of the loss is that of s_i. Zheng et al. 2025 (arXiv 2507.18071), eq. 7 and 14. log_ratio, mask: [B, T]. Returns
    [B, T], 0 outside the mask.
    """
    log_ratio = mx.where(mask > 0, log_ratio, 0.0)
    mean = log_ratio.sum(axis=1, keepdims=True) / mx.maximum(mask.sum(axis=1, keepdims=True), 1)
    return mx.where(mask > 0, mx.stop_gradient(mean) + (log_ratio - mx.stop_gradient(log_ratio)), 0.0)


def clipped_policy_loss(
    log_ratio: mx.array,
    advantages: mx.array,
    *,
    clip: float,
    clip_high: float | None = None,
    dual_clip: float | None = None,
) -> mx.array:
    """Return PPO's clipped surrogate, as a loss per token.

        max(-A rho, -A clip(rho, 1 - eps, 1 + eps)),   rho = pi / pi_old

    log_ratio: log rho of each token, or of its sequence (`sequence_log_ratio`). Both arrays: [B, T]. Returns [B, T].
    The gradient is zero where clipping is active. Schulman et al. 2017 (arXiv 1707.06347), eq. 7, negated.

    clip_high: another eps for the upper bound, so that unlikely tokens may rise further (Yu et al. 2025,
    arXiv 2503.14476, eq. 10). dual_clip: c > 1, which limits the loss to -c A where A < 0. Without it, one token that
    has become very likely outweighs all others (Ye et al. 2020, arXiv 1912.09729, eq. 5).
    """
    ratio = mx.exp(log_ratio)
    upper = 1 + (clip if clip_high is None else clip_high)
    loss = mx.maximum(-advantages * ratio, -advantages * mx.clip(ratio, 1 - clip, upper))
    if dual_clip is not None:
        loss = mx.where(advantages < 0, mx.minimum(loss, -dual_clip * advantages), loss)
    return loss


def cispo_loss(logprobs: mx.array, log_ratio: mx.array, advantages: mx.array, *, clip_high: float) -> mx.array:
    """Return CISPO's loss per token: REINFORCE's, weighted by the ratio up to a bound.

        -sg[min(rho, 1 + eps)] A log pi,   rho = pi / pi_old

    A bounded weight is a constant, so that no token loses its gradient, as it does where PPO clips. All arrays: [B, T].
    Returns [B, T]. MiniMax 2025 (arXiv 2506.13585), eq. 4 and 5, negated, without the lower bound, which they do not
    use.
    """
    return -mx.stop_gradient(mx.minimum(mx.exp(log_ratio), 1 + clip_high)) * advantages * logprobs


def importance_weights(old_logprobs: mx.array, sampler_logprobs: mx.array, cap: float) -> mx.array:
    """Return min(pi_old / pi_sampler, cap), the weight of a token sampled from a slightly different distribution.

    Sampler and trainer compute the same policy with different kernels or in different precision. The ratio removes that
    difference from the gradient's mean, and the cap bounds the variance that this adds. Both arrays: any one shape.
    Returns that shape, without gradient. Truncated importance sampling, Ionides 2008; for sampler and trainer Yao
    et al. 2025.
    """
    return mx.stop_gradient(mx.minimum(mx.exp(old_logprobs - sampler_logprobs), cap))


def aggregated(x: mx.array, mask: mx.array, aggregation: Aggregation) -> mx.array:
    """Return the sum of token losses, weighted as `aggregation` says.

    Divided by `aggregation_total` of the batch, it is the batch's mean. Sums of parts of a batch add up to the batch's
    sum.

    - token: every token counts the same (PPO; DAPO).
    - sequence: every sequence counts the same, so a token of a long one counts less (GRPO, Shao et al. 2024).
    - constant: every token counts the same, whatever the other lengths of the batch (Dr. GRPO, Liu et al. 2025,
      arXiv 2503.20783).

    x, mask: [B, T]. Returns a scalar.
    """
    x = mx.where(mask > 0, x, 0.0)
    if aggregation == "sequence":
        return (x.sum(axis=1) / mx.maximum(mask.sum(axis=1), 1)).sum()
    return x.sum()


def aggregation_total(mask: mx.array, aggregation: Aggregation, max_tokens: int) -> mx.array:
    """Return the divisor of `aggregated`: tokens, sequences with any, or those times `max_tokens`. mask: [B, T]."""
    if aggregation == "token":
        return mask.sum()
    return mx.any(mask > 0, axis=1).sum() * float(max_tokens if aggregation == "constant" else 1)


def clipped_value_loss(values: mx.array, old_values: mx.array, returns: mx.array, *, clip: float | None) -> mx.array:
    """Return half the larger squared error of the value and of the value clipped to within `clip` of the old one.

        L = 1/2 max((V - G)^2, (V_old + clip(V - V_old, -eps, eps) - G)^2)

    All arrays: [B, T]. Returns [B, T]; the plain halved squared error if `clip` is None.
    """
    error = mx.square(values - returns)
    if clip is not None:
        held = old_values + mx.clip(values - old_values, -clip, clip)
        error = mx.maximum(error, mx.square(held - returns))
    return 0.5 * error


def approx_kl(log_ratio: mx.array) -> mx.array:
    """Estimate KL(pi_old || pi) per token by k3, (rho - 1) - log rho, where log rho = log pi - log pi_old.

    log_ratio: log rho, any shape. Returns that shape.
    """
    return mx.expm1(log_ratio) - log_ratio


def explained_variance(values: mx.array, returns: mx.array, mask: mx.array) -> mx.array:
    """Return 1 - Var(G - V) / Var(G) over real tokens: 1 is a perfect critic, 0 no better than the mean.

    values, returns, mask: [B, T]. Returns a scalar, NaN if the returns do not vary.
    """
    variance = masked_variance(returns, mask)
    unexplained = masked_variance(returns - values, mask)
    return mx.where(variance > 1e-12, 1 - unexplained / mx.maximum(variance, 1e-12), mx.array(float("nan")))


def bradley_terry_loss(lead: mx.array, margin: mx.array | float = 0.0) -> mx.array:
    """Return -log P(the better one wins) = -log sigmoid(lead - margin), where lead = r_better - r_worse.

    lead, margin: any one shape. Returns that shape. Only differences count, so a shift of all rewards changes nothing.
    Bradley and Terry 1952; the margin is that of Touvron et al. 2023 (Llama 2, arXiv 2307.09288), eq. 2.
    """
    return mx.logaddexp(0.0, margin - lead)


def davidson_logprobs(lead: mx.array, log_nu: mx.array) -> mx.array:
    """Return the log-probabilities of (first wins, tie, second wins) where ties are possible.

        P(i wins) = p_i / Z,   P(tie) = nu sqrt(p_i p_j) / Z,   Z = p_i + p_j + nu sqrt(p_i p_j),   p = exp(r)

    This is softmax(lead / 2, log nu, -lead / 2) with lead = r_i - r_j. With nu = 0 it is Bradley-Terry. For any nu, so
    is the distribution given that there is no tie: ties do not change what a lead means for decided pairs, unlike with
    the threshold of Rao and Kupper 1967. lead: any shape; log_nu: scalar. Returns [..., 3]. Davidson 1970, "On
    Extending the Bradley-Terry Model to Accommodate Ties".
    """
    logits = mx.stack([lead / 2, mx.broadcast_to(log_nu, lead.shape), -lead / 2], axis=-1)
    return logits - mx.logsumexp(logits, axis=-1, keepdims=True)


def plackett_luce_loss(rewards: mx.array, ranks: mx.array, mask: mx.array) -> mx.array:
    """Return -log P(ranking), as a mean over its choices: first the best of all, then the best of the rest, and so on.

        L = 1/C sum_i [log sum_{j: rank_j >= rank_i} exp(r_j) - r_i]

    Members of one rank are each chosen from all that are not ranked above them, their equals included (Breslow's
    approximation), which draws their rewards together. C counts the choices from more than one member. For two members
    without a tie, this is the Bradley-Terry loss. rewards, ranks, mask: [R, K], rank 0 the best, mask 0 where a ranking
    has no further member. Returns [R], 0 without a choice. Plackett 1975; Luce 1959; ties: Breslow 1974.
    """
    pool = (ranks[:, None, :] >= ranks[:, :, None]) & (mask[:, None, :] > 0)  # [R, chosen, candidate]
    is_choice = (mask > 0) & (pool.sum(axis=-1) > 1)
    pool = pool | mx.eye(ranks.shape[1], dtype=mx.bool_)  # an empty sum would make the gradient of the padding NaN
    totals = mx.logsumexp(mx.where(pool, rewards[:, None, :], -mx.inf), axis=-1)
    losses = mx.where(is_choice, totals - rewards, 0.0)
    return losses.sum(axis=-1) / mx.maximum(is_choice.sum(axis=-1), 1)


def dpo_loss(lead: mx.array, *, beta: float, label_smoothing: float = 0.0) -> mx.array:
    """Return -(1 - eps) log sigmoid(beta h) - eps log sigmoid(-beta h), where h is the lead of the chosen completion.

        h = (log pi(c) - log pi_ref(c)) - (log pi(r) - log pi_ref(r))

    Log-probs are summed over each completion; eps is the share of labels that are assumed to be wrong. lead: any shape.
    Returns that shape, log 2 at h = 0 for every eps. Rafailov et al. 2023 (arXiv 2305.18290), eq. 7; with eps: Mitchell
    2023, "A note on DPO with noisy preferences and relationship to IPO", eq. 3.
    """
    wrong, right = mx.logaddexp(0.0, -beta * lead), mx.logaddexp(0.0, beta * lead)
    return (1 - label_smoothing) * wrong + label_smoothing * right


def ipo_loss(lead: mx.array, *, beta: float) -> mx.array:
    """Return (h - 1 / (2 beta))^2, with h as in `dpo_loss`: the lead has a target and does not grow without end.

    Azar et al. 2023 (arXiv 2310.12036), eq. 17, sum the log-probs over each completion. Like TRL, our caller passes a
    lead of their means per token, so that the target means the same at every length. lead: any shape. Returns that
    shape.
    """
    return mx.square(lead - 1 / (2 * beta))


def kl_divergence(logits: mx.array, ref_logits: mx.array) -> mx.array:
    """Return KL(p || q) = sum_v p_v (log p_v - log q_v) of two full distributions, in nats.

    logits, ref_logits: [..., V]. Returns [...], float32.
    """
    logits, ref_logits = logits.astype(mx.float32), ref_logits.astype(mx.float32)
    logprobs = logits - mx.logsumexp(logits, axis=-1, keepdims=True)
    ref_logprobs = ref_logits - mx.logsumexp(ref_logits, axis=-1, keepdims=True)
    probabilities = mx.exp(logprobs)
    # 0 times infinity is 0 here, for tokens of probability 0.
    return mx.where(probabilities > 0, probabilities * (logprobs - ref_logprobs), 0.0).sum(axis=-1)


def adapted_kl_coef(kl_coef: float, kl: float, *, target: float, horizon: int, sequences: int) -> float:
    """Return beta (1 + error min(n / horizon, 1)), where error = clip(KL / target - 1, -0.2, 0.2).

    The coefficient rises if the KL is above the target, and falls if it is below. kl, target: nats per sequence;
    sequences: n, the number of sequences that `kl` is the mean of. A KL that is not finite changes nothing. Ziegler
    et al. 2019 (arXiv 1909.08593), section 2.2, without the bound of 1: there, a batch five times as large as the
    horizon can bring the coefficient to 0, and a larger one below it.
    """
    if not math.isfinite(kl):
        return kl_coef
    error = min(max(kl / target - 1, -_LARGEST_KL_ERROR), _LARGEST_KL_ERROR)
    return kl_coef * (1 + error * min(sequences / horizon, 1.0))
