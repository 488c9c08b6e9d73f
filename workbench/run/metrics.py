"""Kinds of run, and the metrics of each: names, units, digits, limits."""

from __future__ import annotations

from typing import NamedTuple

from trainer.events import Iteration, RewardModelStep
from trainer.runs.listing import PPO
from workbench.system.output import PROGRAM
from workbench.text import number

REWARD_MODEL = "reward-model"
DPO = "dpo"

_COMMANDS = {PPO: "--no-ui", REWARD_MODEL: "reward-model train", DPO: "dpo"}


def training_command(kind: str) -> str:
    """Return the command that trains a run of `kind`, without options; empty for a kind of a newer version."""
    return f"{PROGRAM} {_COMMANDS[kind]}" if kind in _COMMANDS else ""


Numbers = Iteration | RewardModelStep  # reported for each iteration; in kinds other than PPO, for each optimiser step


class Metric(NamedTuple):
    """One number of an iteration, how it is written and how it is drawn. Range and threshold are in the shown unit."""

    field: str  # of the event, or after `eval/` of the newest evaluation; a column of `MetricHistory`
    label: str  # in a list, where there is room
    heading: str  # over a column; empty for what tables leave out
    unit: str
    digits: int
    factor: float = 1.0  # from the event's unit to the shown one
    low: float | None = None  # fixed end of a chart's range; None: a chart follows the values
    high: float | None = None
    least_span: float = 0.0  # values that differ by less are drawn as nearly flat
    threshold: float | None = None
    bad_below: bool = False  # the threshold is a lower limit
    aimed: bool = False  # the threshold is not a limit but the target of the run
    log: bool = False  # it suits a logarithmic scale
    extra: bool = False  # has a row only if the user chose it
    optional: bool = False  # hidden in a run that does not record it
    if_varied: bool = False  # hidden while it never changes
    spread: str = ""  # column of its standard deviation within the batch

    @property
    def evaluated(self) -> bool:
        """Return whether it comes from evaluations, and so is missing before the first one."""
        return self.field.startswith("eval/")

    def of(self, event: Numbers) -> float:
        """Return the value in the shown unit."""
        return float(getattr(event, self.field)) * self.factor

    def text(self, value: float, *, sign: bool = False) -> str:
        """Format `value` (in the shown unit) with this metric's digits; - when it is not finite."""
        return number(value, self.digits, signed=sign)

    def with_unit(self, value: float) -> str:
        """Format `value` (in the shown unit) with its unit, as in `43.2%` and `2.50 nats/seq`."""
        text = self.text(value)
        gap = "" if self.unit in ("", "%") else " "
        return text if text == "-" else f"{text}{gap}{self.unit}"

    def beyond(self, value: float) -> bool:
        """Return whether `value` (in the shown unit) is on the bad side of the threshold."""
        if self.threshold is None or self.aimed:
            return False
        return value < self.threshold if self.bad_below else value > self.threshold


# PPO.
METRICS = (
    Metric("score_mean", "score", "score", "", 3, least_span=0.1, spread="score_std"),
    Metric("reward_mean", "reward", "", "", 3, least_span=0.1),  # the score minus the KL penalty
    Metric("eval/score_mean", "held-out score", "", "", 3, least_span=0.1, optional=True),
    # Below, the reference writes the better responses.
    Metric("eval/win_rate", "win rate", "", "%", 1, 100, low=0, high=100, threshold=50, bad_below=True, optional=True),
    Metric("eval/best_of_score", "best of n", "", "", 3, least_span=0.1, extra=True, optional=True),  # the reference's
    # A round number for comparison, if the configuration has no target.
    Metric("kl", "KL", "KL", "nats/seq", 2, low=0, least_span=1, threshold=10, log=True, spread="kl_std"),
    Metric("kl_coef", "KL coef.", "", "", 4, low=0, least_span=0.001, log=True, if_varied=True),
    Metric("entropy", "entropy", "entropy", "nats/tok", 3, least_span=0.2),
    # Of the sampled tokens; the entropy but for chance.
    Metric("surprise", "surprise", "", "nats", 3, least_span=0.2, extra=True, optional=True),
    Metric("policy_loss", "policy loss", "p.loss", "", 4, least_span=0.01),
    Metric("value_loss", "value loss", "v.loss", "", 4, low=0, least_span=0.01, log=True, optional=True),
    # Above, most of the update is thrown away: use fewer epochs or a lower learning rate.
    Metric("clip_fraction", "clip fraction", "clip", "%", 1, 100, low=0, least_span=5, threshold=20),
    # Below, the critic predicts worse than the mean would.
    Metric(
        "explained_variance",
        "expl. variance",
        "expl.var",
        "",
        2,
        low=-1,
        high=1,
        threshold=0,
        bad_below=True,
        optional=True,
    ),
    # The same on held-out prompts.
    Metric("eval/explained_variance", "value accuracy", "", "", 2, low=-1, high=1, extra=True, optional=True),
    Metric("advantage_std", "adv. deviation", "", "", 3, low=0, least_span=0.1, extra=True, optional=True),
    Metric("response_length", "length", "length", "tokens", 1, least_span=4),
    # Above, responses grow only to raise the score, or repeat themselves.
    Metric("length_correlation", "length corr.", "", "", 2, low=-1, high=1, threshold=0.75, extra=True, optional=True),
    Metric("repetition", "repetition", "", "%", 1, 100, low=0, least_span=5, threshold=30, extra=True, optional=True),
    # Above, most prompts are too easy or too hard to teach anything without a critic.
    Metric("dead_groups", "dead groups", "", "%", 1, 100, low=0, high=100, threshold=50, optional=True),
    Metric("unscored", "not scored", "", "%", 1, 100, low=0, high=100, if_varied=True),
    Metric("epochs_done", "epochs done", "", "", 1, low=0, if_varied=True),  # an early stop makes them fewer
    Metric("grad_norm", "gradient norm", "", "", 3, low=0, least_span=0.1, log=True),
    # Of the gradient on a shared trunk; above, the critic moves the policy more than the reward does.
    Metric("critic_share", "critic share", "", "%", 0, 100, low=0, high=100, threshold=50, extra=True, optional=True),
    Metric("tokens_per_second", "speed", "", "tok/s", 1, low=0, least_span=10),
)
DEFAULT = tuple(metric for metric in METRICS if not metric.extra)

_LOSS = Metric("loss", "loss", "loss", "", 3, least_span=0.1)  # its unit depends on the loss
_PAIRS = (
    # Below, a coin would choose better.
    Metric("accuracy", "accuracy", "accuracy", "", 3, low=0, high=1, threshold=0.5, bad_below=True),
    Metric("eval/accuracy", "held-out acc.", "", "", 3, low=0, high=1, threshold=0.5, bad_below=True, optional=True),
    Metric("lead", "lead", "lead", "logits", 2, least_span=0.2),  # of the better completion
)
_REWARDS = (
    Metric("chosen_reward", "chosen reward", "chosen", "", 3, least_span=0.1),
    Metric("rejected_reward", "rejected reward", "rejected", "", 3, least_span=0.1),
    Metric("chosen_logprob", "logp chosen", "", "nats", 1, least_span=2),
    Metric("rejected_logprob", "logp rej.", "", "nats", 1, least_span=2),
)
_STEP = (
    Metric("grad_norm", "gradient norm", "grad", "", 2, low=0, least_span=0.1, log=True),
    Metric("learning_rate", "learn. rate", "lr", "1e-6", 2, 1e6, low=0, least_span=0.1),
    Metric("tokens_per_second", "speed", "", "tok/s", 1, low=0, least_span=10),
)

METRICS_OF_KIND = {
    PPO: METRICS,
    REWARD_MODEL: (_LOSS._replace(unit="nats"), *_PAIRS, *_STEP),
    DPO: (_LOSS, *_PAIRS, *_REWARDS, *_STEP),
}


MAIN = {PPO: ("score_mean", "kl"), REWARD_MODEL: ("loss", "accuracy"), DPO: ("loss", "accuracy")}
"""The two metrics of each kind of run that have a large chart."""


def table(kind: str) -> tuple[Metric, ...]:
    """Return the metrics that are columns of a table with a line for each iteration."""
    return tuple(metric for metric in METRICS_OF_KIND[kind] if metric.heading)
