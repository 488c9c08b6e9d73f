"""Colours as they reach the eye: the shipped themes, xterm's colours, contrast and distance."""

from __future__ import annotations

import numpy as np
from textual.color import Color

from workbench.kit.theming import shipped_themes

SPECS = shipped_themes()

# xterm's default colours, 0 to 15 (XTerm-col.ad).
XTERM = [
    "#000000", "#cd0000", "#00cd00", "#cdcd00", "#0000ee", "#cd00cd", "#00cdcd", "#e5e5e5",
    "#7f7f7f", "#ff0000", "#00ff00", "#ffff00", "#5c5cff", "#ff00ff", "#00ffff", "#ffffff",
]  # fmt: skip

XTERM_DARK = ("#ffffff", "#000000")  # default text and ground; a light terminal has them the other way about

# Machado, Oliveira and Fernandes 2009, severity 1, on linear RGB.
DEFICIENCIES = {
    "protanopia": [[0.152286, 1.052583, -0.204868], [0.114503, 0.786281, 0.099216], [-0.003882, -0.048116, 1.051998]],
    "deuteranopia": [[0.367322, 0.860646, -0.227968], [0.280085, 0.672501, 0.047413], [-0.011820, 0.042940, 0.968881]],
    "tritanopia": [[1.255528, -0.076749, -0.178779], [-0.078411, 0.930809, 0.147602], [0.004733, 0.691367, 0.303900]],
}


def linear(color: Color) -> np.ndarray:
    """Convert sRGB to linear RGB, each 0 to 1."""
    channels = np.array(color.normalized)
    return np.where(channels <= 0.04045, channels / 12.92, ((channels + 0.055) / 1.055) ** 2.4)


def contrast(one: Color, other: Color) -> float:
    """Return the contrast ratio of WCAG 2.2, 1 to 21."""
    light, dark = sorted((float(linear(c) @ [0.2126, 0.7152, 0.0722]) for c in (one, other)), reverse=True)
    return (light + 0.05) / (dark + 0.05)


def delta_e(one: Color, other: Color, seen_by: str | None = None) -> float:
    """Return the distance in CIE L*a*b* (CIE76); about 2.3 is just visible. seen_by: a key of DEFICIENCIES."""

    def lab(color: Color) -> np.ndarray:
        rgb = linear(color)
        if seen_by:
            rgb = np.clip(np.array(DEFICIENCIES[seen_by]) @ rgb, 0, 1)
        to_xyz = np.array([[0.4124564, 0.3575761, 0.1804375], [0.2126729, 0.7151522, 0.0721750],
                           [0.0193339, 0.1191920, 0.9503041]])  # fmt: skip
        xyz = to_xyz @ rgb / [0.95047, 1.0, 1.08883]
        f = np.where(xyz > (6 / 29) ** 3, np.cbrt(xyz), xyz / (3 * (6 / 29) ** 2) + 4 / 29)
        return np.array([116 * f[1] - 16, 500 * (f[0] - f[1]), 200 * (f[1] - f[2])])

    return float(np.linalg.norm(lab(one) - lab(other)))
