"""A configuration being edited: one TOML text, seen as values by a form and as itself by a text view."""

from __future__ import annotations

import contextlib
import copy
import json
import re
from collections import deque
from collections.abc import Mapping
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

from trainer.config import PRESETS, Config, config_warnings, preset_names
from trainer.config.problems import located_problems, setting_keys
from trainer.errors import StorageError, UsageError
from trainer.files import parse_toml
from trainer.runs.listing import PPO
from workbench.config.fields import fields_by_key
from workbench.config.files import bytes_of, expanded, read_text, write_whole
from workbench.config.toml import key_lines, line_of, with_value
from workbench.run.kinds import training_command
from workbench.text import visible

_STEPS = 1000  # that can be undone


class OverwriteError(StorageError):
    """Saving would destroy what another program or an earlier save wrote; `overwrite=True` does it all the same."""

    def __init__(self, message: str, path: Path) -> None:
        super().__init__(message)
        self.path = path


class Problem(NamedTuple):
    """What keeps the document from being a configuration."""

    key: str
    """`ppo.kl_coef`; empty where the text is not TOML."""
    message: str
    line: int | None
    """From 1; None where nothing in the text is to blame, such as a missing key."""


class Change(NamedTuple):
    """A setting that differs from the preset's or from the saved one."""

    preset: Any
    saved: Any
    value: Any

    @property
    def from_preset(self) -> bool:
        """Whether it differs from the preset."""
        return not _same(self.value, self.preset)

    @property
    def unsaved(self) -> bool:
        """Whether it differs from the file."""
        return not _same(self.value, self.saved)


class ConfigDocument:
    """The text is the truth; everything else is derived from it.

    While the text is not TOML, the values are those of the last text that was, and only `set_text`, `undo` and `redo`
    change the document. One that configures another kind of run is there to be read: it is its own only problem.
    """

    def __init__(
        self, text: str, *, path: Path | None = None, preset: str = "", newline: str = "\n", mark: str = ""
    ) -> None:
        self.path = path
        """The file that `save` writes; None for a preset, which is read-only."""
        self.preset = preset
        """What changes are measured against; empty for the schema's defaults."""
        self._copied = ""  # name of the run that this is a copy of
        self._newline, self._mark = newline, mark  # as in the file, where `text` has neither
        self._base = parse_toml(_preset_file(preset).read_text(encoding="utf-8")) if preset else {}
        self._undo: deque[str] = deque(maxlen=_STEPS)
        self._redo: deque[str] = deque(maxlen=_STEPS)
        self._typing: int | None = None
        self._saved_text = text
        self._on_disk = self._encoded(text) if path else b""
        self._saved: dict[str, Any] = {}
        self._values: dict[str, Any] = {}
        self._put(text)
        self._saved = self._values
        kind = self._values.get("kind", PPO)
        self.kind: str = kind if isinstance(kind, str) else PPO
        """The kind of run that it configures, as it said when it was opened."""

    @classmethod
    def open(cls, source: str | Path) -> ConfigDocument:
        """A preset or a file, be it broken. Raises UsageError when it cannot be read."""
        preset = str(source) if str(source) in preset_names() else ""
        path = _preset_file(preset) if preset else expanded(Path(source))
        text = read_text(path, str(source))
        text, newline, mark = _unmarked(text)
        return cls(text, path=None if preset else path, preset=preset, newline=newline, mark=mark)

    @classmethod
    def of_run(cls, folder: Path, changes: Mapping[str, Mapping[str, Any]] | None = None) -> ConfigDocument:
        """What the run in `folder` is trained with, as something new without a file or a run's name of its own.

        changes: settings, in their tables, that the run goes on with. Raises UsageError when it cannot be read.
        """
        document = cls.open(folder / "config.toml")
        document.path = None
        document._copied = folder.name
        if document.kind == PPO:
            with contextlib.suppress(UsageError):  # a broken text keeps what it has
                document.reset("run.name")
                for section, table in (changes or {}).items():
                    for name, value in table.items():
                        document.set(f"{section}.{name}", value)
        document._undo.clear()
        document._mark_saved(b"")
        return document

    @property
    def text(self) -> str:
        """The TOML as it would be saved."""
        return self._text

    @property
    def about_kind(self) -> str:
        """One line on what it configures and how that is trained; empty for a run of PPO."""
        if self.kind == PPO:
            return ""
        line = f"the configuration of a {visible(self.kind)} run, to be read only"
        command = training_command(self.kind)
        return f"{line}: '{command} --config FILE' trains one" if command else line

    @property
    def dirty(self) -> bool:
        """Whether there is something to save."""
        return self._text != self._saved_text

    @property
    def syntax_error(self) -> str:
        """Why the text is not TOML; empty where it is."""
        return self._error

    def set_text(self, text: str) -> None:
        """The text was edited. Characters typed or deleted one after the other on one line are one step to undo."""
        if text == self._text:
            return
        line = _line_typed_on(self._text, text)
        if line is None or line != self._typing:
            self._undo.append(self._text)
        self._redo.clear()
        self._put(text)
        self._typing = line

    def get(self, key: str) -> Any:
        """The value in the document, be it of a wrong type, or the schema's default."""
        return _lookup(self._values, key)

    def set(self, key: str, value: Any) -> None:
        """Give a setting a value (not checked: what is wrong with it will be among the problems).

        Raises UsageError when the text has no place for it: it is not TOML, or the table is something else.
        """
        if not _same(self.get(key), value):
            self._edit(key, value)

    def preset_value(self, key: str) -> Any:
        """What `reset` gives the setting."""
        return _lookup(self._base, key)

    def reset(self, key: str) -> None:
        """Take back what the preset has. Raises UsageError as `set` does."""
        if _has(self._base, key):
            self.set(key, _lookup(self._base, key))
        elif _has(self._values, key):
            self._edit(key, None)

    def undo(self) -> bool:
        """Go back one step; False when there is none."""
        return self._travel(self._undo, self._redo)

    def redo(self) -> bool:
        """Take back an undo; False when there is none."""
        return self._travel(self._redo, self._undo)

    @cached_property
    def problems(self) -> list[Problem]:
        """What is wrong, in the order of the schema; empty when nothing is."""
        if self._error:
            at_line = re.search(r"line (\d+)", self._error)
            last = self._text.count("\n") + 1
            return [Problem("", f"not TOML: {self._error}", int(at_line[1]) if at_line else last)]
        lines = self.lines
        if self.kind != PPO:
            return [Problem("kind", self.about_kind, line_of("kind", lines))]
        return [Problem(key, message, line_of(key, lines)) for key, message in located_problems(self._values)]

    @property
    def warnings(self) -> list[str]:
        """What is allowed but likely to disappoint."""
        config = self.config()
        return config_warnings(config) if config else []

    @cached_property
    def lines(self) -> dict[str, int]:
        """The line, from 1, of each key that the text has."""
        return key_lines(self._text)

    def config(self) -> Config | None:
        """The configuration; None while there are problems."""
        return self._config

    def changes(self) -> dict[str, Change]:
        """The settings that differ from the preset or from the saved text."""
        return self._changes

    def save(self, *, overwrite: bool = False) -> None:
        """Write the file anew, whole or not at all.

        Raises OverwriteError when the file was changed by another program since it was read, StorageError when it
        cannot be written, UsageError for a preset. In each case nothing is lost.
        """
        if self.path is None:
            raise UsageError(f"{self.name} has no file of its own: save it as one")
        if not overwrite and (there := bytes_of(self.path)) is not None and there != self._on_disk:
            raise OverwriteError(f"{self.path} was changed by another program since it was read", self.path)
        self._write(self.path)

    def save_as(self, path: Path, *, overwrite: bool = False) -> None:
        """Write another file and go on with it.

        Raises OverwriteError when it exists, StorageError when it cannot be written, UsageError for a shipped preset.
        """
        path = expanded(path)
        if path.resolve().is_relative_to(PRESETS.resolve()):
            raise UsageError(f"{path} is a preset that ships with the program: choose another folder")
        if self.path is not None and path.resolve() == self.path.resolve():
            self.save(overwrite=overwrite)
            return
        if not overwrite and path.is_file():
            raise OverwriteError(f"{path} exists", path)
        self._write(path)
        self.path = path

    def reload(self) -> None:
        """Take over what the file holds now, as one step that can be undone. Raises UsageError as `open` does."""
        if self.path is None:
            return
        text = read_text(self.path, str(self.path))
        text, self._newline, self._mark = _unmarked(text)
        if text != self._text:
            self._step(text)
        self._mark_saved(self._encoded(text))

    @property
    def name(self) -> str:
        """The file or the preset, to a reader."""
        if self.path is not None:
            return str(self.path)
        if self.preset:
            return f"preset {self.preset}"
        return f"copy of {self._copied}" if self.kind == PPO else f"config.toml of {self._copied}"

    def _edit(self, key: str, value: Any) -> None:
        """Set `key` in the text, or remove it where `value` is None; everything else stays as it is."""
        if self._error:
            raise UsageError(f"the TOML has an error, so {key} cannot be changed in it: {self._error}")
        section, _, name = key.partition(".")
        expected = copy.deepcopy(self._values)
        table = expected.setdefault(section, {})
        if not isinstance(table, dict):
            raise UsageError(f"{section} is no table in the TOML, so {key} has no place in it")
        if value is None:
            del table[name]
        else:
            table[name] = value
        text = with_value(self._text, section, name, value)
        # The form must never harm what it does not show, whatever way of writing TOML the editor stumbles over.
        if text is None or not _equal(parse_toml(text), expected):
            raise UsageError(f"{key} is written in a way that the form cannot change: edit the TOML")
        self._step(text)

    def _step(self, text: str) -> None:
        self._undo.append(self._text)
        self._redo.clear()
        self._put(text)

    def _travel(self, back: deque[str], forth: deque[str]) -> bool:
        if not back:
            return False
        forth.append(self._text)
        self._put(back.pop())
        return True

    def _put(self, text: str) -> None:
        self._text = text
        self._typing = None
        self._error = ""
        for derived in ("problems", "lines", "_config", "_changes"):
            self.__dict__.pop(derived, None)
        try:
            self._values = parse_toml(text)
        except ValueError as error:  # tomllib lets what int() raises through
            self._error = str(error)

    @cached_property
    def _config(self) -> Config | None:
        return None if self.problems else Config.model_validate(self._values)

    @cached_property
    def _changes(self) -> dict[str, Change]:
        changes: dict[str, Change] = {}
        if self.kind != PPO:
            return changes
        for key in setting_keys():
            change = Change(*(_lookup(values, key) for values in (self._base, self._saved, self._values)))
            if change.from_preset or change.unsaved:
                changes[key] = change
        return changes

    def _encoded(self, text: str) -> bytes:
        return (self._mark + text.replace("\n", self._newline)).encode("utf-8", "replace")

    def _write(self, path: Path) -> None:
        content = self._encoded(self._text)
        write_whole(path, content)
        self._mark_saved(content)

    def _mark_saved(self, content: bytes) -> None:
        self._on_disk = content
        self._saved_text, self._saved = self._text, self._values
        self._typing = None
        self.__dict__.pop("_changes", None)


def _unmarked(text: str) -> tuple[str, str, str]:
    """`text` with plain line ends and without a byte-order mark, and the line end and the mark that it had."""
    mark = "\ufeff" if text.startswith("\ufeff") else ""
    newline = "\r\n" if "\r\n" in text else "\n"
    return text.removeprefix(mark).replace("\r\n", "\n"), newline, mark


def _preset_file(name: str) -> Path:
    return PRESETS / f"{name}.toml"


def _has(values: dict[str, Any], key: str) -> bool:
    section, _, name = key.partition(".")
    return isinstance(values.get(section), dict) and name in values[section]


def _lookup(values: dict[str, Any], key: str) -> Any:
    section, _, name = key.partition(".")
    return values[section][name] if _has(values, key) else fields_by_key()[key].default


def _same(one: Any, other: Any) -> bool:
    """1 and 1.0 are the same, 1 and true are not."""
    return bool(one == other) and isinstance(one, bool) == isinstance(other, bool)


def _equal(one: dict[str, Any], other: dict[str, Any]) -> bool:
    """Whether both are the same TOML; NaN equals itself here."""
    return json.dumps(one, sort_keys=True, default=str) == json.dumps(other, sort_keys=True, default=str)


def _line_typed_on(before: str, after: str) -> int | None:
    """The line, from 0, on which `after` has one character more or less than `before`; None for a larger change."""
    lines = zip(before.split("\n"), after.split("\n"), strict=False)
    changed = [number for number, (old, new) in enumerate(lines) if old != new]
    same_lines = before.count("\n") == after.count("\n")
    return changed[0] if same_lines and len(changed) == 1 and abs(len(after) - len(before)) <= 1 else None
