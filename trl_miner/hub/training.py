"""Push while a run trains. Errors never stop the training: they are printed, with the command to push by hand.

`MinerGRPOTrainer` calls these functions instead of transformers' own, which would also push `training_args.bin` (a
pickle), completions and logs.
"""

import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

from ..redaction import redact
from ..runs.models import Model
from .folder import adapter_warning, assemble, check_secrets, link
from .upload import explain, is_transient, push_folder, with_retries

_STAGED = ".push-"
# A pickle of all settings, including hub_token; and PEFT's card, which names the base model's folder.
_NEVER = ("training_args.bin", "README.md")


def push_safely(push: Callable[[], Any], trainer: Any, subject: str = "The model") -> bool:
    """Call `push`, and print its error instead of raising it. Return whether it succeeded."""
    try:
        push()
    except Exception as error:
        args = trainer.args
        options = " --private" if args.hub_private_repo else ""
        options += f" --revision {args.hub_revision}" if args.hub_revision else ""
        repo_id = trainer.hub_model_id or args.hub_model_id or "USER/NAME"
        print(
            f"{subject} was not pushed; the training goes on. {redact(str(error))}\n"
            f"To push it by hand: trl-miner push {args.output_dir} --repo-id {repo_id}{options}",
            flush=True,
        )
        return False
    return True


def open_repo(trainer: Any, create: Callable[[], Any]) -> None:
    """Create the repository before the training begins: `Trainer.init_hf_repo`, which is `create`.

    A wrong token or name raises ValueError now, and not after days.
    """
    if not trainer.is_world_process_zero():
        return
    trainer.hub_model_id, trainer.push_in_progress = trainer.args.hub_model_id, None
    for left in Path(trainer.args.output_dir).glob(f"{_STAGED}*"):  # left by a run that was killed
        shutil.rmtree(left, ignore_errors=True)
    title = f"Opening {trainer.hub_model_id or 'the repository'} on the Hub"
    try:
        with_retries(create, title)
    except Exception as error:
        if not is_transient(error):
            raise ValueError(explain(error, trainer.hub_model_id or "the Hub")) from error
        print(f"{title} failed; the training goes on, and each push tries again.", flush=True)


def push_checkpoint(trainer: Any, checkpoint: str) -> None:
    """Push the model of a checkpoint while the training goes on: `Trainer._push_from_checkpoint`.

    As in transformers, `hub_strategy` says what is pushed, and while an earlier push is under way this one is skipped,
    unless `hub_always_push` is set.
    """
    from huggingface_hub import HfApi
    from transformers.utils.hub import PushInProgress

    args, earlier = trainer.args, getattr(trainer, "push_in_progress", None)
    strategy = getattr(args.hub_strategy, "value", args.hub_strategy)
    jobs = [] if earlier is None or earlier.is_done() else list(earlier.jobs)
    if not trainer.is_world_process_zero() or strategy == "end" or (jobs and not args.hub_always_push):
        return
    trainer.callback_handler.on_push_begin(args, trainer.state, trainer.control)
    folder, step = Path(checkpoint), trainer.state.global_step
    place = {"checkpoint": "last-checkpoint", "all_checkpoints": folder.name}.get(strategy)
    # on the same file system, where hard links keep the files that the run deletes
    staged = tempfile.TemporaryDirectory(prefix=_STAGED, dir=args.output_dir)

    def stage() -> None:
        _stage(trainer, Model(folder, Path(args.output_dir), step), Path(staged.name))
        if place is not None:  # what resuming needs, too
            ignored = shutil.ignore_patterns(*_NEVER)
            shutil.copytree(folder, Path(staged.name, place), copy_function=link, ignore=ignored)
            check_secrets(Path(staged.name, place))

    def push() -> None:
        with staged:
            _push(trainer, Path(staged.name), f"Training in progress, step {step}")

    subject = f"The checkpoint of step {step}"
    if push_safely(stage, trainer, subject):
        job = HfApi().run_as_future(push_safely, push, trainer, subject)
        trainer.push_in_progress = PushInProgress([*jobs, job])
    else:
        staged.cleanup()


def push_trained(
    trainer: Any,
    commit_message: str = "End of training",
    *,
    token: str | None = None,
    revision: str | None = None,
    model_name: str | None = None,
    **card: Any,
) -> bool:
    """Save the model and push it: `Trainer.push_to_hub`, called on every process. Return whether it arrived."""
    args, output = trainer.args, Path(trainer.args.output_dir)
    trainer.callback_handler.on_push_begin(args, trainer.state, trainer.control)
    trainer.save_model(_internal_call=True)  # on every process: ZeRO-3 and FSDP gather the weights
    name = (trainer.hub_model_id or args.hub_model_id or output.resolve().name).rpartition("/")[2]
    trainer.create_model_card(model_name=model_name or name, **card)
    if not trainer.is_world_process_zero():
        return True

    def push() -> None:
        if (under_way := getattr(trainer, "push_in_progress", None)) is not None:
            under_way.wait_until_done()
        with tempfile.TemporaryDirectory(prefix=_STAGED, dir=output) as folder:
            _stage(trainer, Model(output, output), Path(folder), token)
            _push(trainer, Path(folder), commit_message, token=token, revision=revision)
        if warning := adapter_warning(output):
            print(warning, flush=True)
        print(f"Pushed to {trainer.hub_model_id}.", flush=True)

    return push_safely(push, trainer)


def _stage(trainer: Any, model: Model, target: Path, token: str | None = None) -> None:
    if not trainer.hub_model_id:
        trainer.init_hf_repo()  # the trainer was not told to push, or could not reach the Hub
    if not trainer.hub_model_id:
        raise OSError("hub_model_id must be known to push: it was not given, and the Hub did not answer. Set it.")
    assemble(model, target, name=trainer.hub_model_id, place=link, secrets=[token, trainer.args.hub_token])


def _push(trainer: Any, folder: Path, message: str, *, token: str | None = None, revision: str | None = None) -> None:
    args = trainer.args
    revision, token = revision or args.hub_revision, token or args.hub_token
    push_folder(
        folder, trainer.hub_model_id, message=message, private=args.hub_private_repo, revision=revision, token=token
    )
