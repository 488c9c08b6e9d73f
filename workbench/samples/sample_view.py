"""The view of one sample: its coloured text, a legend, and everything known about the token under the cursor."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Sequence
from functools import partial
from typing import ClassVar, NamedTuple

from rich.cells import cell_len, set_cell_size
from rich.segment import Segment
from textual import events, on
from textual.app import ComposeResult
from textual.containers import Container, Vertical
from textual.geometry import Size
from textual.strip import Strip
from textual.widget import Widget
from textual.widgets import Static

from trainer.runs.folder import RunFolder
from workbench.kit.axes import number_text
from workbench.kit.drawing import Drawn, wrapped
from workbench.kit.glyphs import BARS
from workbench.kit.keys import keys_of
from workbench.kit.pane import MountedWhole
from workbench.run.sample_table import TokenSample
from workbench.samples.channels import CHANNELS, Channel, ChannelScale, heat_ladder
from workbench.samples.export import parsed
from workbench.samples.sample_list import sample_facts
from workbench.samples.token_facts import TokenFacts, percent, sentence
from workbench.samples.token_text import TokenText
from workbench.text import MISSING, Line, beside, fit, fit_start, plain, visible

LegendPiece = tuple[str, str | float]  # text, and its role (label, text, muted) or its position on the scale, 0 to 1
LegendLine = list[LegendPiece]

_BESIDE = 96  # columns from which the inspector is beside the text
_LEGEND = 33  # columns that the legend needs beside the row of channels
_TALL = 30  # lines from which it gets more room below the text
_LEAST, _LEAST_TALL = 8, 14  # lines of the inspector below the text, however long that is
_NOT_SAVED = "not saved in this run"

_NUMBER, _PERCENT = 9, 9  # columns
_FULL_FROM = 40  # columns: units are written out
_SHORT = {"✂ clipped": "✂", "outside": "out", "no step": "", "whitened": ""}  # below that width
_COLUMN, _WIDEST = 36, 44  # columns: least and greatest width of a column of numbers
_GAP = 2  # columns between two columns of numbers
_SENTENCE = 4  # lines that the sentence has at most, unless the numbers leave more; kept for it where all fit
_PASSES = 5  # with more passes, only the first clipped one and the last are important
_ALL = 1000  # lines: more than there are numbers
_UNBROKEN = 1000  # columns: more than all labels of channels have
_TELLING = re.compile(r"((?<!being )pushed (?:up|down)|(?:reference|policy) [<>\d.e+]+%)")  # parts with a colour
_PUSHES = {"pushed up": "better", "pushed down": "worse"}
_FIRST_BLANK, _BLANK = 14, 25  # ranks of empty lines: below the sentence, and between numbers


class SampleView(MountedWhole, Vertical):
    """Text, legend and inspector; the inspector is beside the text where there is room, else below."""

    def __init__(self) -> None:
        super().__init__()
        self.text = TokenText()
        self.inspector = Drawn(id="inspector")
        self._facts = Static(id="sample-facts", markup=False)
        self._extra = Static(id="sample-extra", markup=False)  # what reward functions logged about the response
        self._channels, self._legend = Drawn(id="channels"), TokenLegend(self.text)
        self._extra.display = self._marked = False

    @property
    def facts(self) -> TokenFacts | None:
        """The facts of the token under the cursor; None without a sample."""
        sample = self.text.sample
        return TokenFacts(sample, self.text.cursor) if sample is not None and len(sample) else None

    def compose(self) -> ComposeResult:
        yield self._facts
        yield self._extra
        with Container(id="sample-channels"):
            yield self._channels
            yield self._legend
        with Container(id="sample-body"):
            yield self.text
            yield self.inspector

    def on_mount(self) -> None:
        self.watch(self.text, "virtual_size", self._share_rows, init=False)

    def show(self, folder: RunFolder, sample: TokenSample, *, marked: bool) -> None:
        """Show a sample of the run in `folder`. marked: the sample has a bookmark."""
        self.text.show(sample, folder=folder)
        self.mark(marked)

    def mark(self, marked: bool) -> None:
        """Show whether the sample has a bookmark."""
        self._marked = marked
        if (sample := self.text.sample) is None:
            return
        texts = [sample_facts(sample, marked=marked, iteration=True, short=short).strip() for short in (False, True)]
        texts.insert(0, "iteration " + texts[0].replace("·", " · sample ", 1))
        self._facts.update(next((text for text in texts if cell_len(text) <= self.size.width), texts[-1]))
        extra = parsed(sample.extra)
        pairs = extra.items() if isinstance(extra, dict) else [("extra", extra)]
        self._extra.update("   ".join(visible(f"{name}: {value}") for name, value in pairs))
        self._extra.display = bool(sample.extra)

    def on_resize(self, event: events.Resize) -> None:
        self.set_class(event.size.width >= _BESIDE, "-beside")
        whole = sum(len("".join(parts)) + 1 for _, *parts in channel_labels(self.text, _UNBROKEN))
        beside = event.size.width >= whole + _LEGEND
        self.set_class(beside, "-scale-beside")
        self._channels.styles.width = whole if beside else "1fr"
        self.mark(self._marked)
        self._share_rows()

    def _share_rows(self) -> None:
        """Give the inspector the rows that the text leaves free below itself."""
        if self.has_class("-beside"):
            self.inspector.styles.height = "1fr"
            return
        head = self._legend.lines if self.has_class("-scale-beside") else 1 + self._legend.lines
        free = self.size.height - 2 - head - self.text.virtual_size.height  # below facts, above the inspector: a line
        self.inspector.styles.height = max(_LEAST_TALL if self.size.height >= _TALL else _LEAST, free)

    @on(TokenText.Moved)
    def _show_token(self) -> None:
        self.inspector.show(partial(inspector_lines, self.facts))

    @on(TokenText.ChannelChanged)
    def _show_legend(self) -> None:
        self._legend.refresh(layout=True)
        self._channels.show(partial(channel_line, self.text))
        self._share_rows()

    @on(events.Click, "#channels")
    def _choose_channel(self, event: events.Click) -> None:
        end = 0
        for name, *parts in channel_labels(self.text, self._channels.size.width):
            end += len("".join(parts)) + 1
            if event.x < end - 1:
                self.text.channel = name
                self.text.focus()
                return


def channel_labels(text: TokenText, width: int) -> list[tuple[str, str, str, str]]:
    """Return the name of each channel with its label in three parts, of which the second is the key.

    The key is in brackets where `width` has room for all labels, else a letter of the label.
    """
    keys = keys_of(text)
    for opening, closing in (("[", "]"), ("", "")):
        labels = []
        for name, channel in CHANNELS.items():
            key, label = keys.get(f"tokens.{name.replace('_', '-')}", ""), channel.label
            at = label.lower().find(key.lower()) if len(key) == 1 else -1
            if at >= 0:
                letter = key if opening else label[at]
                labels.append((name, label[:at] + opening, letter, closing + label[at + 1 :]))
            else:
                labels.append((name, opening, key if opening else "", f"{closing} {label}" if opening else label))
        if sum(len("".join(parts)) + 1 for _, *parts in labels) <= width + 1:
            break
    return labels


def channel_line(text: TokenText, width: int, height: int) -> list[Line]:
    """Return the line of channels with their keys, in grey those that the run does not record."""
    line: Line = []
    for name, *parts in channel_labels(text, width):
        if name == text.channel or text.scale(name) is None:
            line.append(("".join(parts), "selected" if name == text.channel else "muted"))
        else:
            line += zip(parts, ("", "strong", ""), strict=True)
        line.append((" ", ""))
    return [line]


class TokenLegend(Widget):
    """The legend of a `TokenText`: the numbers behind colours, blocks and underlines."""

    COMPONENT_CLASSES: ClassVar[set[str]] = {f"token-legend--{role}" for role in ("label", "text", "muted")}

    def __init__(self, text: TokenText) -> None:
        super().__init__()
        self._text = text

    @property
    def lines(self) -> int:
        """Number of its lines."""
        return 2 if self._text.underline else 1

    def get_content_height(self, container: Size, viewport: Size, width: int) -> int:
        return self.lines

    def render_line(self, y: int) -> Strip:
        width, text = self.size.width, self._text
        if text.sample is None or y >= self.lines:
            return Strip.blank(width, self.rich_style)
        colorless, channel = self.app.no_color, CHANNELS[text.underline if y else text.channel]
        blocks = text.blocks != "off" or colorless or self.app.current_theme.ansi
        scale = text.scale(channel.name)
        if y:
            line = underline_legend(channel, scale, width)
        else:
            line = color_legend(channel, scale, width, shared=channel.name in text.shared, blocks=blocks)
        ladder, strip = heat_ladder(self.app.theme_variables, diverging=channel.diverging, colorless=colorless), []
        for piece, role in line:
            if isinstance(role, str):
                strip.append(Segment(piece, self.get_component_rich_style(f"token-legend--{role}")))
            else:
                strip.append(Segment(piece, ladder.at(role, mark=blocks)))
        return Strip(strip).adjust_cell_length(width, self.rich_style)


def color_legend(
    channel: Channel, scale: ChannelScale | None, width: int, *, shared: bool = False, blocks: bool = True
) -> LegendLine:
    """Return the line for the colours, in full or as short as `width` columns need it.

    The ends of the scale are followed by those of the data if these lie beyond them; in narrow places ‹ and › mark
    such an end. scale: None where the sample's file lacks the channel. shared: the scale is that of the batch.
    blocks: show the blocks too, not only the colours.
    """
    name: LegendPiece = (channel.label, "label")
    if scale is None:
        return _fitting([name, (f"  {_NOT_SAVED}", "muted")], width)
    low, high, least, greatest = map(channel.number, (scale.low, scale.high, scale.least, scale.greatest))
    ramp: LegendLine = [(mark if blocks else " ", place / (len(BARS) - 1)) for place, mark in enumerate(BARS)]
    below, above = scale.least < scale.low and least != low, scale.greatest > scale.high and greatest != high
    missing = f" · {scale.missing} NaN" if scale.missing else ""
    more = f"  from {least} to {greatest}" if below or above else ""
    more += f"{missing} · scale of {'the batch' if shared else 'this sample'}"
    full: LegendLine = [name, (f"  {low} ", "text"), *ramp, (f" {high}", "text"), (more, "muted")]
    low, high = f"{'‹' if below else ' '}{low}", f"{high}{'›' * above}"
    short: LegendLine = [name, (f" {low} ", "text"), *ramp, (f" {high}", "text"), (missing, "muted")]
    return _fitting(full, width, short, short[:-1], [name, (f" {low} to {high}", "text")])


def underline_legend(channel: Channel, scale: ChannelScale | None, width: int) -> LegendLine:
    """Return the line for the underlines, in full or as short as `width` columns need it."""
    start = f"underline: {channel.label}  "
    if scale is None:
        return _fitting([(start + _NOT_SAVED, "muted")], width)
    bounds = []
    for size in (scale.high / 3, scale.high * (2 / 3)):
        text = channel.number(size)
        if channel.diverging:
            text = text.replace("+", "±") if channel.signed else f"{channel.number(-size)}/{text}"
        bounds.append(text)
    (once, twice), missing = bounds, f" · {scale.missing} NaN" if scale.missing else ""
    full: LegendLine = [(f"{start}─ beyond {once}  ═ beyond {twice}{missing}", "muted")]
    short: LegendLine = [(f"{start}─ {once}  ═ {twice}{missing}", "muted")]
    return _fitting(full, width, short, [(f"{channel.label} ─ {once} ═ {twice}", "muted")])


def _fitting(full: LegendLine, width: int, *shorter: LegendLine) -> LegendLine:
    """Return the first of these lines that fits, else the last one, cut to `width`."""
    for line in (full, *shorter):
        text = "".join(text for text, _ in line)
        if cell_len(text) <= width:
            return [piece for piece in line if piece[0]]
    return [(fit(text, max(width, 0)), "text")]


class InspectorRow(NamedTuple):
    """A line and its rank; where room is short, lines of the highest rank are dropped first."""

    rank: int
    line: Line
    is_part: bool = False  # belongs to the row above, so it begins no column


Number = tuple[int, str, float | None, str, float | None]  # rank, label, number, unit, probability


def inspector_lines(facts: TokenFacts | None, width: int, height: int) -> list[Line]:
    """Return at most `height` lines of at most `width` columns: the token, the sentence, and the numbers that fit.

    Numbers that do not fit in one column are set in two, if `width` has room for them.
    """
    if facts is None:
        return [[(fit_start("The response is empty.", width), "muted")]]
    if width < 1:
        return []
    columns = 2 if width >= 2 * _COLUMN + _GAP else 1
    rows = _rows(facts, min(width, _WIDEST))
    numbers = -(-sum(bool(row.line) for row in rows) // columns)
    head = _head(facts, width, max(min(height, max(_SENTENCE, height - 1 - numbers)), 1))[:height]
    head += [[]] * (min(_SENTENCE, height - 1 - numbers) - len(head))  # so that the numbers keep their place
    room = height - len(head)
    if columns == 1 or room < 1 or sum(bool(row.line) for row in rows) <= room:
        return head + [_cut(row.line, width) for row in _most_telling(rows, room)]
    column = min((width - _GAP) // 2, _WIDEST)
    rows = [row for row in _rows(facts, column) if row.line]
    for count in range(2 * room, room, -1):
        shown = _most_telling(rows, count)
        half = next((place for place in range(min(room, len(shown) - 1), 0, -1) if not shown[place].is_part), room)
        if len(shown) <= half + room:
            break
    columns_of = [[row.line for row in rows] for rows in (shown[:half], shown[half:])]
    return [*head, *beside(columns_of, column, (" " * _GAP, "text"))]


def facts_text(facts: TokenFacts) -> str:
    """Return the token, the sentence and all numbers as text, for the clipboard."""
    return "\n".join(plain(line).rstrip() for line in inspector_lines(facts, 2 * _WIDEST, _ALL))


def _head(facts: TokenFacts, width: int, most: int) -> list[Line]:
    """Return the token with its sentence, then its place in the response and its id, in at most `most` lines."""
    pieces: Line = [(fit_start(facts.name, width), "strong"), ("  ", "text")]
    for number, part in enumerate(_TELLING.split(sentence(facts))):
        pieces.append((part, (_PUSHES.get(part) or part.partition(" ")[0]) if number % 2 else "text"))
    lines = [_cut(line, width) for line in wrapped(pieces, width)]
    if len(lines) > most:
        lines[most - 1 :] = [[*_cut(lines[most - 1], width - 1), ("…", "muted")]]
    end = (" · cut short" if facts.sample.truncated else " · stop") if facts.is_last else ""
    place = f"{facts.index + 1} of {facts.length}{end} · id {facts.token}"
    room = width - cell_len(plain(lines[-1]))
    if room > cell_len(place) + 1:
        lines[-1] = [*lines[-1], (place.rjust(room), "muted")]
    elif len(lines) < most:
        lines.append([(fit(place, width), "muted")])
    return lines


def _rows(facts: TokenFacts, width: int) -> list[InspectorRow]:
    """Return all numbers in lines of `width` columns, with empty lines between the groups."""
    groups = [[_row(*number, width) for number in group if number[2] is not None] for group in _numbers(facts, width)]
    rows: list[InspectorRow] = []
    for group in filter(None, [*groups, [*_choices(facts, width)]]):
        rows += [InspectorRow(_BLANK if rows else _FIRST_BLANK, []), *group]
    return rows


def _numbers(facts: TokenFacts, width: int) -> Iterator[list[Number]]:
    """Yield the groups of numbers."""
    settings = facts.settings
    whitened = settings is not None and settings.whiten_rewards
    yield [
        (0, "advantage", facts.advantage, "", None),
        (4, "  whitened", facts.whitened_advantage, "std", None),
        (5, "  baseline", facts.baseline, "", None),
        (27, "  divided by", facts.advantage_scale, "", None),
        (5, "value", facts.value, "", None),
        (27, "  next", facts.next_value, "", None),
        (8, "TD error", facts.td_error, "", None),
        (8, "all rewards", facts.total_reward, "", None),
        (9, "return", facts.return_, "", None),
        (6, "reward", facts.reward, "whitened" if whitened else "", None),
        (10, "  KL penalty", facts.kl_penalty, "", None),
        (13, "  token's own", facts.token_score or None, "", None),
        (11, "  score", facts.sequence_score, "", None),
        (17, "  sum", facts.raw_reward if whitened else None, "", None),
    ]
    k1, kl = facts.k1, facts.kl
    apart = k1 is None or kl is None or not math.isclose(k1, kl, rel_tol=1e-5, abs_tol=1e-6)
    estimator = settings.kl_estimator if settings is not None else "penalty"
    yield [
        (2, "log-prob", facts.logprob, "nats", facts.probability),
        (3, "  reference", facts.ref_logprob, "nats", facts.ref_probability),
        (26, "  sampler", facts.sampler_logprob, "nats", facts.sampler_probability),
        (1, "KL", k1, "nats", None),
        (12, f"  by {estimator}", kl if apart else None, "nats", None),
        (15, "entropy", facts.entropy, "nats", None),
        (12, "KL's push", facts.kl_pull, "", None),
        (16, "weight", facts.weight, "", None),
    ]
    passes = facts.passes
    key = {len(passes) - 1, next((place for place, one in enumerate(passes) if one.clipped), -1)}
    ratio = "ρ" if any(len(f"ratio {one.name}") > _columns(width)[1] for one in passes) else "ratio"
    ranks = [7 if place in key else 16 if len(passes) <= _PASSES else 28 + place for place in range(len(passes))]
    yield [
        (rank, f"{ratio} {one.name}", one.ratio, one.mark, one.probability)
        for rank, one in zip(ranks, passes, strict=True)
    ]


def _choices(facts: TokenFacts, width: int) -> Iterator[InspectorRow]:
    room = width - 2 - 2 * (_PERCENT + 1)
    if len(facts.choices) < 2 or room < 4:
        return
    heads: Line = [(writer.rjust(_PERCENT + 1), writer) for writer in ("policy", "reference")]
    yield InspectorRow(8, [(fit("  likeliest", room + 2), "muted"), *heads])
    for one in facts.choices:
        shares = ((one.probability, "policy"), (one.ref_probability, "reference"))
        name: Line = [
            ("▸ " if one.chosen else "  ", "selected"),
            (fit(one.name, room), "strong" if one.chosen else "text"),
        ]
        numbers = [(percent(share).rjust(_PERCENT + 1), writer) for share, writer in shares]
        yield InspectorRow(8 if one.chosen else 9, [*name, *numbers], is_part=True)


def _columns(width: int) -> tuple[int, int]:
    """Return the columns for a unit, and those that number, unit and probability leave for a label."""
    units = 10 if width >= _FULL_FROM else 5
    return units, max(width - _NUMBER - units - _PERCENT, 0)


def _row(rank: int, label: str, number: float | None, unit: str, probability: float | None, width: int) -> InspectorRow:
    """Return a row with a label, the number and its unit, and a probability at the right end."""
    units, left = _columns(width)
    number = math.nan if number is None else number
    shown, role = number_text(number, 4, _NUMBER - 1), "strong"
    if not math.isfinite(number):
        shown, role = f"{MISSING} {shown}", "missing"
    is_part = label.startswith(" ")
    if is_part and cell_len(label) > left:
        label = label[1:]
    line = [
        (fit(label, left), "muted" if is_part else "text"),
        (shown.rjust(_NUMBER), role),
        (" " + fit(unit if units > 5 else _SHORT.get(unit, unit), units - 1), "warning" if "✂" in unit else "muted"),
        (
            "" if probability is None else percent(probability).rjust(_PERCENT),
            "reference" if "reference" in label else "policy",
        ),
    ]
    return InspectorRow(rank, line, is_part)


def _most_telling(rows: Sequence[InspectorRow], count: int) -> list[InspectorRow]:
    """Return the `count` rows of lowest rank, in their order."""
    places = sorted(range(len(rows)), key=lambda place: rows[place].rank)[: max(count, 0)]
    return [rows[place] for place in sorted(places)]


def _cut(line: Line, width: int) -> Line:
    """Cut the line to at most `width` columns."""
    cut: Line = []
    for text, role in line:
        text = text if cell_len(text) <= width else set_cell_size(text, width)
        width -= cell_len(text)
        cut.append((text, role))
    return cut
