"""Whether the trackers of a run can be used, found out before its model loads."""

import inspect
from collections.abc import Sequence

from .errors import first_line
from .importing import did_you_mean


def why_unusable(trackers: Sequence[str], *, is_here: bool = True) -> str:
    """Return why one of the trackers cannot be used, which transformers says once the model is loaded; empty: all can.

    A tracker must be known, and on the machine that trains installed; Weights & Biases needs a login unless it is
    offline or disabled.
    """
    from transformers.integrations import get_available_reporting_integrations
    from transformers.integrations.integration_utils import INTEGRATION_TO_CALLBACK

    installed = {*get_available_reporting_integrations(), "flyte"} if trackers else set()  # which it cannot tell
    for name in trackers:
        if name not in INTEGRATION_TO_CALLBACK:
            known = ", ".join(sorted(INTEGRATION_TO_CALLBACK))
            hint = did_you_mean(name, INTEGRATION_TO_CALLBACK)
            return f"report_to must name trackers: got {name!r}.{hint} Known: {known}."
        if is_here and name not in installed:
            return (
                f"report_to needs trackers that are installed: got {name!r}, which is not. Run `pip install {name}`, "
                f"choose another, or set report_to: none."
            )
    why = _why_no_login() if is_here and "wandb" in trackers else None
    advice = "Run `wandb login`, set WANDB_API_KEY, or set WANDB_MODE=offline to log into a folder."
    return f"report_to: wandb needs a login: {why}. {advice}" if why else ""


def _why_no_login() -> str | None:
    import wandb

    if wandb.run is not None or wandb.setup().settings.mode not in ("online", "shared"):
        return None
    if "prompt" not in inspect.signature(wandb.login).parameters:  # an older version, which would ask here
        return None
    try:
        return None if wandb.login(prompt=False, verify=False) else "got no key in the environment or in .netrc"
    except Exception as error:  # a key that is none
        return first_line(error)
