"""Settings of the whole test run: no network, the same examples every time."""

import os

from hypothesis import settings

import trainer  # noqa: F401  loads the BLAS, before any test module imports mlx

# Read when huggingface_hub, datasets and tokenizers are imported, so set before any test module is.
os.environ["HF_HUB_OFFLINE"] = "1"
os.environ["HF_DATASETS_OFFLINE"] = "1"
os.environ["TOKENIZERS_PARALLELISM"] = "false"

# Array code compiles on first use, so one example may be slow; fixed seeds make a failure come back.
settings.register_profile("repeatable", deadline=None, derandomize=True, max_examples=50)
settings.load_profile("repeatable")
