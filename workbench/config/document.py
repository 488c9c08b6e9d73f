"""Configuration being edited: one TOML text, which the form shows as values and the text view as it is."""

from __future__ import annotations

import contextlib
import copy
import json
import re
from collections import deque
from collections.abc import Callable, Mapping
from functools import cached_property, partial
from pathlib import Path
from typing import Any, Literal, NamedTuple

from pydantic import ValidationError

from trainer.config import PRESETS, Config, preset_names
from trainer.config.loading import merged
from trainer.config.problems import located_problems
from trainer.errors import UsageError
from trainer.files import parse_toml
from trainer.runs.listing import PPO
from workbench.config.fields import fields_by_key
from workbench.config.files import expanded, read_text, write
from workbench.run.metrics import training_command
from workbench.text import visible

_PART = r"""(?:[A-Za-z0-9_-]++|"(?:[^"\\\n]|\\[^\n])*+"|'[^'\n]*+')"""
_DOTTED = rf"{_PART}(?:[ \t]*+\.[ \t]*+{_PART})*+"
_KEY_OR_TABLE = re.compile(rf"[ \t]*+(?:({_DOTTED})[ \t]*+=|(\[\[?)[ \t]*+({_DOTTED})[ \t]*+\]\]?[ \t]*+(?:#|$))")
_STRING_OR_COMMENT = re.compile(
    r'"""(?:\\.|[^\\])*?(?:"""|\Z)|"(?:\\[^\n]|[^"\\\n])*+"?' r"|'''.*?(?:'''|\Z)|'[^'\n]*+'?|#[^\n]*+", re.DOTALL
)
_STEPS = 1000  # most steps that can be undone


class Problem(NamedTuple):
    """Problem that keeps the document from being a valid configuration."""

    key: str
    """Key of the setting, as in `ppo.kl_coef`; empty if the text is not TOML."""
    message: str
    line: int | None
    """From 1; None if the problem has no line in the text, such as a missing key."""

    @property
    def setting(self) -> str:
        """Key of the setting: `reward.sources` for `reward.sources[0].pattern`."""
        return self.key.partition("[")[0]


class ChangedSetting(NamedTuple):
    """Setting that differs from the preset or from the file."""

    preset: Any
    """Value of the preset."""
    from_preset: bool
    """True if a run with the value would differ from one with the preset's."""
    unsaved: bool
    """True if the value differs from the file."""


class ConfigDocument:
    """Document whose values, problems and changes are all derived from its text.

    While the text is not TOML, the values are those of the last valid text, and only `set_text` and `travel` change
    the document. A document for another kind of run than PPO is read-only; its kind is its only problem.
    """

    def __init__(self, text: str, *, path: Path | None = None, preset: str = "", content: bytes = b"") -> None:
        self.path = path
        """File that is saved; None for a preset, which is read-only, and for a copy of a run's configuration."""
        self.preset = preset
        """Name of the preset that changes are relative to; empty for the schema's defaults."""
        self.title = ""
        """Name of a document that is neither a file nor a preset, for display."""
        self._on_disk = content  # of the file that was read or written last; `text` has plain newlines and no mark
        self._preset_text = (PRESETS / f"{preset}.toml").read_text(encoding="utf-8") if preset else ""
        self._base = parse_toml(self._preset_text)
        self._undo: deque[str] = deque(maxlen=_STEPS)
        self._redo: deque[str] = deque(maxlen=_STEPS)
        self._typing = False  # whether the last step was a single typed character
        self._values: dict[str, Any] = {}
        self._put(text)
        self._saved_text, self._saved = text, self._values
        kind = self._values.get("kind", PPO)
        self.kind: str = kind if isinstance(kind, str) else PPO
        """Kind of run that it configures, read when it was opened."""
        command = training_command(self.kind)
        train = f"; train one with '{command} --config FILE'" if command else ""
        self.about_kind = f"Read-only configuration of a {visible(self.kind)} run{train}" if self.kind != PPO else ""
        """One line on the kind of run and the command that trains it; empty for PPO."""

    @classmethod
    def open(cls, source: str | Path) -> ConfigDocument:
        """Open a preset or a file, even one with errors. Raises UsageError if it cannot be read."""
        preset = str(source) if str(source) in preset_names() else ""
        path = PRESETS / f"{preset}.toml" if preset else expanded(Path(source))
        text, content = read_text(path, str(source))
        return cls(text, path=None if preset else path, preset=preset, content=content)

    @classmethod
    def of_run(cls, folder: Path, changes: Mapping[str, Any] | None = None) -> ConfigDocument:
        """Copy the configuration of the run in `folder`, without its file and its run name.

        changes: as for `apply`. Raises UsageError if the configuration cannot be read.
        """
        document = cls.open(folder / "config.toml")
        document.title = f"{'copy' if document.kind == PPO else 'config.toml'} of {folder.name}"
        if document.kind == PPO:
            with contextlib.suppress(UsageError):  # a text with errors stays as it is
                document.reset("run.name")
                document.apply(changes or {})
        document._undo.clear()
        document.saved(None, document.text, document._on_disk)
        return document

    @property
    def name(self) -> str:
        """Name of the file, the copied run or the preset, for display."""
        return str(self.path) if self.path else self.title or f"preset {self.preset}"

    @property
    def dirty(self) -> bool:
        """Return whether there are unsaved changes."""
        return self.text != self._saved_text

    @cached_property
    def problems(self) -> list[Problem]:
        """List of problems in the order of the schema; empty if there are none."""
        if self.syntax_error:
            at_line = re.search(r"line (\d+)", self.syntax_error)
            last = self.text.count("\n") + 1
            return [Problem("", f"not TOML: {self.syntax_error}", int(at_line[1]) if at_line else last)]
        if self.kind != PPO:
            return [Problem("kind", self.about_kind, self.line_of("kind"))]
        return [Problem(key, message, self.line_of(key)) for key, message in located_problems(self._values)]

    @cached_property
    def lines(self) -> dict[str, int]:
        """Line, from 1, of each table and of each key that begins a line: `ppo.kl_coef`, `reward.sources[1]`."""
        found: dict[str, int] = {}
        counts: dict[str, int] = {}  # of each array of tables
        table = ""
        bare = _STRING_OR_COMMENT.sub(lambda found: "\n" * found[0].count("\n") or found[0], self.text)
        for number, line in enumerate(bare.split("\n"), 1):
            if (match := _KEY_OR_TABLE.match(line)) is None:
                continue
            key = ".".join(part.strip("\"'") for part in re.findall(_PART, match[1] or match[3]))
            if match[1]:
                key = f"{table}.{key}".removeprefix(".")
            elif match[2] == "[[":
                found.setdefault(key, number)
                counts[key] = counts.get(key, -1) + 1
                key = table = f"{key}[{counts[key]}]"
            else:
                table = key
            parts = key.split(".")
            for end in range(1, len(parts) + 1):
                found.setdefault(".".join(parts[:end]), number)
        return found

    def line_of(self, key: str) -> int | None:
        """Return the line of `key`, or of the nearest enclosing key or table; None if there is none."""
        while key and key not in self.lines:
            key = key[: max(key.rfind("."), key.rfind("["), 0)]
        return self.lines.get(key)

    @cached_property
    def config(self) -> Config | None:
        """Validated configuration; None while there are problems."""
        return None if self.problems else Config.model_validate(self._values)

    @cached_property
    def changes(self) -> dict[str, ChangedSetting]:
        """Settings that differ from the preset or from the saved text, by key."""
        changes: dict[str, ChangedSetting] = {}
        for key in fields_by_key() if self.kind == PPO else ():
            preset, saved, value = (_lookup(values, key) for values in (self._base, self._saved, self._values))
            from_preset = not (_same(value, preset) or _same(_as_run(key, value), _as_run(key, preset)))
            if from_preset or not _same(value, saved):
                changes[key] = ChangedSetting(preset, from_preset, not _same(value, saved))
        return changes

    def set_text(self, text: str) -> None:
        """Replace the text. Characters that are typed one after the other are one step to undo."""
        if text != self.text:
            is_typed = abs(len(text) - len(self.text)) <= 1 and text.count("\n") == self.text.count("\n")
            self._step(text, is_typed=is_typed)

    def get(self, key: str) -> Any:
        """Return the value in the document, even one of the wrong type, or the schema's default."""
        return _lookup(self._values, key)

    def set(self, key: str, value: Any) -> None:
        """Set the value of a setting, unchecked: an invalid value shows up in `problems`.

        Raises UsageError if the text is not TOML, or if the section is not a table.
        """
        if not _same(self.get(key), value):
            self._edit(key, value)

    def apply(self, changes: Mapping[str, Any]) -> None:
        """Set values given as `parse_overrides` returns them. Raises UsageError as `set` does."""
        for section, table in changes.items():
            for name, value in table.items():
                key = f"{section}.{name}"
                self.set(key, merged({name: self.get(key)}, {name: value})[name])

    def preset_value(self, key: str) -> Any:
        """Return the value that `reset` restores."""
        return _lookup(self._base, key)

    def reset(self, key: str) -> None:
        """Restore the preset's value. Raises UsageError as `set` does."""
        section, _, name = key.partition(".")
        if name in self._base.get(section, {}):
            self.set(key, self.preset_value(key))
        elif isinstance(table := self._values.get(section), dict) and name in table:
            self._edit(key, None)

    def travel(self, step: Literal["undo", "redo"]) -> bool:
        """Undo or redo one step; return False if there is none."""
        back, forth = (self._undo, self._redo) if step == "undo" else (self._redo, self._undo)
        if back:
            forth.append(self.text)
            self._put(back.pop())
            return True
        return False

    def to_save(self, path: Path | None = None, *, overwrite: bool = False) -> Callable[[], tuple[Path, str, bytes]]:
        """Return a function, for a thread, that writes the document's file, or `path`; its result is for `saved`.

        The comments of a preset say why its own values are as they are: with others, they are left out.
        Raises UsageError if there is neither file nor path, as for a preset. The function raises OverwriteError if
        another program has changed the document's own file since it was read, or if another file exists; StorageError
        if it cannot be written; UsageError for a shipped preset. Then nothing has changed.
        """
        if (path := path or self.path) is None:
            raise UsageError(f"{self.name} has no file of its own: save it under a name")
        comments = ["#" + line.partition("#")[2] for line in self._preset_text.split("\n") if "#" in line]
        if self.path is None and comments and any(change.from_preset for change in self.changes.values()):
            lines = [f"# Made from the preset {self.preset}.", ""]
            for line in self.text.split("\n"):
                comment = next((known for known in comments if line.endswith(known)), "")
                bare = line.removesuffix(comment).rstrip() if comment else line
                if bare or (not line and len(lines) > 2):  # not a line that held nothing else
                    lines.append(bare)
            self._step("\n".join(lines))
        return partial(write, path, self.text, self.path, self._on_disk, overwrite=overwrite)

    def saved(self, path: Path | None, text: str, content: bytes) -> None:
        """Make the file that was written or read the document's own; what was edited meanwhile is unsaved."""
        self.path, self._on_disk, self._saved_text, self._typing = path, content, text, False
        with contextlib.suppress(ValueError):
            self._saved = self._values if text == self.text else parse_toml(text)
        self.__dict__.pop("changes", None)

    def _edit(self, key: str, value: Any) -> None:
        """Set `key` in the text, or remove it if `value` is None; everything else stays as it is."""
        if self.syntax_error:
            raise UsageError(f"the TOML has an error, so {key} cannot be changed: {self.syntax_error}")
        section, _, name = key.partition(".")
        expected = copy.deepcopy(self._values)
        table = expected.setdefault(section, {})
        if not isinstance(table, dict):
            raise UsageError(f"{section} is not a table in the TOML, so {key} cannot be set: edit the TOML")
        import tomlkit  # 0.2 s, so only for a change

        try:
            document = tomlkit.parse(self.text)
            if value is None:
                del table[name], document[section][name]
            else:
                table[name] = value
                document.setdefault(section, tomlkit.table())[name] = value
            text = tomlkit.dumps(document)
            # As texts, in which NaN equals NaN.
            one, other = (json.dumps(values, sort_keys=True, default=str) for values in (parse_toml(text), expected))
            is_right = one == other
        except (tomlkit.exceptions.TOMLKitError, TypeError, ValueError, KeyError):
            is_right = False
        if not is_right:  # the form must never damage what it does not show, whatever TOML tomlkit cannot handle
            raise UsageError(f"{key} is written in a way that the form cannot change: edit the TOML")
        self._step(text)

    def _step(self, text: str, *, is_typed: bool = False) -> None:
        """Replace the text, as a step to undo. is_typed: by a character, which joins the step of the one before."""
        if not (is_typed and self._typing):
            self._undo.append(self.text)
        self._redo.clear()
        self._put(text)
        self._typing = is_typed

    def _put(self, text: str) -> None:
        self.text = text
        """TOML text as it would be saved; `set_text` replaces it."""
        self._typing = False
        self.syntax_error = ""
        """Reason why the text is not TOML; empty if it is."""
        for derived in ("problems", "lines", "config", "changes"):
            self.__dict__.pop(derived, None)
        try:
            self._values = parse_toml(text)
        except ValueError as error:  # tomllib also lets errors of int() through
            self.syntax_error = str(error)


def _lookup(values: dict[str, Any], key: str) -> Any:
    """Return the value in `values`, or the schema's default; None for an unknown key."""
    section, _, name = key.partition(".")
    if isinstance(table := values.get(section), dict) and name in table:
        return table[name]
    return fields_by_key()[key].schema["default"] if key in fields_by_key() else None


def _same(one: Any, other: Any) -> bool:
    """Return whether two values are equal; 1 equals 1.0 but not true."""
    return bool(one == other) and isinstance(one, bool) == isinstance(other, bool)


def _as_run(key: str, value: Any) -> Any:
    """Return `value` as a run uses it, however it is written; unchanged if it is not valid."""
    section, _, name = key.partition(".")
    table = Config.model_fields[section].annotation
    assert table is not None
    try:
        read = getattr(table.model_validate({name: value}), name)
    except ValidationError:
        return value
    return Path(read).absolute() if key == "run.dir" else read
