"""A policy that begins as an adapter, ours or of another trainer, with the same reference as before."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import mlx.core as mx
import numpy as np
import pytest
from runs_helper import newest_checkpoint, record, tiny_config
from tiny import make_checkpoint

from trainer.config.schema import ModelConfig
from trainer.engine.initial import check_init, init_policy
from trainer.errors import ModelError
from trainer.events import Iteration
from trainer.models.actor_critic import ActorCriticLLM
from trainer.models.adapters import read_adapter_config
from trainer.models.backbone import load_backbone
from trainer.models.peft_adapters import write_peft
from trainer.policy_checkpoint import load_checkpoint
from trainer.runs.folder import RunFolder

TOKENS = mx.array([[72, 101, 108, 108, 111], [1, 2, 3, 4, 5]])


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Make a run, a, whose policy has moved, and its policy as a PEFT adapter of another scale in peft."""
    folder = tmp_path_factory.mktemp("made")
    record(tiny_config(folder, "run.name=a", "optim.policy_lr=0.05"))
    arrays = {name: array * (4.0 if name.endswith("lora_b") else 1.0) for name, array in trained(folder).items()}
    given: dict[str, Any] = {"family": "llama", "rank": 8, "scale": 5.0, "base": str(folder / "model")}
    write_peft(folder / "peft", arrays, **given)
    return folder


def policy_folder(made: Path) -> Path:
    path = newest_checkpoint(RunFolder(made / "runs" / "a"))
    assert path is not None
    return path / "policy"


def trained(made: Path) -> dict[str, mx.array]:
    """Return the policy's arrays after the run a."""
    folder = policy_folder(made).parent
    return load_checkpoint(folder, read_adapter_config(folder / "policy")).policy


def begun(made: Path, adapter: Path, **settings: Any) -> ActorCriticLLM:
    config = ModelConfig.model_validate({"path": str(made / "model"), "policy_init": str(adapter)} | settings)
    check_init(config)
    actor = ActorCriticLLM(load_backbone(config).backbone, config, key=mx.random.key(3))
    init_policy(actor, config)
    return actor


@pytest.mark.parametrize("scale", [5.0, 20.0])
@pytest.mark.parametrize("kind", ["mlx-lm", "peft"])
def test_the_policy_is_the_adapters_and_the_reference_is_the_models(made: Path, kind: str, scale: float) -> None:
    expected = begun(made, Path(), policy_init="")
    expected.update_policy(trained(made))
    actor = begun(made, policy_folder(made) if kind == "mlx-lm" else made / "peft", lora_scale=scale)
    np.testing.assert_allclose(actor.backbone(TOKENS), expected.backbone(TOKENS), atol=2e-5)
    plain = load_backbone(ModelConfig(path=str(made / "model"))).backbone(TOKENS)
    with actor.reference():
        assert mx.array_equal(actor.backbone(TOKENS), plain)
    assert float(mx.abs(actor.backbone(TOKENS) - plain).max()) > 0.05


def test_a_run_goes_on_where_an_adapter_ended(made: Path) -> None:
    began = record(tiny_config(made, "run.name=b", f"model.policy_init='{made / 'peft'}'", "optim.policy_lr=0.0"))
    fresh = record(tiny_config(made, "run.name=c", "optim.policy_lr=0.0"))
    kl, none = ([event.kl for event in one.events if isinstance(event, Iteration)] for one in (began, fresh))
    assert min(map(abs, kl)) > 1e-3
    assert max(map(abs, none)) < 1e-5


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"lora_rank": 4}, r'set model\.lora_rank = 8, model\.lora_targets = \["q_proj", "v_proj"\]'),
        ({"lora_targets": ["q_proj"]}, "another adapter than this run"),
        ({"lora_layers": 1}, "model.lora_layers = 2"),
    ],
)
def test_another_adapter_is_refused(made: Path, settings: dict[str, Any], message: str) -> None:
    for adapter in (made / "peft", policy_folder(made)):
        with pytest.raises(ModelError, match=message):
            begun(made, adapter, **settings)


def test_what_is_no_adapter_of_a_policy_is_refused(made: Path, tmp_path: Path) -> None:
    with pytest.raises(ModelError, match=r"model\.policy_init = '.*' has no adapter_config\.json: name a folder"):
        begun(made, make_checkpoint(tmp_path / "model"))
    given: dict[str, Any] = {"family": "llama", "rank": 8, "scale": 5.0, "base": "a/b", "head": mx.ones((32,))}
    write_peft(tmp_path / "classifier", trained(made), **given)
    with pytest.raises(ModelError, match="is of a sequence classifier"):
        begun(made, tmp_path / "classifier")
