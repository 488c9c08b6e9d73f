"""Estimate of a run's memory on a device, and whether it is clear enough to go without a trial."""

from __future__ import annotations

from trainer.config import AnyConfig
from trainer.config.reward_model import RewardModelConfig
from trainer.memory.footprint import Footprint, RewardModels, footprint
from trainer.memory.reward_models import reward_models
from trainer.memory.shape import ModelShape, shape_of

CLEARLY = 0.7
"""Share of the limit up to which a run fits by its estimate, which is within 15%."""
HOPELESS = 1.3
"""Multiple of the limit above which it does not. To try it could make the system end the process."""


def footprint_of(config: AnyConfig, shape: ModelShape, longest: int, *, gpu: bool) -> Footprint:
    """Estimate the memory of `config`, reward models included. Reads files about those. Arguments as of `footprint`."""
    scorers = RewardModels() if isinstance(config, RewardModelConfig) else reward_models(config, gpu=gpu)
    return footprint(config, shape, longest, gpu=gpu, reward_models=scorers)


def clear_footprint(config: AnyConfig, longest: int, limit: int, *, gpu: bool) -> Footprint | None:
    """Return the estimate of `config` if it says whether the run fits `limit`, bytes; None if only a trial can."""
    shape, _ = shape_of(config.model.path)
    if shape is None:
        return None
    found = footprint_of(config, shape, longest, gpu=gpu)
    return None if CLEARLY * limit < found.peak <= HOPELESS * limit else found
