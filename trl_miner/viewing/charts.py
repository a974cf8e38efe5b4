"""The pictures of a report: what each shows, and how to read it."""

from collections.abc import Sequence
from dataclasses import dataclass

from ..common.text import for_picture
from ..runs.history import RunHistory

UNSCORABLE = "groups/unscorable"


@dataclass(frozen=True)
class Panel:
    """One panel of a picture: a metric ("eval:pass@1" is a score on held-out problems), and its
    vertical axis.

    A rare one is left out where the metric is always 0 or not recorded."""

    key: str
    title: str
    unit: str
    share: bool = False
    log: bool = False
    rare: bool = False


@dataclass(frozen=True)
class Chart:
    """A picture: panels, if they are known before its data, and how to read them."""

    name: str
    title: str
    panels: tuple[Panel, ...]
    caption: str


_OF_PROMPTS, _OF_ROLLOUTS, _SIGNAL = (
    "share of prompts",
    "share of rollouts",
    "sum of |advantage| over tokens",
)
REWARD = Chart(
    "reward",
    "Training reward",
    (Panel("reward", "Reward", "mean reward of the rollouts"),),
    "Mean total reward of the rollouts of a step, on the prompts of the training data. It is not a"
    " score on held-out problems.",
)
PROMPT_KINDS = Chart(
    "prompt_kinds",
    "Kinds of prompt",
    (
        Panel("groups/ph", "All right (PH)", _OF_PROMPTS, share=True),
        Panel("groups/he", "Mixed (HE)", _OF_PROMPTS, share=True),
        Panel("groups/nh", "All wrong (NH)", _OF_PROMPTS, share=True),
        Panel(UNSCORABLE, "Unscorable", _OF_PROMPTS, share=True, rare=True),
        Panel("groups/gated", "Gated", _OF_PROMPTS, share=True, rare=True),
    ),
    "PH: all G rollouts of the prompt are right; GRPO gives them no advantage, MINER does. HE: some"
    " are right and some wrong; GRPO gives these an advantage. NH: all are wrong; neither gives"
    " them one. Unscorable: the verifier left rollouts without a reward, and the others do not"
    " differ. Gated: gate_on_correctness took away the differences of rewards of format or length.",
)
ROLLOUTS = Chart(
    "rollouts",
    "Rollouts with a gradient",
    (
        Panel("rollouts/grpo", "Under GRPO", _OF_ROLLOUTS, share=True),
        Panel("rollouts/recovered", "Recovered from PH", _OF_ROLLOUTS, share=True),
        Panel("rollouts/used", "Used in this run", _OF_ROLLOUTS, share=True),
    ),
    "Rollouts with an advantage other than 0. Left: those that GRPO would have had on the same"
    " batch. Middle: those of PH prompts, which GRPO leaves unused. Right: all that the run used.",
)
CALIBRATION = Chart(
    "calibration",
    "MINER's cap",
    (
        Panel("miner/tau_pos", "Signal from PH prompts, tau_pos", _SIGNAL, log=True),
        Panel("miner/tau_ref", "Signal from HE prompts, tau_ref", _SIGNAL, log=True),
        Panel("miner/scale", "Factor on the PH advantages", "factor", share=True),
        Panel("miner/cap_binds", "Steps at which the cap binds", "share of steps", share=True),
    ),
    "The PH advantages are multiplied by min(1, lambda_max * tau_ref / tau_pos). A factor of 1: the"
    " cap does not bind and the PH signal passes whole.",
)
DOSE = Chart(
    "dose",
    "Dose of the methods of all-right and all-wrong prompts",
    (
        Panel(
            "miner/l1_share",
            "PH against mixed prompts",
            "share of their sum of |advantage|",
            log=True,
            rare=True,
        ),
        Panel(
            "dose/share",
            "Share of the gradient",
            "share: norm of these / (these + others)",
            rare=True,
        ),
        Panel("dose/scale", "Factor on the advantages", "factor", log=True, rare=True),
        Panel(
            "miner/ph_gradient_share",
            "PH in the gradient",
            "norm of PH / (PH + others)",
            log=True,
            rare=True,
        ),
        Panel("miner/gradient_cosine", "Direction of PH", "cosine with the others", rare=True),
    ),
    "How strongly the methods of all-right and all-wrong prompts acted beside that of mixed ones:"
    " in sums of |advantage|, which MINER's cap limits; in the gradient, where dose_share holds it;"
    " and, with log_gradient_share, how much of the gradient comes from PH prompts, and how it lies"
    " to that of the others.",
)
POLICY = Chart(
    "policy",
    "Policy and completions",
    (
        Panel("entropy", "Entropy", "nats per token", rare=True),
        Panel("kl", "KL to the reference model", "nats per token", rare=True),
        Panel("grad_norm", "Gradient norm", "L2 norm before clipping", log=True, rare=True),
        Panel("completions/mean_length", "Mean length", "tokens", rare=True),
        Panel(
            "completions/clipped_ratio", "Cut off at the limit", _OF_ROLLOUTS, share=True, rare=True
        ),
    ),
    "Entropy: mean over the completion tokens of the forward that trains, with compute_less over"
    " the rollouts with a gradient only; near 0 the policy hardly explores any more. KL: TRL's"
    " estimate of the divergence from the model before training. Many rollouts that"
    " max_completion_length cuts off: the limit decides, not the model.",
)
CHARTS = (REWARD, PROMPT_KINDS, ROLLOUTS, CALIBRATION, DOSE, POLICY)


PASS_AT_K = Chart(
    "pass_at_k",
    "Pass@K against K",
    (),
    "Share of problems that at least one of K samples solves, the unbiased estimate from all"
    " samples. Logarithmic axis, base 2. The left end is how good one answer is; the right end is"
    " what the model can reach at all. Band: 95 % bootstrap interval over the problems.",
)
MAJ_AT_K = Chart(
    "maj_at_k",
    "Maj@K against K",
    (),
    "Share of problems whose most frequent answer among K samples is right, mean over draws of K"
    " samples. Logarithmic axis, base 2. Band: ± 1 standard deviation of the score over the draws.",
)


def charts_of(runs: Sequence[RunHistory]) -> dict[str, Chart]:
    """Return the charts of training by name, in the order of a report."""
    charts = [*CHARTS, _held_out(runs)]
    if len(_rewards(runs).panels) > 1:
        charts.insert(1, _rewards(runs))
    return {chart.name: chart for chart in charts}


def _rewards(runs: Sequence[RunHistory]) -> Chart:
    """Return the chart of the single reward functions: a panel for each, of the first six."""
    keys = dict.fromkeys(
        key
        for run in runs
        for key in run.columns
        if key.startswith("rewards/") and key.endswith("/mean")
    )
    panels = [
        Panel(key, for_picture(key.split("/", 1)[1].removesuffix("/mean"), 24), "mean reward")
        for key in keys
    ]
    return Chart(
        "rewards",
        "Reward functions",
        tuple(panels[:6]),
        "Mean of each reward function, without its weight. One that rises while the one that"
        " decides what is right does not, drives the training.",
    )


def _held_out(runs: Sequence[RunHistory]) -> Chart:
    """Return the chart of the runs' scores on held-out problems: a panel for the smallest and the
    largest k."""
    scored = [list(run.scores.values()) for run in runs]
    names = {
        name for scores in scored for one in scores for name in one if name.startswith("pass@")
    }
    # more samples after training than along the way make a larger k, which is no curve
    names = {
        name for name in names if any(sum(name in one for one in scores) > 1 for scores in scored)
    } or names
    ks = sorted(int(name[5:]) for name in names if name[5:].isdigit()) or [1]
    return Chart(
        "held_out",
        "Scores on held-out problems",
        tuple(
            Panel(f"eval:pass@{k}", f"Pass@{k}", "share of problems")
            for k in dict.fromkeys((ks[0], ks[-1]))
        ),
        "Measured on problems that the run does not train on; step 0 is before training. Pass@k:"
        " the chance that at least one of k samples is right.",
    )
