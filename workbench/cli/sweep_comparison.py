"""The comparison of a sweep's combinations, which ends `ppo-workbench sweep`."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping, Sequence

from trainer.confidence import mean_interval
from trainer.ppo_run.sweeping import Sweep, short_keys
from trainer.runs.folder import RunFolder
from trainer.runs.listing import summary_of
from workbench.cli.parser import compare_command
from workbench.columns import aligned, fit
from workbench.numbers import number
from workbench.system import output

_LONGEST_GROUP = 40  # characters of a group's name; `compare` allows no more
_COLUMN = 16  # columns of a group's name in its table


def compare(sweep: Sweep, where: str | None) -> None:
    """Print the comparison of the combinations and the command that prints it again, if there are two with numbers."""
    begun = {
        combination: [sweep.folder(one) for one in runs if sweep.folder(one).events.is_file()]
        for combination, runs in sweep.combinations.items()
    }
    begun = {combination: folders for combination, folders in begun.items() if folders}
    if len(begun) < 2:
        output.note("nothing to compare: fewer than two combinations have begun")
        return
    from workbench.cli.compare import checked_groups, print_report  # here, because it takes a second
    from workbench.compare.compared_run import LETTERS

    if len(begun) > len(LETTERS):
        what = f"{len(begun)} combinations are too many to compare one by one"
        output.note(f"{what}: the best are first; compare some of them with {output.PROGRAM} compare --group")
        output.data("\n".join(_ranking(begun)))
        return
    names = _group_names([*begun], [*sweep.runs[0].settings])
    print_report(checked_groups({names[combination]: folders for combination, folders in begun.items()}))
    patterns = {names[combination]: f"{sweep.name}_{combination}_seed-*" for combination in begun}
    output.note(f"compare them again: {compare_command(where, groups=patterns)}")


def _ranking(begun: Mapping[str, Sequence[RunFolder]]) -> Iterator[str]:
    """Yield a table of combinations by the mean score of their runs' last iterations, with its 95% interval."""
    import numpy as np  # here, because it takes a while

    rows = []
    for combination, folders in begun.items():
        found = [summary for folder in folders if (summary := summary_of(folder)).score is not None]
        score = mean_interval(np.array([one.score for one in found], dtype=np.float64))
        kl = mean_interval(np.array([one.kl for one in found if one.kl is not None], dtype=np.float64))
        interval = f"{number(score.low)} to {number(score.high)}" if math.isfinite(score.low) else ""
        rows.append((score.value, (combination, str(len(found)), number(score.value), interval, number(kl.value, 2))))
    rows.sort(key=lambda row: -math.inf if math.isnan(row[0]) else row[0], reverse=True)
    heads = ("combination", "runs", "score last 5", "95% interval", "KL last 5")
    yield from aligned([heads, *(row for _, row in rows)], left=(0,))


def _group_names(combinations: Sequence[str], keys: Sequence[str]) -> dict[str, str]:
    """Return a short name of a group for each combination that can be told from the others in a narrow column.

    If possible its text in the names of its runs, else the values alone, else a number.
    """
    pattern = "_".join(f"{re.escape(key)}-(.+)" for key in short_keys(keys))
    values = ["_".join(found.groups()) if (found := re.fullmatch(pattern, one)) else "" for one in combinations]
    for names in (combinations, values):
        if len({fit(one, _COLUMN) for one in names}) == len(names) and max(map(len, names)) <= _LONGEST_GROUP:
            return dict(zip(combinations, names, strict=True))
    return {one: str(number) for number, one in enumerate(combinations, 1)}
