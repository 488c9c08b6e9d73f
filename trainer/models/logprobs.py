"""Log-probs and entropy of a model's logits at a temperature, by the quickest exact way on this device."""

from __future__ import annotations

import mlx.core as mx

from trainer import maths
from trainer.models import cpu


def token_logprobs(logits: mx.array, tokens: mx.array, temperature: float = 1.0) -> mx.array:
    """`maths.token_logprobs` of the distribution sampled from, logits / temperature: [..., V], [...] -> [...]."""
    logits = _scaled(logits, temperature)
    return cpu.token_logprobs(logits, tokens) if _on_cpu() else maths.token_logprobs(logits, tokens)


def logprobs_and_entropy(logits: mx.array, tokens: mx.array, temperature: float = 1.0) -> tuple[mx.array, mx.array]:
    """`token_logprobs` and `maths.entropy` of the same distribution, not to be differentiated. Two [...] arrays."""
    logits = _scaled(logits, temperature)
    if _on_cpu():
        return cpu.logprobs_and_entropy(logits, tokens)
    return maths.token_logprobs(logits, tokens), maths.entropy(logits)


def entropy(logits: mx.array, temperature: float = 1.0) -> mx.array:
    """`maths.entropy` of the distribution that is sampled from; differentiable. [..., V] -> [...]."""
    return maths.entropy(_scaled(logits, temperature))


def exponentials(x: mx.array) -> mx.array:
    """exp(x) for x <= 0, good to 1e-5 of itself down to exp(-10) and to 1e-9 of exp(0) below; exactly 0 at -inf."""
    return cpu.exponentials(x) if _on_cpu() else mx.exp(x)


def _scaled(logits: mx.array, temperature: float) -> mx.array:
    logits = logits.astype(mx.float32)
    return logits if temperature == 1 else logits / temperature


def _on_cpu() -> bool:
    return mx.default_device() == mx.Device(mx.cpu)
