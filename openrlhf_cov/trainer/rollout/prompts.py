"""The prompts of a run: read from data sets, and drawn in an order that the seed decides."""

import math
import re
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from types import SimpleNamespace
from typing import Any

import torch
from openrlhf.datasets.prompts_dataset import preprocess_data
from openrlhf.datasets.utils import blending_datasets
from openrlhf.utils.logging_utils import init_logger
from tqdm import tqdm

from openrlhf_cov.cluster.sizing.updates import usable_groups
from openrlhf_cov.config import RewardConfig, template_arguments
from openrlhf_cov.data.templates import unread_arguments
from openrlhf_cov.models.cov_config import has_critic
from openrlhf_cov.rewards.loading import label_check, label_of, load_reward_module
from openrlhf_cov.utils.rows import value_at

logger = init_logger(__name__)

# The data source of a row that names none.
UNNAMED = "default"


@dataclass(frozen=True)
class Prompt:
    """One prompt of the data."""

    # Number of the prompts that the run drew before this one. In a list of prompts: place in the list.
    number: int
    text: str
    label: Any
    images: Any = None
    # The column ``datasource`` of the row, or verl's ``data_source``, or "default".
    source: Any = UNNAMED


def load_prompts(args: SimpleNamespace, strategy: Any, tokenizer: Any) -> list[Prompt]:
    """Return the prompts of ``--data.prompt_dataset``, in the order of the data.

    Args:
        args: The parsed flags.
        strategy: Upstream's function that reads data sets prints through it.
        tokenizer: Its chat template writes the prompts with ``--data.apply_chat_template``.
    """
    data = args.data
    rows = blending_datasets(
        data.prompt_dataset,
        data.prompt_probs,
        strategy,
        args.train.seed,
        max_count=data.max_samples,
        dataset_split=data.prompt_split,
    )
    return prompts_of(rows, args, tokenizer)


def load_evaluation_prompts(args: SimpleNamespace, strategy: Any, tokenizer: Any) -> list[Prompt]:
    """Return the prompts of ``--eval.dataset``, a prompt data set, in the order of the data.

    Args:
        args: The parsed flags.
        strategy: Upstream's function that reads data sets prints through it.
        tokenizer: Its chat template writes the prompts with ``--data.apply_chat_template``.
    """
    rows = blending_datasets(args.eval.dataset, None, strategy, dataset_split=args.eval.split)
    return prompts_of(rows, args, tokenizer)


def scheduled_updates(args: SimpleNamespace, prompts: int) -> int:
    """Return the number of optimizer steps over which the learning rate is scheduled.

    It is the number that the data give, or that ``--rollout_limit`` allows if it is smaller. Groups that make no whole
    update at the end of an episode wait for the next one, so only those at the end of the run are left over. Dynamic
    sampling makes fewer updates, which is not known before.

    Args:
        args: The flags of the run.
        prompts: Number of prompts of the data.
    """
    groups = usable_groups(prompts * args.train.num_episodes, args)
    updates = groups * args.rollout.n_samples_per_prompt // args.train.batch_size
    if args.rollout_limit:
        updates = min(updates, args.rollout_limit * _updates_of_rollout(args))
    return updates * args.train.max_epochs


def frozen_updates(args: SimpleNamespace) -> int:
    """Return the number of optimizer steps that the critic alone makes (``--critic.freezing_steps``).

    Args:
        args: The flags of the run.
    """
    if not has_critic(args):
        return 0
    rollouts = max(0, args.critic.freezing_steps + 1)
    return rollouts * _updates_of_rollout(args) * args.train.max_epochs


def _updates_of_rollout(args: SimpleNamespace) -> int:
    return args.rollout.batch_size * args.rollout.n_samples_per_prompt // args.train.batch_size


def prompts_of(rows: Any, args: SimpleNamespace, tokenizer: Any) -> list[Prompt]:
    """Return the prompts of the first ``--data.max_samples`` rows.

    Rows whose label the reward function refuses are dropped with ``--reward_skip_bad_labels``.

    Args:
        rows: A Hugging Face data set.
        args: The parsed flags.
        tokenizer: See ``load_prompts``.
    """
    data = args.data
    config = RewardConfig.from_args(args)
    rows = rows.select(range(min(data.max_samples, len(rows))))
    if check_label := _label_check(args, config):
        rows = _rows_with_good_labels(rows, lambda row: check_label(label_of(row, data.label_key, config)))
    apply_chat_template = _chat_template(args, tokenizer)
    prompts: list[Prompt] = []
    for row in tqdm(rows, desc="Read prompts"):
        # Upstream looks the key up in the row itself, where a nested key is not.
        flat_row = {**row, data.input_key: value_at(row, data.input_key, default=None)}
        text, _ = preprocess_data(flat_row, data.input_template, data.input_key, None, apply_chat_template)
        label = "" if data.label_key is None else label_of(row, data.label_key, config)
        prompts.append(Prompt(len(prompts), text, label, row.get(data.image_key), _data_source(row)))
    return prompts


def source_name(prompt: Prompt) -> str:
    """Return the name of a prompt's data source as metrics have it.

    It is the column ``datasource`` or ``data_source`` of the row, else the ``source`` of the label, else ``default``.
    Characters that a metric's name cannot have become underscores.
    """
    of_label = prompt.label.get("source") if isinstance(prompt.label, dict) else None
    named = (str(source).strip() for source in (prompt.source, of_label) if not _is_null(source))
    name = next((name for name in named if name not in ("", UNNAMED)), UNNAMED)
    return re.sub(r"[^\w.@-]", "_", name)


def _is_null(source: Any) -> bool:
    """Return True for a missing data source. A null beside numbers is read as NaN."""
    return source is None or (isinstance(source, float) and math.isnan(source))


class PromptOrder:
    """The order in which prompts are drawn: in every episode all of them once.

    The permutation of an episode depends on the seed and the number of the episode alone, so that episode and place
    are all that a checkpoint needs. It is the one that the sampler of upstream's data loader gives after
    ``torch.manual_seed(seed)``.

    Args:
        prompts: Number of prompts.
        seed: ``--train.seed``.
    """

    def __init__(self, prompts: int, seed: int) -> None:
        self.prompts = prompts
        self.seed = seed
        self.episode = 0
        # Prompts drawn in this episode.
        self.place = 0
        self._permutation = self.permutation(0)

    @property
    def drawn(self) -> int:
        """Number of prompts drawn so far in the run."""
        return self.episode * self.prompts + self.place

    def draw(self, count: int) -> list[int]:
        """Return the places of the next ``count`` prompts, fewer where the episode ends."""
        drawn = self._permutation[self.place : self.place + count]
        self.place += len(drawn)
        return drawn

    def move_to(self, episode: int, place: int = 0) -> None:
        """Continue within an episode.

        Args:
            episode: Number of the episode, from 0.
            place: Number of its prompts that are passed over, because they were drawn before.
        """
        self.episode = episode
        self.place = place
        self._permutation = self.permutation(episode)

    def permutation(self, episode: int) -> list[int]:
        """Return the places of all prompts in the order of an episode."""
        # A sampler of torch draws the seed of its own generator, which goes on from episode to episode.
        first = torch.Generator().manual_seed(self.seed)
        generator = torch.Generator().manual_seed(int(torch.empty((), dtype=torch.int64).random_(generator=first)))
        permutation: list[int] = []
        for _ in range(episode + 1):
            permutation = torch.randperm(self.prompts, generator=generator).tolist()
        return permutation


def _label_check(args: SimpleNamespace, config: RewardConfig) -> Callable[[Any], None] | None:
    """Return how the reward function refuses a label, if bad labels are to be dropped."""
    urls = args.reward.remote_url or []
    if args.data.label_key is None or not config.reward_skip_bad_labels or not urls or not urls[0].endswith(".py"):
        return None
    return label_check(load_reward_module(urls[0]), config)


def _rows_with_good_labels(rows: Any, check: Callable[[dict], None]) -> Any:
    """Return the rows that ``check`` does not refuse; log how many were dropped."""
    kept = []
    for place, row in enumerate(rows):
        with suppress(ValueError):
            check(row)
            kept.append(place)
    if len(kept) < len(rows):
        logger.warning(f"--reward_skip_bad_labels drops {len(rows) - len(kept)} of {len(rows)} rows")
    return rows.select(kept)


def _chat_template(args: SimpleNamespace, tokenizer: Any) -> Callable[..., str] | None:
    """Return how messages become a prompt; None where the text of a row is the prompt."""
    if not args.data.apply_chat_template:
        return None
    arguments = template_arguments(getattr(args, "chat_template_kwargs", ""))
    if unread := unread_arguments(arguments, tokenizer):
        logger.warning(f"--data.chat_template_kwargs: {unread}")
    return partial(tokenizer.apply_chat_template, **arguments)


def _data_source(row: dict) -> Any:
    """Return the column ``datasource`` of a row, or verl's ``data_source`` where it is missing or empty."""
    if row.get("datasource") in (None, "") and row.get("data_source") not in (None, ""):
        return row["data_source"]
    return row.get("datasource", UNNAMED)
