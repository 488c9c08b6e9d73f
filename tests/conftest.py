"""Settings of the whole test run: no network, nothing of the user's is touched, the same examples every time."""

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import settings

import trainer  # noqa: F401  loads the BLAS, before any test module imports mlx

# Read when huggingface_hub, datasets and tokenizers are imported, so set before any test module is.
os.environ["HF_HUB_OFFLINE"] = "1"
os.environ["HF_DATASETS_OFFLINE"] = "1"
os.environ["TOKENIZERS_PARALLELISM"] = "false"

# Array code compiles on first use, so one example may be slow; fixed seeds make a failure come back.
settings.register_profile("repeatable", deadline=None, derandomize=True, max_examples=50)
settings.load_profile("repeatable")


@pytest.fixture(autouse=True, scope="session")
def _apart_from_the_user(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """The programs that tests start find no settings of the user's, and leave none."""
    home: Path = tmp_path_factory.mktemp("user")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PPO_WORKBENCH_CONFIG_DIR", str(home / "config"))
        patch.setenv("XDG_STATE_HOME", str(home / "state"))
        yield
