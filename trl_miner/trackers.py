"""Whether the trackers of a run can be used, found out before its model loads."""

from collections.abc import Sequence

from .errors import first_line
from .importing import did_you_mean


def check_trackers(trackers: Sequence[str], *, is_here: bool = True) -> None:
    """Raise ValueError for a tracker that cannot be used, which transformers says once the model is loaded.

    A tracker must be known, and on the machine that trains installed; Weights & Biases needs a login unless it is
    offline or disabled.
    """
    from transformers.integrations import get_available_reporting_integrations
    from transformers.integrations.integration_utils import INTEGRATION_TO_CALLBACK

    for name in trackers:
        if name not in INTEGRATION_TO_CALLBACK:
            known = ", ".join(sorted(INTEGRATION_TO_CALLBACK))
            hint = did_you_mean(name, INTEGRATION_TO_CALLBACK)
            raise ValueError(f"report_to must name trackers: got {name!r}.{hint} Known: {known}.")
        if is_here and name not in (*get_available_reporting_integrations(), "flyte"):  # which it cannot tell
            raise ValueError(f"report_to: {name} is not installed. Run `pip install {name}`, or set report_to: none.")
    if is_here and "wandb" in trackers:
        _check_login()


def _check_login() -> None:
    import wandb

    if wandb.run is not None or wandb.setup().settings.mode not in ("online", "shared"):
        return
    try:
        why = "" if wandb.login(prompt=False, verify=False) else "got no key in the environment or in .netrc"
    except Exception as error:  # a key that is none
        why = first_line(error)
    if why:
        raise ValueError(f"report_to: wandb needs a login: {why}. Run `wandb login`, or set WANDB_MODE=offline.")
