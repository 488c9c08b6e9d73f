"""The vectorised functions give what the exact functions give, gradients and extreme inputs included."""

from __future__ import annotations

import ctypes
import math
import platform
import subprocess
import sys
from pathlib import Path

import mlx.core as mx
import numpy as np
import pytest
import reference
from mlx_lm.models import base, llama
from mlx_lm.models.activations import swiglu as exact_swiglu
from reference import Floats, float64

from trainer import maths
from trainer.models import kernels as cpu
from trainer.models.forward import kl_divergence, logprobs_and_entropy, token_logprobs
from trainer.models.kernels import attention, use_faster_functions

pytestmark = pytest.mark.skipif(mx.default_device() != mx.Device(mx.cpu), reason="these functions are for the CPU")

INF, NAN = float("inf"), float("nan")
WIDE = [0.0, 1e-6, 0.5, 3.0, 9.0, 20.0, 50.0, 54.9, 55.5, 90.0, 200.0, 1e3, 1e4, 1e6]
WIDE = [-x for x in reversed(WIDE)] + WIDE
EXTREME = {
    "all equal": [3.0, 3.0, 3.0, 3.0],
    "far apart": [1e4, -1e4, 0.0, 9999.0],
    "very low": [-1e4, -1e4, -1e4, -1e4 + 1],
    "one closed": [-INF, 0.5, 1.0, 2.0],
    "one open": [-INF, -INF, 0.25, -INF],
    "beyond float32's exp": [0.0, -88.0, -104.0, 100.0],
}


def sigmoid(x: Floats) -> Floats:
    return np.where(x >= 0, 1 / (1 + np.exp(-abs(x))), np.exp(-abs(x)) / (1 + np.exp(-abs(x))))


def swiglu_gradients(gate: Floats, x: Floats, cotangent: Floats) -> tuple[Floats, Floats]:
    s = sigmoid(gate)
    return cotangent * x * s * (1 + gate * (1 - s)), cotangent * gate * s


def close(actual: mx.array, expected: Floats, tolerance: float = 2e-6) -> None:
    np.testing.assert_allclose(float64(actual), expected, rtol=tolerance, atol=tolerance)


# SwiGLU


@pytest.mark.parametrize(("dtype", "rounding"), [(mx.bfloat16, 2**-8), (mx.float16, 2**-10)])
def test_swiglu_of_half_precision_is_off_by_no_more_than_the_rounding_of_its_result(
    dtype: mx.Dtype, rounding: float
) -> None:
    gate, x = (mx.random.normal((64, 64), key=mx.random.key(seed)).astype(dtype) for seed in (0, 1))
    found = cpu.swiglu(gate, x)
    assert found.dtype == dtype
    gates, factors, results = (float64(array.astype(mx.float32)) for array in (gate, x, found))
    exact = gates * sigmoid(gates) * factors
    assert (abs(results - exact) <= rounding * abs(exact) + 1e-6).all()


def test_swiglu_and_its_gradients_are_right_however_large_the_gate() -> None:
    gate, x = mx.array(WIDE), mx.array(np.linspace(-2, 2, len(WIDE)).astype(np.float32))
    cotangent = mx.array(np.cos(np.arange(len(WIDE))).astype(np.float32))
    (found,), gradients = mx.vjp(cpu.swiglu, [gate, x], [cotangent])
    close(found, float64(gate) * sigmoid(float64(gate)) * float64(x))
    assert math.isnan(cpu.swiglu(mx.array([NAN]), mx.array([1.0])).item())
    for actual, expected in zip(
        gradients, swiglu_gradients(float64(gate), float64(x), float64(cotangent)), strict=True
    ):
        close(actual, expected)


def test_a_family_with_the_faster_functions_computes_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    arguments = llama.ModelArgs(
        model_type="llama", hidden_size=16, num_hidden_layers=1, intermediate_size=24, num_attention_heads=2,
        rms_norm_eps=1e-5, vocab_size=32,
    )  # fmt: skip
    monkeypatch.setattr(llama, "swiglu", exact_swiglu)
    monkeypatch.setattr(llama, "scaled_dot_product_attention", base.scaled_dot_product_attention)
    model = llama.Model(arguments)
    tokens = mx.arange(12)[None]
    exact = float64(model(tokens))
    assert use_faster_functions(model) == {"swiglu", "scaled_dot_product_attention"}
    assert (llama.swiglu, llama.scaled_dot_product_attention) == (cpu.swiglu, attention)
    close(model(tokens), exact, 1e-4)


def test_precise_exponentials_are_right_to_the_last_bits() -> None:
    x = -np.geomspace(1e-6, 86.9, 10_000).astype(np.float32)
    found = float64(cpu.precise_exponentials(mx.array(x)))
    assert np.abs(found / np.exp(float64(x)) - 1).max() < 1.5e-7
    assert cpu.precise_exponentials(mx.array([0.0])).item() == 1
    assert 0 <= cpu.precise_exponentials(mx.array([-1e30])).item() < 1e-37
    assert math.isnan(cpu.precise_exponentials(mx.array([NAN])).item())


# Attention

QUERIES, KEYS = 5, 9  # positions; the queries are the last of them
CAUSAL = np.arange(QUERIES)[:, None] + KEYS - QUERIES >= np.arange(KEYS)
BY_ROW = np.random.default_rng(2).random((2, 1, QUERIES, KEYS)) < 0.7
BY_ROW[:, :, :, 0] = True
MASKS = {
    "none": (None, np.zeros((1, 1))),
    "causal": ("causal", np.where(CAUSAL, 0, -np.inf)),
    "booleans": (mx.array(CAUSAL), np.where(CAUSAL, 0, -np.inf)),
    "booleans of each row": (mx.array(BY_ROW), np.where(BY_ROW, 0, -np.inf)),
    "to add": (mx.array(np.where(CAUSAL, 0.5, -np.inf).astype(np.float32)), np.where(CAUSAL, 0.5, -np.inf)),
}


def heads(count: int, length: int, width: int, seed: int) -> mx.array:
    return mx.array(np.random.default_rng(seed).standard_normal((2, count, length, width), dtype=np.float32))


def attention64(queries: Floats, keys: Floats, values: Floats, scale: float, mask: Floats) -> Floats:
    """Return attention in float64, query head by query head."""
    shared = queries.shape[1] // keys.shape[1]
    keys, values = keys.repeat(shared, axis=1), values.repeat(shared, axis=1)
    scores = np.einsum("bhld,bhsd->bhls", queries, keys) * scale + mask
    weights = np.exp(scores - scores.max(axis=-1, keepdims=True))
    return np.einsum("bhls,bhse->bhle", weights / weights.sum(axis=-1, keepdims=True), values)


@pytest.mark.parametrize("name", MASKS)
def test_attention_is_that_of_its_definition(name: str) -> None:
    given, added = MASKS[name]
    queries, keys, values = heads(6, QUERIES, 4, 0), heads(2, KEYS, 4, 1), heads(2, KEYS, 3, 2)
    expected = attention64(float64(queries), float64(keys), float64(values), 0.7, added)
    close(attention(queries, keys, values, None, 0.7, given), expected, 2e-6)


@pytest.mark.parametrize("name", MASKS)
def test_the_gradients_of_attention_are_those_of_mlx(name: str) -> None:
    given, _ = MASKS[name]
    arrays = [heads(6, QUERIES, 4, 0), heads(2, KEYS, 4, 1), heads(2, KEYS, 4, 2)]
    cotangent = heads(6, QUERIES, 4, 3)

    def by_mlx(*arrays: mx.array) -> mx.array:
        return mx.fast.scaled_dot_product_attention(*arrays, scale=0.7, mask=given)

    def ours(*arrays: mx.array) -> mx.array:
        return attention(*arrays, None, 0.7, given)

    for found, expected in zip(*(mx.vjp(each, arrays, [cotangent])[1] for each in (ours, by_mlx)), strict=True):
        close(found, float64(expected), 1e-5)


def test_a_row_that_may_read_nothing_stays_finite_and_changes_no_other_row() -> None:
    mask = CAUSAL.copy()
    mask[2] = False
    arrays = heads(6, QUERIES, 4, 0), heads(2, KEYS, 4, 1), heads(2, KEYS, 4, 2)
    found = float64(attention(*arrays, None, 0.7, mx.array(mask)))
    assert np.isfinite(found).all()
    rest = np.arange(QUERIES) != 2
    close(mx.array(found[:, :, rest]), float64(attention(*arrays, None, 0.7, mx.array(CAUSAL)))[:, :, rest], 1e-6)


@pytest.mark.parametrize(
    ("length", "dtype", "sinks"), [(1, mx.float32, False), (QUERIES, mx.bfloat16, False), (QUERIES, mx.float32, True)]
)
def test_what_ours_is_not_made_for_goes_to_mlx_lm(
    length: int, dtype: mx.Dtype, sinks: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(base, "scaled_dot_product_attention", lambda *arguments: arguments)
    queries, keys = heads(2, length, 4, 0).astype(dtype), heads(2, KEYS, 4, 1).astype(dtype)
    arguments = (queries, keys, keys, None, 0.7, None, mx.zeros((2,)) if sinks else None)
    assert attention(*arguments) == arguments


# Log-probs and entropy


def test_a_large_vocabulary_loses_no_precision() -> None:
    logits = np.random.default_rng(0).normal(0, 3, (2, 3, 50_000)).astype(np.float32)
    tokens = mx.array([[0, 1, 2], [49_999, 3, 4]])
    exact = np.take_along_axis(reference.log_softmax(float64(logits)), np.array(tokens)[..., None], -1)[..., 0]
    logprob, entropy = logprobs_and_entropy(mx.array(logits), tokens)
    close(logprob, exact, 3e-6)
    close(entropy, reference.entropy(float64(logits)), 3e-6)


@pytest.mark.parametrize("logits", EXTREME.values(), ids=EXTREME.keys())
def test_extreme_logits_give_exact_log_probs_and_entropies(logits: list[float]) -> None:
    every = mx.broadcast_to(mx.array(logits), (4, 4))
    logprob, entropy = logprobs_and_entropy(every, mx.arange(4))
    close(logprob, reference.log_softmax(float64(logits)))
    close(entropy, np.full(4, reference.entropy(float64(logits))))
    close(maths.entropy(every), np.full(4, reference.entropy(float64(logits))))


@pytest.mark.parametrize("logits", EXTREME.values(), ids=EXTREME.keys())
def test_the_gradient_of_a_log_prob_is_one_hot_less_probabilities(logits: list[float]) -> None:
    weights = mx.array([1.0, -2.0, 0.0, 0.5])
    every = mx.broadcast_to(mx.array(logits), (4, 4))
    gradient = mx.vjp(lambda x: token_logprobs(x, mx.arange(4)), [every], [weights])[1][0]
    close(gradient, float64(weights)[:, None] * (np.eye(4) - np.exp(reference.log_softmax(float64(logits)))))


@pytest.mark.parametrize("bad", [NAN, INF])
def test_nan_and_inf_in_logits_come_out_as_nan_and_are_not_hidden(bad: float) -> None:
    logits, tokens = mx.array([[0.0, bad, 1.0], [0.0, 1.0, 2.0]]), mx.array([0, 0])
    logprob, entropy = logprobs_and_entropy(logits, tokens)
    gradient = mx.grad(lambda x: token_logprobs(x, tokens).sum())(logits)
    assert [math.isnan(x) for x in logprob.tolist() + entropy.tolist()] == [True, False, True, False]
    assert mx.isnan(gradient).any(axis=1).tolist() == [True, False]


def test_without_a_compiler_the_functions_are_not_fused_and_give_the_same_numbers(tmp_path: Path) -> None:
    code = (
        "import mlx.core as mx; from trainer.models import forward\n"
        "found = forward.logprobs_and_entropy(mx.array([[0.0, 1.0, -200.0], [3.0, 2.0, 1.0]]), mx.array([1, 0]))\n"
        "print(*(number for array in found for number in array.tolist()))"
    )
    root = Path(__file__).parents[3]
    environment = {"PATH": str(tmp_path), "TMPDIR": str(tmp_path), "PYTHONPATH": str(root)}
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True)
    logits, tokens = mx.array([[0.0, 1.0, -200.0], [3.0, 2.0, 1.0]]), mx.array([1, 0])
    expected = [number for array in logprobs_and_entropy(logits, tokens) for number in array.tolist()]
    assert [float(number) for number in done.stdout.split()] == pytest.approx(expected, abs=1e-6)
    assert not list(tmp_path.rglob("*.so"))


def exact_divergence(logits: np.ndarray, others: np.ndarray) -> np.ndarray:
    logp, logq = reference.log_softmax(float64(logits)), reference.log_softmax(float64(others))
    return (np.exp(logp) * (logp - logq)).sum(axis=-1)


def test_the_exact_kl_is_that_of_float64_and_never_far_below_0() -> None:
    draws = np.random.default_rng(4)
    logits = draws.normal(0, 3, (2, 3, 50_000)).astype(np.float32)
    others = logits + draws.normal(0, 0.5, logits.shape).astype(np.float32)
    divergence = kl_divergence(mx.array(logits), mx.array(others))
    close(divergence, exact_divergence(logits, others), 1e-5)
    close(kl_divergence(mx.array(logits), mx.array(logits)), np.zeros((2, 3)), 1e-6)


@pytest.mark.parametrize("logits", EXTREME.values(), ids=EXTREME.keys())
def test_the_gradient_of_the_exact_kl_is_that_of_its_definition(logits: list[float]) -> None:
    weights, other = mx.array([[1.0], [-2.0]]), mx.array([[0.5, -1.0, 2.0, 0.0]] * 2)
    both = mx.broadcast_to(mx.array(logits), (2, 4))
    gradient = mx.vjp(lambda x: kl_divergence(x, other), [both], [weights[:, 0]])[1][0]
    logp, logq = reference.log_softmax(float64(both)), reference.log_softmax(float64(other))
    gap = np.where(np.exp(logp) > 0, logp - logq, 0.0)
    divergence = (np.exp(logp) * gap).sum(axis=-1, keepdims=True)
    close(gradient, float64(weights) * np.exp(logp) * (gap - divergence), 2e-5)


# What the models call


class _Mallinfo(ctypes.Structure):
    _fields_ = (("sizes", ctypes.c_size_t * 10),)


def allocated() -> int:
    """Return the bytes that malloc has given out."""
    mallinfo = ctypes.CDLL(None).mallinfo2
    mallinfo.restype = _Mallinfo
    sizes = mallinfo().sizes
    return int(sizes[4] + sizes[7])


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="only glibc's malloc tells how much it has given out")
def test_memory_does_not_grow_with_the_shapes_that_a_run_meets() -> None:
    def compute(shapes: range) -> int:
        for size in shapes:
            mx.eval(cpu.exponentials(mx.zeros((size,))), cpu.precise_exponentials(mx.zeros((size,))))
        mx.clear_cache()  # of arrays
        return allocated()

    before = compute(range(1, 101))
    assert compute(range(101, 401)) - before < 1e6  # it was 18 MB when every shape was kept
