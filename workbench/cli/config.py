"""The configuration of a command line; `ppo-workbench config` (show, validate, schema) and `new`, a workspace."""

from __future__ import annotations

import argparse
import json
import shlex
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from trainer.config import SCHEMAS, AnyConfig, Config, config_warnings, load_config
from trainer.config.loading import config_text, load_config_as, parse_overrides, preset_names
from trainer.config.problems import Schema, validate_as
from trainer.config.reference import json_schema, reference_markdown, reference_rows
from trainer.config.schema import RunConfig
from trainer.errors import UsageError, writing
from trainer.files import read_toml, write_whole
from trainer.runs.folder import RunFolder, check_name_is_free, open_run
from workbench.cli.parser import add, dir_override
from workbench.run.metrics import training_command
from workbench.system import output
from workbench.text import visible

# May change when a run is resumed: in a PPO run besides the live settings, and in a run on preferences.
RESUMABLE = ("ppo.iterations", "checkpoint.every", "eval.every", "run.trackers")
_RESUMABLE_ON_PREFERENCES = ("checkpoint.every", "checkpoint.keep", "eval.every", "run.trackers")


CONFIG = "config.toml"
RUNS = "runs"

_PROMPTS = (
    "The old lighthouse keeper climbed the stairs and",
    "On the first day of the holidays, we",
    "Nobody in the village knew why the bakery",
    "The letter had been in the drawer for years, and",
    "When the snow began to melt, the children",
    "My grandmother always said that a good soup",
    "The train stopped between two stations, and",
    "In the garden behind the school there was",
)

_CONFIG = """\
# Configuration of this workspace: ppo-workbench uses it in this folder. All settings: ppo-workbench config schema

[model]
path = {model}  # starter, a folder, or a name on the Hugging Face hub
lora_targets = ["q_proj", "k_proj", "v_proj", "o_proj"]

[data]
prompts = "prompts.jsonl"  # one object a line, with a column "prompt"

[rollout]
batch_size = 8
max_new_tokens = 32

[reward]
sources = [{reward}]  # "lexicon" scores cheerful words; "reward.py:score" is the function in reward.py

[ppo]
iterations = 40
epochs = 2
kl_coef = 0.05

[optim]
policy_lr = 3e-4
"""

_REWARD = '''\
"""A reward of your own. To use it, set reward.sources = ["reward.py:score"] in config.toml or in the workbench."""


def score(prompts, completions, **columns):
    """Return one number for each completion; higher is better.

    prompts, completions: lists of strings, of the same length. columns: the other columns of prompts.jsonl.
    """
    return [min(completion.count(","), 3) / 3 for completion in completions]
'''

_README = """\
# {name}

A workspace of ppo-workbench. In this folder:

```
ppo-workbench             # open the workbench: t trains config.toml
ppo-workbench --no-ui     # train it without a screen
ppo-workbench label       # choose the better of two responses
```

- `config.toml`: model, prompts, reward and all other settings
- `prompts.jsonl`: the prompts; put yours in place of the examples
- `reward.py`: an example of a reward of your own
- `runs/`: one folder for each run
"""


def add_config(parser: argparse.ArgumentParser) -> None:
    """Add the commands of `config` and their options."""
    actions = parser.add_subparsers(dest="action", required=True, title="commands", metavar="")
    for name, help_text in (
        ("show", "print the configuration as TOML, defaults included"),
        ("validate", "report every problem of a configuration"),
    ):
        action = actions.add_parser(name, help=help_text)
        action.set_defaults(execute=check_config)
        add(action, "--config", metavar="PRESET_OR_FILE", help="preset or file")
        add(action, "--set")
    action = actions.add_parser("schema", help="list every setting: type, range, default, unit, help")
    action.set_defaults(execute=print_schema)
    action.add_argument("--format", choices=("text", "markdown", "json"), default="text", help="default: text")
    for action in actions.choices.values():
        action.add_argument("--kind", choices=tuple(SCHEMAS), default="ppo", help="kind of run (default: %(default)s)")


def check_config(args: argparse.Namespace) -> int:
    """Load the configuration, and print it with its defaults, or ok; warnings go to stderr.

    Raises UsageError, and ConfigError with every problem.
    """
    config = configuration(args, SCHEMAS[args.kind])
    for warning in config_warnings(config):
        output.warning(warning)
    sys.stdout.write(config_text(config) if args.action == "show" else "ok\n")
    return 0


def print_schema(args: argparse.Namespace) -> int:
    """Print every setting: as a list to read, as JSON Schema, or as the Markdown page of all kinds of run.

    The list has two lines for each: type and default, `live` if it may change in a run, then its help.
    """
    if args.format == "json":
        output.data(json.dumps(json_schema(SCHEMAS[args.kind]), indent=2))
    elif args.format == "markdown":
        output.data(reference_markdown().rstrip())
    else:
        for row in reference_rows(SCHEMAS[args.kind]):
            rule = ", ".join(filter(None, (row.type, row.rule)))
            default = f"default {row.default} {row.unit}".rstrip() if row.default else ""
            output.data("  ".join(filter(None, (row.key, rule, default, "live" * row.live))) + f"\n    {row.help}")
    return 0


def configuration(args: argparse.Namespace, schema: type[Schema]) -> Schema:
    """Load the configuration of a new run. Raises UsageError and ConfigError.

    Only PPO has presets and one of them as its default; other kinds of run need no file.
    """
    given = [f"run.name={args.name}"] if args.name is not None else []
    if data := getattr(args, "data", None):  # an option of the commands that train on preferences
        given.append(f"data.preferences={data}")
    overrides = parse_overrides(args.overrides + given + dir_override(args), schema)
    if issubclass(schema, Config):
        return load_config_as(schema, args.config, overrides, preset_names())
    return load_config_as(schema, args.config_given, overrides) if args.config_given else validate_as(schema, overrides)


def asked_run(args: argparse.Namespace, schema: type[AnyConfig]) -> tuple[Any, RunFolder | None]:
    """Load the configuration of a new run, or that and the folder of the run that --resume names.

    Raises UsageError and ConfigError: if the name is in use, if there is no such run, or if an option would change what
    shapes it from its start on.
    """
    if args.resume is None:
        config = configuration(args, schema)
        check_name_is_free(config)
        return config, None
    for option, value in (
        ("--config", args.config_given),
        ("--name", args.name),
        ("--data", getattr(args, "data", None)),
    ):
        if value is not None:
            raise UsageError(f"{option} {value} cannot be used with --resume, which uses the run's own config.toml")
    allowed: Sequence[str] = _RESUMABLE_ON_PREFERENCES
    if issubclass(schema, Config):
        allowed = [row.key for row in reference_rows() if row.live or row.key in RESUMABLE]
    for assignment in args.overrides:
        key = assignment.partition("=")[0].strip()
        if key not in allowed:
            raise UsageError(f"--set {key} cannot change in a resumed run; choose from {', '.join(allowed)}")
    folder = open_run(args.resume, runs_dir(args))
    kind = kind_of(folder.config)
    if kind and SCHEMAS[kind] is not schema:
        command = f"{training_command(kind)} --resume {args.resume}"
        raise UsageError(f"'{folder.name}' is a run of kind {kind}: resume it with {command}")
    return load_config_as(schema, folder.config, parse_overrides(args.overrides, schema)), folder


def kind_of(source: str | Path | None) -> str:
    """Return the kind of run that the file `source` configures; empty if it names none that is known."""
    try:
        kind = read_toml(Path(source or "")).get("kind", "ppo")
    except (OSError, ValueError):  # a preset, or a file whose loading reports what is wrong
        return ""
    return kind if isinstance(kind, str) and kind in SCHEMAS else ""


def runs_dir(args: argparse.Namespace) -> Path:
    """Return the folder of the runs. Raises UsageError if --dir does not exist."""
    default = RunConfig().dir
    if args.dir is not None and not Path(args.dir).is_dir():
        raise UsageError(f"--dir {args.dir}: no such folder; the default is '{default}'")
    return Path(args.dir or default)


def add_new(parser: argparse.ArgumentParser) -> None:
    """Add the options of `new`: the folder, and what may differ from the example."""
    parser.set_defaults(execute=run_new)
    parser.add_argument("folder", metavar="DIR", help="folder to make; it must be new or empty")
    parser.add_argument("--model", metavar="MODEL", default="starter", help="folder or hub name (default: starter)")
    parser.add_argument(
        "--reward",
        metavar="REWARD",
        default="lexicon",
        help="lexicon, FILE.py:FUNCTION, or the folder of a reward model (default: lexicon)",
    )


def run_new(args: argparse.Namespace) -> int:
    """Make the workspace, and print what was made and how to go on. Raises UsageError, ConfigError and StorageError.

    Nothing is made if the folder has anything in it, or if the settings are not valid.
    """
    folder, model, reward = Path(args.folder), args.model, args.reward
    source: Any = {"kind": "model", "path": str(Path(reward).resolve())} if reward and Path(reward).is_dir() else reward
    path = str(Path(model).resolve()) if model and Path(model).is_dir() else model
    validate_as(Config, {"model": {"path": path}, "reward": {"sources": [source]}})
    inline = f'{{ kind = "model", path = {json.dumps(source["path"])} }}' if isinstance(source, dict) else ""
    name = folder.resolve().name
    files = {
        CONFIG: _CONFIG.format(model=json.dumps(path), reward=inline or json.dumps(source)),
        "prompts.jsonl": "".join(f"{json.dumps({'prompt': prompt})}\n" for prompt in _PROMPTS),
        "reward.py": _REWARD,
        "README.md": _README.format(name=visible(name)),
    }
    with writing(f"'{folder}'", ", or name another folder"):
        if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
            what = "has files in it" if folder.is_dir() else "is a file"
            raise UsageError(f"'{folder}' {what}: name a folder that is new or empty")
        (folder / RUNS).mkdir(parents=True)
        for file, text in files.items():
            write_whole(folder / file, text)
    load_config(folder / CONFIG)
    made = [*(folder / file for file in files), folder / RUNS]
    output.data("\n".join(f"made {visible(str(path))}" for path in made))
    output.note(f"go on with: cd {visible(shlex.quote(str(folder)))} && {output.PROGRAM}")
    return 0
