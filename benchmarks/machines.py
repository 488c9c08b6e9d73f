"""Machines, links and models of the cost model, as data. docs/scale.md says where the figures come from."""

from __future__ import annotations

from typing import Any, NamedTuple

from trainer.memory.shape import SIZES, ModelShape, decoder_shape


class Device(NamedTuple):
    """A class of machines. The makers publish bandwidth and products, but no Mac's products; the others are assumed."""

    memory: float  # bytes that a run may take
    bandwidth: float  # bytes/s of the memory
    products: float  # operations/s of matrix products
    decodes: float  # share of the bandwidth that decoding reaches
    reaches: float  # share of the products' rate that a large product reaches
    scores: float  # width at which a pass without a gradient reaches half of that
    trains: float  # the same for one with a gradient
    launch: float  # seconds that a layer of a decoding step takes at least
    packs: bool = False  # whether quantised weights work
    links: tuple[str, ...] = ()

    def rate(self, shape: ModelShape, half: float) -> float:
        """Return the operations per second of passes of a model. half: `scores` or `trains`."""
        return self.products * self.reaches * shape.hidden / (shape.hidden + half)


class Link(NamedTuple):
    """A link between two machines."""

    bandwidth: float  # bytes/s, one way
    share: float  # that a ring reaches
    latency: float  # seconds of a message
    most: int = 64  # machines


ETHERNET = ("1 Gb/s", "10 Gb/s")
MACS: Any = {"decodes": 0.75, "reaches": 0.9, "scores": 500, "trains": 1500, "launch": 1e-4, "packs": True}
MACS["links"] = (*ETHERNET, "Thunderbolt")
HOPPER: Any = {"products": 989e12, "decodes": 0.8, "reaches": 0.74, "scores": 3000, "trains": 9500, "launch": 7e-4}
HOPPER["links"] = (*ETHERNET, "NVLink")
DEVICES = {  # a Mac lets a run take three quarters of its memory, CUDA nearly all
    "M4 Pro": Device(memory=0.75 * 64e9, bandwidth=273e9, products=8e12, **MACS),
    "M4 Max": Device(memory=0.75 * 128e9, bandwidth=546e9, products=17e12, **MACS),
    "M3 Ultra": Device(memory=0.75 * 512e9, bandwidth=819e9, products=28e12, **MACS),
    "H100": Device(memory=0.95 * 80e9, bandwidth=3.35e12, **HOPPER),
    "H200": Device(memory=0.95 * 141e9, bandwidth=4.8e12, **HOPPER),
}
LINKS = {
    "1 Gb/s": Link(0.125e9, share=0.94, latency=1e-4),
    "10 Gb/s": Link(1.25e9, share=0.9, latency=5e-5),
    "Thunderbolt": Link(5e9, share=0.5, latency=5e-5),
    "NVLink": Link(450e9, share=0.8, latency=1e-5, most=8),
}
LLAMA_70B = {
    "hidden_size": 8192,
    "intermediate_size": 28672,
    "num_hidden_layers": 80,
    "num_attention_heads": 64,
    "num_key_value_heads": 8,
    "vocab_size": 128256,
}
MODELS = {  # Qwen3, then Llama 3
    name: decoder_shape(settings)
    for name, settings in {**SIZES, "70B": LLAMA_70B}.items()
    if name in ("0.6B", "1.7B", "8B", "32B", "70B")
}
