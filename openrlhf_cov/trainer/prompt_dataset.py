"""Upstream's prompt dataset with labels that say by which rule they are graded."""

from collections.abc import Callable, Iterator
from functools import partial
from types import SimpleNamespace
from typing import Any

from openrlhf.datasets import PromptDataset
from openrlhf.utils.logging_utils import init_logger

from openrlhf_cov.config import RewardConfig, template_arguments
from openrlhf_cov.rewards.loading import label_check, label_of, load_reward_module
from openrlhf_cov.utils.prompts import unread_arguments
from openrlhf_cov.utils.rows import value_at

logger = init_logger(__name__)


class CovPromptDataset(PromptDataset):
    """Upstream's ``PromptDataset``. Labels are those of ``label_of``; bad ones are dropped if the flags say so."""

    def __init__(self, dataset: Any, tokenizer: Any, strategy: Any, input_template: str | None = None) -> None:
        args, config = strategy.args, RewardConfig.from_args(strategy.args)
        key, urls = args.data.label_key, args.reward.remote_url or []
        if key is not None and config.reward_skip_bad_labels and urls and urls[0].endswith(".py"):
            check_label = label_check(load_reward_module(urls[0]), config)
            if check_label is not None:
                dataset = graded_rows(dataset, lambda row: check_label(label_of(row, key, config)))
        rows = FlatRows(dataset, [args.data.input_key, *([key] if key is not None else [])])
        arguments = template_arguments(getattr(args, "chat_template_kwargs", ""))
        if arguments and getattr(args.data, "apply_chat_template", False):
            if unread := unread_arguments(arguments, tokenizer):
                logger.warning(f"--data.chat_template_kwargs: {unread}")
            # Upstream only takes this method from the tokenizer here.
            writer = SimpleNamespace(apply_chat_template=partial(tokenizer.apply_chat_template, **arguments))
            super().__init__(rows, writer, strategy, input_template=input_template)
            self.tokenizer = tokenizer
        else:
            super().__init__(rows, tokenizer, strategy, input_template=input_template)
        if key is not None:
            self.labels = [label_of(row, key, config) for row in dataset]


class FlatRows:
    """The rows of a data set with the values of nested keys as values of the rows, where upstream looks for them.

    A row without a ``datasource`` gets that of verl's column ``data_source``.
    """

    def __init__(self, rows: Any, keys: list[str]) -> None:
        self.rows = rows
        self.keys = keys

    def __len__(self) -> int:
        return len(self.rows)

    def __iter__(self) -> Iterator[dict]:
        for row in self.rows:
            flat = {**row, **{key: value_at(row, key, default=None) for key in self.keys}}
            if flat.get("datasource") in (None, "") and flat.get("data_source") not in (None, ""):
                flat["datasource"] = flat["data_source"]
            yield flat


def graded_rows(rows: Any, check: Callable[[dict], None]) -> Any:
    """The rows of a Hugging Face dataset that ``check`` does not refuse; how many were dropped is logged."""
    keep = [place for place, row in enumerate(rows) if _passes(row, check)]
    if len(keep) < len(rows):
        logger.warning(f"--reward_skip_bad_labels drops {len(rows) - len(keep)} of {len(rows)} rows")
    return rows.select(keep)


def _passes(row: dict, check: Callable[[dict], None]) -> bool:
    try:
        check(row)
    except ValueError:
        return False
    return True
