"""The pictures of a report: what each shows, how to read it, and which setting makes a run record it."""

from collections.abc import Sequence
from dataclasses import dataclass

from ..runs.history import RunHistory
from ..runs.prompt_ledger import KINDS

HELD_OUT = "held_out"
UNSCORABLE = "groups/unscorable"


@dataclass(frozen=True)
class Panel:
    """One panel of a picture: a metric ("eval:pass@1" is a score on held-out problems), and its vertical axis.

    A rare one is left out where the metric is always 0 or not recorded. `ticks` label the horizontal axis."""

    key: str
    title: str
    unit: str
    share: bool = False
    log: bool = False
    rare: bool = False
    ticks: tuple[str, ...] = ()


@dataclass(frozen=True)
class Chart:
    """A picture: panels, if they are known before its data, how to read them, and the setting that makes a run record
    them."""

    name: str
    title: str
    panels: tuple[Panel, ...]
    caption: str
    recorded_by: str = "logging_steps (at most the number of steps)"


_OF_PROMPTS, _OF_ROLLOUTS, _SIGNAL = "share of prompts", "share of rollouts", "sum of |advantage| over tokens"
REWARD = Chart(
    "reward",
    "Training reward",
    (Panel("reward", "Reward", "mean reward of the rollouts"),),
    "Mean total reward of the rollouts of a step, on the prompts of the training data. It is not a score on held-out "
    "problems.",
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
    "PH: all G rollouts of the prompt are right; GRPO gives them no advantage, MINER does. HE: some are right and "
    "some wrong; GRPO gives these an advantage. NH: all are wrong; neither gives them one. Unscorable: the verifier "
    "left rollouts without a reward, and the others do not differ. Gated: gate_on_correctness took away the "
    "differences of rewards of format or length.",
)
ROLLOUTS = Chart(
    "rollouts",
    "Rollouts with a gradient",
    (
        Panel("rollouts/grpo", "Under GRPO", _OF_ROLLOUTS, share=True),
        Panel("rollouts/recovered", "Recovered from PH", _OF_ROLLOUTS, share=True),
        Panel("rollouts/used", "Used in this run", _OF_ROLLOUTS, share=True),
    ),
    "Rollouts with an advantage other than 0. Left: those that GRPO would have had on the same batch. Middle: those "
    "of PH prompts, which GRPO leaves unused. Right: all that the run used.",
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
    "The PH advantages are multiplied by min(1, lambda_max * tau_ref / tau_pos). A factor of 1: the cap does not bind "
    "and the PH signal passes whole.",
    recorded_by="advantage_estimator: miner",
)
_NORM = "share: norm of these / (these + others)"
DOSE = Chart(
    "dose",
    "Dose of the methods of all-right and all-wrong prompts",
    (
        Panel("l1_share", "All-right against mixed prompts", "share of their sum of |advantage|", log=True, rare=True),
        Panel("dose/share", "Share of the gradient", _NORM, rare=True),
        Panel("dose/scale", "Factor on the advantages", "factor", log=True, rare=True),
    ),
    "How strongly the methods of all-right and all-wrong prompts acted beside that of mixed ones: in sums of "
    "|advantage|, which MINER's cap limits, or in what dose_share measured.",
    recorded_by="all_right: miner; or dose_share",
)
UPDATE = Chart(
    "update",
    "PH prompts in the gradient",
    (
        Panel("miner/ph_gradient_share", "Share of the gradient", "norm of PH / (PH + others)", log=True),
        Panel("miner/gradient_cosine", "Direction", "cosine between both parts"),
    ),
    "How much of the policy loss's gradient comes from PH prompts, and how it lies to that of the others.",
    recorded_by="log_gradient_share: 10",
)
ENTROPY = Chart(
    "entropy",
    "Entropy of the policy",
    (Panel("entropy", "Entropy", "nats per token"),),
    "Mean over the completion tokens of the forward that trains; with compute_less over the rollouts with "
    "a gradient only. Falling to 0: the policy hardly explores any more.",
)
KL = Chart(
    "kl",
    "Distance from the reference model",
    (Panel("kl", "KL to the reference model", "nats per token"),),
    "TRL's estimate of the KL divergence from the model before training, mean over the completion tokens.",
    recorded_by="beta above 0 (it also changes the training)",
)
GRAD_NORM = Chart(
    "grad_norm",
    "Norm of the gradient",
    (Panel("grad_norm", "Gradient norm", "L2 norm before clipping", log=True),),
    "Norm over all parameters, before max_grad_norm clips it. A value that is no number is a gap.",
)
LENGTH = Chart(
    "length",
    "Length of the completions",
    (
        Panel("completions/mean_length", "Mean length", "tokens"),
        Panel("completions/clipped_ratio", "Cut off at the limit", _OF_ROLLOUTS, share=True),
    ),
    "Right: rollouts that reached max_completion_length without an end. Many of them: the limit decides, not the "
    "model.",
)
OVERHEAD = Chart(
    "overhead",
    "Time of MINER",
    (Panel("overhead", "Time of the estimator", "share of a step's time"),),
    "Time for MINER's advantages (log-probs included, where the step needs a forward of its own for them) as a share "
    "of the whole step with generation and training.",
    recorded_by="advantage_estimator: miner",
)
CHARTS = (REWARD, PROMPT_KINDS, ROLLOUTS, CALIBRATION, DOSE, UPDATE, ENTROPY, KL, GRAD_NORM, LENGTH, OVERHEAD)


PASS_AT_K = Chart(
    "pass_at_k",
    "Pass@K against K",
    (),
    "Share of problems that at least one of K samples solves, the unbiased estimate from all samples. Logarithmic "
    "axis, base 2. The left end is how good one answer is; the right end is what the model can reach at all. "
    "Band: 95 % bootstrap interval over the problems.",
)
MAJ_AT_K = Chart(
    "maj_at_k",
    "Maj@K against K",
    (),
    "Share of problems whose most frequent answer among K samples is right, mean over draws of K samples. "
    "Logarithmic axis, base 2. Band: ± 1 standard deviation of the score over the draws.",
)
LEVELS = Chart(
    "levels",
    "Scores by level of difficulty",
    (),
    "Scores by the benchmark's own levels of difficulty; below each level its number of problems. Band: 95 % "
    "bootstrap interval over the problems of the level.",
)
BY_K = Chart(
    "held_out_by_k",
    "Pass@K on held-out problems, before and after training",
    (),
    "The share of problems that at least one of K samples solves, the unbiased estimate from all "
    "samples. Logarithmic axis, base 2.",
)
AGAINST = Chart(
    "against_baseline",
    "Differences from {0}",
    (),
    "Pass@K of each method minus that of {0}, in percentage points, with its 95 % interval over seeds and problems; "
    "of one seed, over problems alone. Filled: several seeds, and p below 0.05 after Holm's adjustment for the "
    "methods of the panel. Without a bar: no run differs at any problem.",
)
PROMPTS = Chart(
    "prompts",
    "All prompts over the training",
    tuple(
        Panel(f"prompts/{kind}", kind.capitalize(), "share of all prompts", share=True) for kind in (*KINDS, "unseen")
    ),
    "Every prompt of the training set, of a stream every prompt seen so far, by how its rollouts came out when the "
    "run last generated for it. Mixed: some were right and some wrong. Unseen: not generated for yet, or the verifier "
    "could not judge it. Of several rows with the same prompt, one counts as seen and the others as unseen.",
)
OTHERS = (PASS_AT_K, MAJ_AT_K, LEVELS, BY_K, AGAINST, PROMPTS)  # not of the logs


def charts_of(runs: Sequence[RunHistory]) -> dict[str, Chart]:
    """Return the charts of training by name, in the order of a report."""
    return {chart.name: chart for chart in (*CHARTS, _held_out(runs))}


def _held_out(runs: Sequence[RunHistory]) -> Chart:
    """Return the chart of the runs' scores on held-out problems: a panel for the smallest and the largest k."""
    scored = [list(run.scores.values()) for run in runs]
    names = {name for scores in scored for one in scores for name in one if name.startswith("pass@")}
    # more samples after training than along the way make a larger k, which is no curve
    names = {name for name in names if any(sum(name in one for one in scores) > 1 for scores in scored)} or names
    ks = sorted(int(name[5:]) for name in names if name[5:].isdigit()) or [1]
    return Chart(
        HELD_OUT,
        "Scores on held-out problems",
        tuple(Panel(f"eval:pass@{k}", f"Pass@{k}", "share of problems") for k in dict.fromkeys((ks[0], ks[-1]))),
        "Measured on problems that the run does not train on; step 0 is before training. Pass@k: the chance that at "
        "least one of k samples is right.",
        recorded_by="held_out (and score_steps for scores along the way)",
    )
