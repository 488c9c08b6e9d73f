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


def key_place(label: str, key: str) -> int:
    """Return where `key` stands in `label`, -1 where it does not."""
    return label.lower().find(key.lower()) if len(key) == 1 else -1


def channel_labels(keys: dict[str, str], width: int) -> list[tuple[str, str]]:
    """Return the names of the channels with their labels: keys in brackets, else only named, else short, as fits."""
    brackets, plain, short = list[tuple[str, str]](), list[tuple[str, str]](), list[tuple[str, str]]()
    for name, channel in CHANNELS.items():
        key, label = keys.get(name, ""), channel.label
        at = key_place(label, key)
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
    def _keys(self) -> dict[str, str]:
        keys = keys_of(self._text)
        return {name: keys.get(f"tokens.{name.replace('_', '-')}", "") for name in CHANNELS}

    @property
    def whole(self) -> int:
        """Columns of the row with the keys in brackets."""
        return sum(len(text) + 1 for _, text in channel_labels(self._keys, 1000))

    def render_line(self, y: int) -> Strip:
        style, segments, keys = self.get_component_rich_style, list[Segment](), self._keys
        for name, label in channel_labels(keys, self.size.width) if y == 0 else ():
            if name == self._text.channel:  # not by colour alone
                segments.append(Segment(label, style("channel-row--on") + Style(reverse=True, bold=True)))
            elif self._text.scale(name) is None:
                segments.append(Segment(label, style("channel-row--muted")))
            else:
                start, length = label.find("["), 3
                if start < 0:  # no room for brackets: the key is underlined in the name
                    start, length = key_place(label, keys[name]), 1
                start, end = max(start, 0), start + length if start >= 0 else 0
                key = style("channel-row--key") + Style(underline=length == 1)
                segments.append(Segment(label[:start], self.rich_style))
                segments.append(Segment(label[start:end], key))
                segments.append(Segment(label[end:], self.rich_style))
            segments.append(Segment(" ", self.rich_style))
        return Strip(segments).adjust_cell_length(self.size.width, self.rich_style)

    def on_click(self, event: events.Click) -> None:
        end = 0
        for name, label in channel_labels(self._keys, self.size.width):
            end += len(label) + 1
            if event.x < end - 1:
                self._text.channel = name
                self._text.focus()
                return
