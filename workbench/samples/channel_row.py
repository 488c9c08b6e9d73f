"""The channels of a sample in one line: their keys, which one colours the text, and which the run does not record."""

from __future__ import annotations

from typing import ClassVar

from rich.segment import Segment
from rich.style import Style
from textual import events
from textual.strip import Strip
from textual.widget import Widget

from workbench.kit.guard import GuardedWidget
from workbench.kit.keys import keys_of
from workbench.samples.channels import CHANNELS
from workbench.samples.token_text import TokenText

_SHORT = {"advantage": "adv", "value": "val", "reward": "rew", "return": "ret", "td_error": "TD"}
_SHORT |= {"ratio": "rat", "logprob": "log", "entropy": "ent"}


def channel_labels(keys: dict[str, str], width: int) -> list[tuple[str, str]]:
    """Return the names of the channels with their labels: keys in brackets, else only named, else short, as fits."""
    brackets, plain, short = list[tuple[str, str]](), list[tuple[str, str]](), list[tuple[str, str]]()
    for name, channel in CHANNELS.items():
        key, label = keys.get(name, ""), channel.label
        at = label.lower().find(key.lower()) if len(key) == 1 else -1
        marked = f"{label[:at]}[{key}]{label[at + 1 :]}" if at >= 0 else f"[{key}] {label}"
        for labels, text in ((brackets, marked), (plain, label), (short, _SHORT.get(name, label))):
            labels.append((name, text))
    fitting = (labels for labels in (brackets, plain) if sum(len(text) + 1 for _, text in labels) <= width + 1)
    return next(fitting, short)


class ChannelRow(GuardedWidget, Widget):
    """A line of channels; a click on one colours the text by it."""

    ALLOW_SELECT = False
    COMPONENT_CLASSES: ClassVar[set[str]] = {f"channel-row--{part}" for part in ("key", "on", "muted")}

    def __init__(self, text: TokenText) -> None:
        super().__init__()
        self._text = text

    @property
    def _labels(self) -> list[tuple[str, str]]:
        keys = keys_of(self._text)
        named = {name: keys.get(f"tokens.{name.replace('_', '-')}", "") for name in CHANNELS}
        return channel_labels(named, self.size.width)

    def render_line(self, y: int) -> Strip:
        style, segments = self.get_component_rich_style, list[Segment]()
        for name, label in self._labels if y == 0 else ():
            if name == self._text.channel:  # not by colour alone
                segments.append(Segment(label, style("channel-row--on") + Style(reverse=True, bold=True)))
            elif self._text.scale(name) is None:
                segments.append(Segment(label, style("channel-row--muted")))
            else:
                before, bracket, rest = label.partition("[")
                key, end, after = rest.partition("]")
                segments.append(Segment(before, self.rich_style))
                segments.append(Segment(bracket + key + end, style("channel-row--key")))
                segments.append(Segment(after, self.rich_style))
            segments.append(Segment(" ", self.rich_style))
        return Strip(segments).adjust_cell_length(self.size.width, self.rich_style)

    def on_click(self, event: events.Click) -> None:
        end = 0
        for name, label in self._labels:
            end += len(label) + 1
            if event.x < end - 1:
                self._text.channel = name
                self._text.focus()
                return
