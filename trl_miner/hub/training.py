"""Push a run when its training ends. Errors never stop it: they are printed, with the command to
push by hand.

`RunTrainer` calls these functions instead of transformers' own, which would also push
`training_args.bin` (a pickle), completions and logs, and at every checkpoint.
"""

from collections.abc import Callable
from pathlib import Path
from typing import Any

from ..common.redaction import redact
from ..runs.models import Model
from .folder import adapter_warning
from .upload import explain, is_transient, push_model, with_retries


def open_repo(trainer: Any, create: Callable[[], Any]) -> None:
    """Create the repository before the training begins: `Trainer.init_hf_repo`, which is `create`.

    A wrong token or name raises ValueError now, and not after days.
    """
    if not trainer.is_world_process_zero():
        return
    trainer.hub_model_id = trainer.args.hub_model_id
    title = f"Opening {trainer.hub_model_id or 'the repository'} on the Hub"
    try:
        with_retries(create, title)
    except Exception as error:
        if not is_transient(error):
            raise ValueError(explain(error, trainer.hub_model_id or "the Hub")) from error
        print(f"{title} failed; the training goes on, and the push tries again.", flush=True)
    # the default of transformers is to push every checkpoint
    if trainer.args.hub_strategy != "end":
        print(
            "push_to_hub: the model is pushed when the training ends, and not at checkpoints.",
            flush=True,
        )


def push_trained(
    trainer: Any,
    commit_message: str = "End of training",
    *,
    token: str | None = None,
    revision: str | None = None,
    model_name: str | None = None,
    **card: Any,
) -> bool:
    """Save the model and push it: `Trainer.push_to_hub`, called on every process. Return whether it
    arrived."""
    args, output = trainer.args, Path(trainer.args.output_dir)
    trainer.callback_handler.on_push_begin(args, trainer.state, trainer.control)
    trainer.save_model(_internal_call=True)  # on every process: ZeRO-3 and FSDP gather the weights
    name = (trainer.hub_model_id or args.hub_model_id or output.resolve().name).rpartition("/")[2]
    trainer.create_model_card(model_name=model_name or name, **card)
    if not trainer.is_world_process_zero():
        return True
    revision, token = revision or args.hub_revision, token or args.hub_token
    try:
        if not trainer.hub_model_id:
            trainer.init_hf_repo()  # the trainer was not told to push, or could not reach the Hub
        if not trainer.hub_model_id:
            raise OSError(
                "hub_model_id must be known to push: it was not given, and the Hub did not answer."
                " Set it."
            )
        push_model(
            Model(output, output), trainer.hub_model_id, private=args.hub_private_repo, revision=revision, token=token,
            message=commit_message,
        )  # fmt: skip
    except Exception as error:
        options = " --private" if args.hub_private_repo else ""
        options += f" --revision {revision}" if revision else ""
        print(
            f"The model was not pushed. {redact(str(error))}\n"
            f"To push it by hand: trl-miner push {output} --repo-id "
            f"{trainer.hub_model_id or args.hub_model_id or 'USER/NAME'}{options}",
            flush=True,
        )
        return False
    if warning := adapter_warning(output):
        print(warning, flush=True)
    print(f"Pushed to {trainer.hub_model_id}.", flush=True)
    return True
