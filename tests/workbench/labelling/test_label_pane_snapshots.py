"""The label pane as text that a reviewer can read.

UPDATE_SNAPSHOTS=1 rewrites tests/snapshots/; look at the difference before you keep it.
"""

from __future__ import annotations

from label_session import FakeSession, item, labelling
from snapshots import SNAPSHOTS, check, contrasts, drawn

from trainer.preferences.records import Item, Origin, Share
from workbench.kit.theming import DEFAULT_THEME, shipped_themes

RATES = {"done": 31, "left": 169, "per_hour": 212.0, "median_seconds": 9.0, "eta_seconds": 2870.0, "streak": 31}
SHARES = {
    "left_side": Share(14, 28, 0.5, 0.33, 0.67),
    "longer": Share(18, 25, 0.72, 0.52, 0.86),
    "same": Share(4, 4, 1.0, 0.51, 1.0),
}


def written() -> list[Item]:
    """Write a pair that was judged, one of chat messages, and four completions."""
    origins = (
        Origin(source="run", run="quickstart-0003", iteration=12, row=3, writer="policy"),
        Origin(source="run", run="quickstart-0003", iteration=12, row=4, writer="reference"),
    )
    columns = {"scores": [0.81, 0.27], "lengths": [43, 31]}
    return [
        item("first", "second", order=(1, 0), origins=origins, columns=columns),
        item(
            "Sunlight looks white, but it is made of all the colours of the rainbow. The air bounces blue around the "
            "most, so blue comes at us from everywhere.",
            "The sky appears blue due to Rayleigh scattering, which is inversely proportional to the fourth power of "
            "the wavelength.",
            prompt=[
                {"role": "system", "content": "Answer in one or two sentences."},
                {"role": "user", "content": "Explain to a child why the sky is blue."},
            ],
        ),
        item("One.", "Two words.", "Three words, no more.", "日本 四.", prompt="Count to ten. 🎉"),
    ]


async def test_the_pane_matches_its_snapshot() -> None:
    session = FakeSession(written(), guidelines="hash")
    session.figures = {**RATES, **SHARES, "kappa": 1.0}
    async with labelling(session, size=(120, 40)) as (app, pilot):
        for theme in shipped_themes().values():
            app.register_theme(theme)
        app.theme = DEFAULT_THEME
        await pilot.press("1")
        check(app.text, SNAPSHOTS / "label-pair.txt")
        await pilot.press("d", "f")
        assert min(contrasts(drawn(app.screen))) >= 3  # type: ignore[arg-type]
        await pilot.press("f", "d", "1", "3", "equals_sign")
        check(app.text, SNAPSHOTS / "label-ranking.txt")
