"""`ppo-workbench new`: lay out a workspace: a configuration, example prompts, a reward to edit, a folder for runs."""

from __future__ import annotations

import argparse
import json
import shlex
from pathlib import Path
from typing import Any

from trainer.config import load_config, validate
from trainer.errors import UsageError, cannot_write
from trainer.files import write_whole
from workbench.system import output
from workbench.text import visible

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
value_lr = 3e-4
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


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the folder and what may differ from the example."""
    parser.set_defaults(execute=run)
    parser.add_argument("folder", metavar="DIR", help="folder to make; it must be new or empty")
    parser.add_argument("--model", metavar="MODEL", default="starter", help="folder or hub name (default: starter)")
    parser.add_argument(
        "--reward",
        metavar="REWARD",
        default="lexicon",
        help="lexicon, FILE.py:FUNCTION, or the folder of a reward model (default: lexicon)",
    )


def run(args: argparse.Namespace) -> int:
    """Make the workspace, and print what was made and how to go on. Raises UsageError and StorageError."""
    folder = Path(args.folder)
    made = make_workspace(folder, args.model, args.reward)
    output.data("\n".join(f"made {visible(str(path))}" for path in made))
    output.note(f"go on with: cd {visible(shlex.quote(str(folder)))} && {output.PROGRAM}")
    return 0


def make_workspace(folder: Path, model: str = "starter", reward: str = "lexicon") -> list[Path]:
    """Lay out a workspace in `folder` and return what was made. Raises UsageError, ConfigError and StorageError.

    Nothing is made if the folder has anything in it, or if the settings are not valid.
    """
    source: Any = {"kind": "model", "path": str(Path(reward).resolve())} if reward and Path(reward).is_dir() else reward
    path = str(Path(model).resolve()) if model and Path(model).is_dir() else model
    validate({"model": {"path": path}, "reward": {"sources": [source]}})
    inline = f'{{ kind = "model", path = {json.dumps(source["path"])} }}' if isinstance(source, dict) else ""
    name = folder.resolve().name
    files = {
        CONFIG: _CONFIG.format(model=json.dumps(path), reward=inline or json.dumps(source)),
        "prompts.jsonl": "".join(f"{json.dumps({'prompt': prompt})}\n" for prompt in _PROMPTS),
        "reward.py": _REWARD,
        "README.md": _README.format(name=visible(name)),
    }
    try:
        if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
            what = "has files in it" if folder.is_dir() else "is a file"
            raise UsageError(f"'{folder}' {what}: name a folder that is new or empty")
        (folder / RUNS).mkdir(parents=True)
        for file, text in files.items():
            write_whole(folder / file, text)
    except OSError as error:
        raise cannot_write(f"'{folder}'", error, ", or name another folder") from None
    load_config(folder / CONFIG)
    return [*(folder / file for file in files), folder / RUNS]
