"""Loading of backbone and tokenizer from `model.path`, with mlx-lm's loader."""

from __future__ import annotations

import contextlib
import importlib
import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import mlx.core as mx
import mlx.nn as nn
from mlx.utils import tree_map_with_path
from mlx_lm.models.switch_layers import SwitchLinear

from trainer.arrays import on_cpu
from trainer.config.schema import BackboneConfig
from trainer.errors import ModelError, one_line, shortened
from trainer.files import read_json
from trainer.models.adapters import check_adapter, fuse_adapter
from trainer.models.blas import start_compute_threads
from trainer.models.forward import vocabulary_size
from trainer.models.kernels import own_kernel_folder, use_faster_functions
from trainer.models.peft_adapters import CLASSIFIER, check_peft, fuse_peft, is_peft
from trainer.models.starter import starter_model

_READ = (".json", ".jsonl", ".safetensors", ".txt", ".jinja", ".model", ".tiktoken")  # that a loader opens
_JSON_BYTES = 256 << 20  # of a file of a model: tokenizers of large vocabularies have 35 MB
_MOST = 2**31 - 1  # tokens
_MARKER = re.compile("image|audio|video", re.IGNORECASE)
_HEAD = f"{CLASSIFIER}.weight"  # of sequence classifiers with one label, a common form of reward models


class ScalarHead(NamedTuple):
    """Head of a classifier: score = (weight . h - mean) / std, with h the last real token's hidden state [D].

    mean, std: those in config.json, as OpenRLHF writes them, and as our own export does; elsewhere 0 and 1.
    """

    weight: mx.array  # [D], float32
    mean: float = 0.0
    std: float = 1.0


class LoadedModel(NamedTuple):
    """A backbone with its tokenizer and properties."""

    backbone: nn.Module
    tokenizer: Any  # mlx_lm's TokenizerWrapper
    folder: Path
    dtype: mx.Dtype
    context: int  # longest sequence that the model was made for, in tokens; 0 if its configuration does not say
    adapter: str = ""  # as in BackboneConfig
    quantize: str = "off"  # as in BackboneConfig
    head: ScalarHead | None = None  # of a sequence classifier


class LoadedTokenizer(NamedTuple):
    """A model's tokenizer, and what else encoding for the model needs."""

    tokenizer: Any  # mlx_lm's TokenizerWrapper
    folder: Path
    context: int  # as in LoadedModel


def load_tokenizer(config: BackboneConfig) -> LoadedTokenizer:
    """Load the tokenizer without the model, so that data can be checked before a large model is loaded.

    Raises ModelError as `load_backbone` does, as far as it can be known without the weights.
    """
    import mlx_lm.utils

    _check_adapter(config)
    folder = model_folder(config)
    try:
        settings = mlx_lm.utils.load_config(folder)
        text = _of_text(settings)
        context, rows = int(text.get("max_position_embeddings") or 0), int(text.get("vocab_size") or _MOST)
    except (OSError, ValueError, TypeError, AttributeError, RecursionError) as error:
        raise _unloadable(config, error) from error
    try:
        tokenizer = mlx_lm.utils.load_tokenizer(
            folder,
            # Otherwise transformers asks on the terminal whether to run the model's code.
            tokenizer_config_extra={"trust_remote_code": False},
            eos_token_ids=settings.get("eos_token_id"),
        )
    except Exception as error:  # the tokenizers library raises bare Exception for a damaged file
        raise ModelError(
            f"model.path = '{config.path}': its tokenizer cannot be loaded ({one_line(error, 200)}): fetch the model "
            "again; tokenizers with custom code are not supported"
        ) from error
    _check_ids(config.path, folder, tokenizer, rows)
    return LoadedTokenizer(tokenizer, folder, context)


def load_backbone(
    config: BackboneConfig, *, classifier: bool = False, tokenizer: LoadedTokenizer | None = None
) -> LoadedModel:
    """Load weights (safetensors only) and tokenizer; code that comes with a model is never executed.

    classifier: accept a sequence classifier with one label as well, or an adapter of one; its head is beside the
    backbone. tokenizer: the model's, if it is loaded. Call this on the thread that will train. Raises ModelError if the
    folder is missing or damaged, holds a family that mlx-lm does not know, or cannot be fetched from the hub.
    """
    import mlx_lm.utils  # 2.8 s

    own_kernel_folder()
    start_compute_threads()
    found = tokenizer or load_tokenizer(config)
    folder, names = found.folder, set[str]()
    for file in folder.glob("model*.safetensors"):
        with contextlib.suppress(OSError, RuntimeError, ValueError):  # loading reports it
            names.update(dict(mx.load(str(file))))  # type: ignore[arg-type]  # reads the names alone
    heads: list[mx.array] = []
    if _HEAD in names and not classifier:
        raise ModelError(
            f"model.path = '{config.path}' is a sequence classifier, which writes no text: name it in reward.sources, "
            "or in model.path of a reward model"
        )
    for key, value in _of_text(_json_object(folder / "config.json")).items():  # each layer would be built
        if key.endswith(("layer", "layers")) and isinstance(value, int) and value > len(names) > 0:
            stated = f"{folder / 'config.json'}: {key} = {value}"
            raise ModelError(f"{stated}, but there are only {len(names)} weights: fetch the model again")
    try:
        options = {"get_model_classes": _headless(heads)} if _HEAD in names else {}
        backbone, settings = mlx_lm.utils.load_model(folder, lazy=True, **options)
        backbone(mx.array([[0]]))  # not evaluated: only settings that no layer can use, such as rope_theta, show here
    # mlx-lm computes with the settings unseen, and leaves the program where a package that the family needs is missing.
    except (Exception, SystemExit) as error:
        raise _unloadable(config, error) from error
    # Of the weights, which config.json may not state.
    _check_ids(config.path, folder, found.tokenizer, vocabulary_size(backbone))
    dtype, head = cast_backbone(backbone, config.dtype), None
    if heads:
        if (labels := heads[0].shape[0]) != 1:
            raise ModelError(f"the model has {labels} labels: a reward model has 1 (num_labels in its config.json)")
        mean, std, weight = settings.get("mean"), settings.get("std"), heads[0][0].astype(mx.float32)
        scaled = isinstance(mean, int | float) and isinstance(std, int | float) and std > 0
        head = ScalarHead(weight, float(mean), float(std)) if scaled else ScalarHead(weight)
    if config.adapter:
        # After the cast, so that small changes are not rounded away in 4 or 16 bits.
        adapter = Path(config.adapter).expanduser()
        if not is_peft(adapter):
            fuse_adapter(backbone, adapter)
        elif (own := fuse_peft(backbone, adapter)) is not None:
            if not classifier:
                raise ModelError(
                    f"model.adapter = '{adapter}' is of a sequence classifier, which writes no text: name it in "
                    "reward.sources, or in model.adapter of a reward model"
                )
            head = ScalarHead(own)
        cast_backbone(backbone, config.dtype)  # an adapter with full weights has its own precision
    if config.quantize != "off":
        quantize_backbone(backbone, int(config.quantize.removesuffix("-bit")))
        cast_backbone(backbone, config.dtype)
    if on_cpu():
        use_faster_functions(backbone)
    try:
        mx.eval(backbone)  # reads the weights, which are lazy until here, on this thread
    except (RuntimeError, ValueError) as error:
        raise ModelError(f"model.path = '{config.path}' cannot be read: {one_line(error, 200)}") from error
    return LoadedModel(backbone, found.tokenizer, folder, dtype, found.context, config.adapter, config.quantize, head)


def _headless(heads: list[mx.array]) -> Callable[[dict[str, Any]], tuple[type[nn.Module], type]]:
    """Return mlx-lm's `get_model_classes` for a classifier as its family's language model; `heads` gets its head."""

    def classes(config: dict[str, Any]) -> tuple[type[nn.Module], type]:
        from mlx_lm.utils import MODEL_REMAPPING

        name = config["model_type"]
        module = importlib.import_module(f"mlx_lm.models.{MODEL_REMAPPING.get(name, name)}")
        config["tie_word_embeddings"] = True  # so that mlx-lm does not require the head of a language model

        class Headless(module.Model):  # type: ignore[misc, name-defined]
            def sanitize(self, weights: dict[str, mx.array]) -> dict[str, mx.array]:
                heads.append(weights.pop(_HEAD))
                kept: dict[str, mx.array] = super().sanitize(weights) if hasattr(super(), "sanitize") else weights
                return kept

        Headless.__module__ = module.Model.__module__  # which names the family
        return Headless, module.ModelArgs

    return classes


def check_local(config: BackboneConfig) -> None:
    """Raise ModelError if the model or its adapter is missing or damaged; fetch and load nothing."""
    _check_adapter(config)
    if config.path != "starter":
        _local_folder(config)


def _check_adapter(config: BackboneConfig) -> None:
    if config.adapter:
        adapter = Path(config.adapter).expanduser()
        check_peft(adapter) if is_peft(adapter) else check_adapter(adapter)


def _unloadable(config: BackboneConfig, error: BaseException) -> ModelError:
    return ModelError(
        f"model.path = '{config.path}' cannot be loaded ({one_line(error, 200)}): fetch the model again, or choose one "
        "of a family that mlx-lm supports"
    )


def quantize_backbone(backbone: nn.Module, bits: int) -> None:
    """Quantise the weights of linear layers and embeddings to `bits` bits, in groups of 64 or else 32.

    Layers whose number of inputs is not a multiple of 32 stay as they are, and so do those that the family excludes, as
    in `mlx_lm.convert`. Some, such as the routers of experts, get the family's 8 bits.
    """
    choice = getattr(backbone, "quant_predicate", None) or (lambda *_: True)

    def packing(name: str, module: nn.Module) -> bool | dict[str, int]:
        if not hasattr(module, "to_quantized") or not (chosen := choice(name, module)):
            return False
        own = chosen["bits"] if isinstance(chosen, dict) else bits
        return next(
            ({"group_size": size, "bits": own} for size in (64, 32) if module.weight.shape[-1] % size == 0), False
        )

    nn.quantize(backbone, class_predicate=packing)


def quantize_warning(config: BackboneConfig) -> str:
    """Return a warning about `model.quantize` on this device, or an empty string."""
    if config.quantize == "off" or not on_cpu():
        return ""
    return (
        f"model.quantize = '{config.quantize}' saves no memory on a CPU: the weights are rounded as on a GPU, but held "
        "unpacked, because products of packed weights are some fifty times slower there"
    )


def model_folder(config: BackboneConfig) -> Path:
    """Return the local folder of `model.path`: the starter model's, the named folder, or a hub snapshot.

    A snapshot is fetched if it is not there. Raises ModelError.
    """
    if config.path == "starter":
        return starter_model()
    if folder := _local_folder(config):
        return folder
    from huggingface_hub import snapshot_download

    patterns = ["*.json", "model*.safetensors", "tokenizer.model", "*.tiktoken", "*.txt", "*.jinja"]  # never *.py
    try:
        found = snapshot_download(config.path, revision=config.revision or None, allow_patterns=patterns)
    except Exception as error:  # the hub client raises a dozen unrelated types: not found, gated, offline, no space
        raise ModelError(
            f"model.path = '{config.path}' could not be fetched from the hub ({type(error).__name__}): check the name "
            "and the connection, or give the path of a local folder"
        ) from error
    return _checked(config.path, Path(found))


def _local_folder(config: BackboneConfig) -> Path | None:
    """Return the folder that `model.path` names, checked; None for a name on the hub. Raises ModelError."""
    path = Path(config.path).expanduser()
    if path.is_dir():
        return _checked(config.path, path)
    if path.exists():
        raise ModelError(f"model.path = '{config.path}' is a file: name the folder of the model")
    if config.path.count("/") != 1 or config.path.startswith((".", "/", "~")):
        raise ModelError(
            f"model.path = '{config.path}': no such folder; use 'starter', an existing folder, or a hub name like "
            "mlx-community/Qwen3-0.6B-bf16"
        )
    return None


def _check_ids(path: str, folder: Path, tokenizer: Any, rows: int) -> None:
    """Raise ModelError if `tokenizer` can produce ids beyond an embedding of `rows` rows, or has no end token in it.

    Tokens beyond that no text needs are taken out of the tokenizer: a text that contains one is encoded like any other
    then. They are markers of images and sounds, such as gemma-3-1b's `<image_soft_token>`, or what no file in `folder`
    names and the tokenizer's class has added.
    """
    if beyond := {number: token for token, number in tokenizer.get_vocab().items() if number >= rows}:
        names = ("tokenizer.json", "tokenizer_config.json", "added_tokens.json", "special_tokens_map.json")
        named = "".join((folder / name).read_text(errors="replace") for name in names if (folder / name).is_file())
        backend: Any = getattr(tokenizer, "backend_tokenizer", None)
        state = json.loads(backend.to_str()) if backend else {"added_tokens": []}
        for token in state["added_tokens"]:
            text = token["content"]
            if _MARKER.search(text) or not (text in named or json.dumps(text)[1:-1] in named):
                beyond.pop(token["id"], None)
        if beyond:
            number = max(beyond)
            raise ModelError(
                f"model.path = '{path}': its tokenizer has ids up to {number} ({shortened(repr(beyond[number]))}), but "
                f"its embedding has {rows} rows, for the ids 0 to {rows - 1}: resize the embedding where the tokens "
                "were added (model.resize_token_embeddings), or take them out of the tokenizer"
            )
        state["added_tokens"] = [token for token in state["added_tokens"] if token["id"] < rows]
        backend.__setstate__(json.dumps(state).encode())
    tokenizer.eos_token_ids = {number for number in tokenizer.eos_token_ids if number in range(rows)}
    if not tokenizer.eos_token_ids:
        raise ModelError(
            f"model.path = '{path}': its tokenizer has no end token, so no response could end: set eos_token_id in "
            "the model's config.json"
        )


def _checked(path: str, folder: Path) -> Path:
    """Return `folder`. Raises ModelError for files on which mlx-lm or transformers fail unclearly, and for code."""
    for name in ("config.json", "tokenizer_config.json"):
        if not (folder / name).is_file():
            raise ModelError(f"model.path = '{path}' has no {name}: name a folder with a model in mlx-lm's format")
    for file in (*folder.iterdir(), *folder.glob("*_templates/*")):
        if file.suffix in _READ and not file.is_file():  # opening a pipe would wait for ever
            raise ModelError(f"{file} is not a file: fetch the model again")
    settings = _json_object(folder / "config.json")
    for name in ("tokenizer_config.json", "tokenizer.json"):
        if (folder / name).is_file():  # some tokenizers use another format
            _json_object(folder / name)
    if "model_type" not in settings:
        raise ModelError(f"{folder / 'config.json'} has no model_type: name a folder with a model in mlx-lm's format")
    if settings.get("model_file") is not None:
        raise ModelError(
            f"model.path = '{path}' wants to run its own code ({settings['model_file']}), which is never done: "
            "choose a model of a family that mlx-lm supports"
        )
    if not any(folder.glob("model*.safetensors")):
        raise ModelError(
            f"model.path = '{path}' has no model*.safetensors: convert its weights with "
            "`mlx_lm.convert --hf-path MODEL --mlx-path FOLDER`"
        )
    return folder


def _json_object(file: Path) -> dict[str, Any]:
    try:
        content = read_json(file, _JSON_BYTES)
    except (OSError, ValueError) as error:
        raise ModelError(f"{file} is not JSON ({one_line(error, 200)}): fetch the model again") from error
    if not isinstance(content, dict):
        raise ModelError(f"{file} is not a JSON object: fetch the model again")
    return content


def _of_text(settings: dict[str, Any]) -> dict[str, Any]:
    """Return `settings`, a config.json, with those of the text model in a multimodal one on the top level."""
    text = settings.get("text_config")
    return {**settings, **text} if isinstance(text, dict) else settings


def precision(wanted: str, backbone: nn.Module | None = None) -> mx.Dtype:
    """Return the dtype that `model.dtype` means on this device.

    On a CPU, a `backbone` with experts is held in float32: it multiplies no other type of theirs.
    """
    if on_cpu() and backbone and any(isinstance(module, SwitchLinear) for module in backbone.modules()):
        return mx.float32
    dtypes = {"float32": mx.float32, "bfloat16": mx.bfloat16}
    return dtypes["float32" if on_cpu() else "bfloat16"] if wanted == "auto" else dtypes[wanted]


def cast_backbone(backbone: nn.Module, wanted: str) -> mx.Dtype:
    """Cast the weights to the wanted precision. On a CPU, quantised weights are dequantised first.

    Parameters that the family computes in float32 are not rounded to bfloat16, as in `mlx_lm.convert`. The scales of
    quantised weights on a GPU are: float16 ones lose three bits, like any float16 weight, because their product with
    activations in bfloat16 would be float32, and so would all activations after it. In float32 nothing is rounded.
    """
    if on_cpu():  # products of 4 and 8 bits are scalar code there, 1 to 3 GFLOP/s instead of 125
        from mlx_lm.utils import dequantize_model

        for module in backbone.modules():
            if {"scales", "biases"} <= module.keys():  # the weights get their type, and would be rounded to it
                module.scales, module.biases = (module[name].astype(mx.float32) for name in ("scales", "biases"))
        dequantize_model(backbone)
    dtype = precision(wanted, backbone)
    casts = getattr(backbone, "cast_predicate", lambda name: True)

    def cast(name: str, array: mx.array) -> mx.array:
        is_cast = mx.issubdtype(array.dtype, mx.floating) and (dtype == mx.float32 or casts(name))
        return array.astype(dtype) if is_cast else array

    backbone.update(tree_map_with_path(cast, backbone.parameters()))
    return dtype
