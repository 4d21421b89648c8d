"""``--dry_run``: everything that is checked before a run, and what the run would need, without starting anything."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from statistics import fmean
from types import SimpleNamespace
from typing import Any

from openrlhf_cov.cluster.sizing import conditions, prose
from openrlhf_cov.cluster.sizing.flag_sizes import model_names, step_of
from openrlhf_cov.cluster.sizing.model_shape import KNOWN, ModelShape, shape_of_config
from openrlhf_cov.config import template_arguments
from openrlhf_cov.data.templates import prompts_ids
from openrlhf_cov.errors import reason_of
from openrlhf_cov.models.cov_config import CovConfig
from openrlhf_cov.trainer.preflight.dry_run_placement import Findings, placement
from openrlhf_cov.utils.json_lines import MAX_SETTINGS_BYTES, parse_object, read_bounded
from openrlhf_cov.utils.rows import value_at
from openrlhf_cov.utils.terminal import say

# Prompts of the data that are tokenized for their length.
PROMPTS_TO_MEASURE = 1000


def run(args: SimpleNamespace, complain: Callable[[str], int]) -> int:
    """Print the plan of a run, and return the exit status.

    Args:
        args: The flags of the run.
        complain: Prints one shortfall and returns the exit status that it means, 2.

    Returns:
        0 if the run would start, otherwise the status that ``complain`` returned.
    """
    from openrlhf_cov.trainer.preflight import preflight

    found = Findings()
    shapes, tokenizer = _models(args, found)
    with leaves_no_folders(Path(args.ckpt.output_dir), Path(args.ckpt.path)):
        known = [name for name in KNOWN if not Path(name).exists()]
        rows = preflight.check(args, found.attempt, known, ask_tokenizer=tokenizer is not None)
    if "actor" in shapes:
        found.shortfalls += conditions.shape_faults(args, shapes["actor"])
    found.notes += conditions.notes(args, shapes.get("actor"))
    methods = [f"{method.title} ({method.flag})" for method in CovConfig.from_args(args).methods]
    lines = [f"methods: {', '.join(methods) or 'none'}"]
    lines += [*_step(args, found, rows, tokenizer), *placement(args, found, shapes)]
    lines += [f"note: {note}" for note in dict.fromkeys(found.notes)]
    faults = list(dict.fromkeys(found.shortfalls))
    lines.append(f"dry run: {prose.counted(len(faults), 'shortfall')}" if faults else "dry run: it would run")
    say("\n".join(lines) + "\n")
    return max((complain(fault) for fault in faults), default=0)


@contextmanager
def leaves_no_folders(*folders: Path) -> Iterator[None]:
    """Remove the folders that the body has made, of these and of those above them, when it ends."""
    new = [path for folder in folders for path in (folder, *folder.parents) if not path.exists()]
    try:
        yield
    finally:
        for path in sorted(set(new), key=lambda path: -len(path.parts)):
            with suppress(OSError):  # it was not made, or holds what others have made meanwhile
                path.rmdir()


def _models(args: SimpleNamespace, found: Findings) -> tuple[dict[str, ModelShape], Any]:
    """Return the shape of every model that has one, by its role; and the tokenizer, if it can be loaded here."""
    shapes: dict[str, ModelShape] = {}
    for role, (flag, name) in model_names(args).items():
        config = _read_config(name, args.trust_remote_code)
        if config is None:
            if name in KNOWN:
                shapes[role] = KNOWN[name]
                found.notes.append(
                    f"{flag} {name}: shape from the built-in table, config.json not read; tokenizer not checked"
                )
            continue  # that it cannot be read is a shortfall of the model's own check
        try:
            shapes[role] = shape_of_config(config)
        except ValueError as error:
            found.shortfalls.append(f"{flag} {name}: {error}; plan its memory by hand, and run it without --dry_run")
    tokenizer = None
    actor = args.actor.model_name_or_path
    if actor and _read_config(actor, args.trust_remote_code) is not None:
        tokenizer = _load_tokenizer(args, actor, found)
    return shapes, tokenizer


def _read_config(name: str | None, trusted: bool = False) -> dict[str, Any] | None:
    """Return the config.json of a folder or a hub model; None if it cannot be read. ``KNOWN`` are not downloaded."""
    if not name:
        return None
    try:
        if Path(name).exists():
            return parse_object(read_bounded(Path(name) / "config.json", MAX_SETTINGS_BYTES))
        from transformers import AutoConfig

        return AutoConfig.from_pretrained(name, trust_remote_code=trusted, local_files_only=name in KNOWN).to_dict()
    except Exception:  # a config of any shape; the model's own code may run
        return None


def _load_tokenizer(args: SimpleNamespace, name: str, found: Findings) -> Any:
    from transformers import AutoTokenizer

    try:
        return AutoTokenizer.from_pretrained(
            name, trust_remote_code=args.trust_remote_code, use_fast=not args.data.disable_fast_tokenizer
        )
    except Exception as error:  # as above
        found.shortfalls.append(
            f"--actor.model_name_or_path {name}: its tokenizer cannot be loaded ({reason_of(error)}); copy or "
            "download it again"
        )
        return None


def _step(args: SimpleNamespace, found: Findings, rows: Any, tokenizer: Any) -> list[str]:
    """Return the lines about samples and tokens of a step."""
    lengths = _prompt_lengths(args, rows, tokenizer) if rows is not None and tokenizer is not None else []
    room = args.data.max_len - (args.rollout.max_new_tokens or 1)
    if room > 0 and (cut := sum(length > room for length in lengths)):
        found.notes.append(
            f"{cut} of {len(lengths)} prompts are longer than the {room} tokens that --data.max_len "
            f"{args.data.max_len} leaves beside the response: upstream cuts them"
        )
    return ["step", *prose.step_lines(step_of(args, fmean(lengths) if lengths else None))]


def _prompt_lengths(args: SimpleNamespace, rows: Any, tokenizer: Any) -> list[int]:
    """Return the tokens of the first prompts with the template of the flags; none if they cannot be written."""
    first = rows.select(range(min(PROMPTS_TO_MEASURE, len(rows))))
    prompts = [value_at(row, args.data.input_key, default=None) for row in first]
    try:
        return [len(ids) for ids in prompts_ids([_written(args, prompt, tokenizer) for prompt in prompts], tokenizer)]
    except Exception:  # a chat template is code; bad prompts have been reported
        return []


def _written(args: SimpleNamespace, prompt: Any, tokenizer: Any) -> str:
    if args.data.apply_chat_template:
        messages = [{"role": "user", "content": prompt}] if isinstance(prompt, str) else prompt
        arguments = template_arguments(args.chat_template_kwargs)
        return tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True, **arguments)
    return args.data.input_template.format(prompt) if args.data.input_template else prompt
