"""Checks of the folders of recorded rollouts, before anything is started."""

from pathlib import Path
from types import SimpleNamespace

from openrlhf_cov.data.rollout_files import (
    RolloutFileError,
    check_steps,
    read_header,
    recorded_steps,
    rollout_path,
    tokenizer_digest,
)
from openrlhf_cov.errors import UsageError
from openrlhf_cov.trainer.preflight.check_run import require_writable


def check_dump(args: SimpleNamespace) -> None:
    """Check that ``--rollout.dump_dir`` can be written and holds no rollouts of another run.

    Raises:
        UsageError: It does, or the samples have images, which a file does not hold.
    """
    dump = args.rollout_dump_dir
    if not dump:
        return
    folder = Path(dump)
    if args.data.max_images_per_prompt > 0:
        raise UsageError(
            f"--rollout.dump_dir {dump}: the images of --data.max_images_per_prompt {args.data.max_images_per_prompt} "
            "cannot be recorded; drop one of the two"
        )
    if args.rollout_replay_dir and folder.resolve() == Path(args.rollout_replay_dir).resolve():
        raise UsageError(f"--rollout.dump_dir {dump} is also --rollout.replay_dir; choose another folder")
    steps = recorded_steps(folder)
    if steps and not args.ckpt.load_enable:
        raise UsageError(
            f"--rollout.dump_dir {dump} holds {rollout_path(folder, steps[0]).name} of another run, which this one "
            "would replace; choose a new folder, or resume that run with --ckpt.load_enable"
        )
    require_writable("--rollout.dump_dir", folder)


def check_replay(args: SimpleNamespace, ask_tokenizer: bool) -> None:
    """Check that the files of ``--rollout.replay_dir`` fit the flags, by the header of the first one.

    Args:
        args: The parsed flags.
        ask_tokenizer: Whether the tokenizer of the policy is here to be compared.

    Raises:
        UsageError: There is no file, a step is missing, or the run has other batch sizes or another tokenizer.
    """
    replay = args.rollout_replay_dir
    if not replay:
        return
    try:
        first = rollout_path(replay, check_steps(replay)[0])
        header = read_header(first)
    except RolloutFileError as error:
        raise UsageError(f"--rollout.replay_dir {error}") from error
    tokenizer = None
    if ask_tokenizer:
        from openrlhf.utils.utils import get_tokenizer  # takes seconds

        fast = not args.data.disable_fast_tokenizer
        tokenizer = tokenizer_digest(get_tokenizer(args.actor.model_name_or_path, None, use_fast=fast))
    if fault := header.misfit(args.rollout.n_samples_per_prompt, args.rollout.batch_size, tokenizer):
        raise UsageError(f"--rollout.replay_dir {first}: {fault}")
