"""Changes of settings from one version of a configuration to the next. Each leaves alone what is not there."""

from __future__ import annotations

from typing import Any

UNITS = {"ppo.value_clip": "in units of the reward", "ppo.relative_value_clip": "in units of the critic's error"}
"""Units of a setting and of its replacement, where they differ."""

_NOT_IN_1 = {"ppo": "relative_value_clip", "run": "shared"}  # settings that version 1 did not have, by table
_LARGEST = 1e300  # of value_clip; what is not below it is left for the check of the new key to report


def relative_value_clip(content: dict[str, Any]) -> dict[str, Any]:
    """Replace ppo.value_clip, in units of the reward, by ppo.relative_value_clip; 0.2 was the default, now it is 1."""
    ppo = content.get("ppo")
    if not isinstance(ppo, dict) or "value_clip" not in ppo:
        return content
    clip = ppo["value_clip"]
    number = isinstance(clip, int | float) and not isinstance(clip, bool) and clip < _LARGEST
    rest = {key: value for key, value in ppo.items() if key != "value_clip"}
    return {**content, "ppo": rest | {"relative_value_clip": 5 * float(clip) if number else clip}}


def without_float16(content: dict[str, Any]) -> dict[str, Any]:
    """Replace model.dtype = "float16", whose range is too small for gradients, by "bfloat16"."""
    model = content.get("model")
    if not isinstance(model, dict) or model.get("dtype") != "float16":
        return content
    return {**content, "model": model | {"dtype": "bfloat16"}}


def remax_without_whitening(content: dict[str, Any]) -> dict[str, Any]:
    """Switch off the whitening of rewards in ReMax, whose baseline was not whitened with them."""
    ppo = content.get("ppo")
    if not isinstance(ppo, dict) or ppo.get("estimator") != "remax" or ppo.get("whiten_rewards") is not True:
        return content
    return {**content, "ppo": ppo | {"whiten_rewards": False}}


def version_2(content: dict[str, Any]) -> dict[str, Any]:
    """Return the configuration of version 2 that says what `content` said in version 1."""
    return remax_without_whitening(without_float16(relative_value_clip(content)))


def unnumbered_version(content: dict[str, Any]) -> int:
    """Return the version of a file without a number: 1, or 2 if it has a setting that version 1 did not have."""
    tables = ((content.get(table), name) for table, name in _NOT_IN_1.items())
    return 2 if any(isinstance(table, dict) and name in table for table, name in tables) else 1
