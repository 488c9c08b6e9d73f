"""Rewards: sources that score completions, and their weighted sum. Imports no tensor library."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from types import ModuleType
from typing import TYPE_CHECKING, assert_never

