"""Text of a configuration that an earlier version wrote, brought to this version; comments and order stay."""

from __future__ import annotations

from typing import Any

from trainer.config.fields import CONFIG_FORMAT
from trainer.errors import StorageError
from trainer.files import parse_toml


def migrated(text: str) -> str:
    """Return `text` with the keys and values of this version, and its number.

    Text that needs no more than the number stays as it is, and so does text that this version cannot read.
    """
    old, new = _versions(text)
    return text if _settings(old) == _settings(new) else _rewritten(text, old, new)


def numbered(text: str) -> str:
    """Return `text` with the number of this version; text that needs more than the number stays as it is."""
    old, new = _versions(text)
    return text if old == new or _settings(old) != _settings(new) else _rewritten(text, old, new)


def _versions(text: str) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the tables of `text`, and what they are in this version."""
    try:
        old = parse_toml(text)
        return old, CONFIG_FORMAT.current(old, "")
    except (ValueError, StorageError):  # the document reports it
        return {}, {}


def _settings(tables: dict[str, Any]) -> dict[str, Any]:
    return {name: table for name, table in tables.items() if name != CONFIG_FORMAT.key}


def _rewritten(text: str, old: dict[str, Any], new: dict[str, Any]) -> str:
    import tomlkit  # imported only for a change
    from tomlkit.exceptions import TOMLKitError

    number = CONFIG_FORMAT.key
    try:
        document: Any = tomlkit.parse(text)
        for section, table in _settings(new).items():
            if table != old[section]:
                for name in old[section].keys() - table.keys():
                    del document[section][name]
                for name in [name for name in table if table[name] != old[section].get(name)]:
                    document[section][name] = table[name]
        if number in old:
            document[number] = new[number]
        changed = tomlkit.dumps(document)
    except (TOMLKitError, TypeError, ValueError, KeyError):
        return text
    if number not in old:
        changed = f"{number} = {new[number]}\n\n{changed}"
    # The editor must never damage what the form does not show, whatever TOML syntax it cannot handle.
    return changed if parse_toml(changed) == new else text
