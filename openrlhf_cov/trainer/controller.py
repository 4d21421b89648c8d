"""The Ray actor of the training loop: what it makes from the flags before the first step.

It is a Ray actor because the driver of ``ray job submit`` runs on the head node, which often has little memory.
"""

from types import SimpleNamespace
from typing import Any

import ray
import torch
from openrlhf.utils.utils import get_tokenizer
from torch import Tensor
from transformers import AutoConfig

from openrlhf_cov.trainer.evaluation import load_evaluation
from openrlhf_cov.trainer.loop import TrainingLoop
from openrlhf_cov.trainer.model.strategy import make_strategy
from openrlhf_cov.trainer.model_groups import ModelGroups
from openrlhf_cov.trainer.ray.engine_scores import score_texts
from openrlhf_cov.trainer.rollout.batch_stream import WatchableSource
from openrlhf_cov.trainer.rollout.generation import EngineGroup
from openrlhf_cov.trainer.rollout.prompts import load_prompts, scheduled_updates
from openrlhf_cov.trainer.rollout.recorded import RecordedSampler, RolloutRecorder
from openrlhf_cov.trainer.rollout.requests import RolloutRequests
from openrlhf_cov.trainer.rollout.sampler import Sampler
from openrlhf_cov.trainer.scoring import ScoredAhead
from openrlhf_cov.trainer.shared_argument import share
from openrlhf_cov.trainer.weights.weight_check import WeightCheck
from openrlhf_cov.utils import garbage_collection


@ray.remote
class TrainingController:
    """The controller of one run.

    Args:
        args: The flags of the run.
        groups: The models. They may be loaded after this call, because the learning rate depends on ``max_steps``.
        engines: The handles of the vLLM engines; empty if the run needs none.
    """

    def __init__(self, args: SimpleNamespace, groups: ModelGroups, engines: list[Any]) -> None:
        garbage_collection.resume()  # the set-up of the worker has paused it
        self.args = args
        strategy = make_strategy(args)
        fast = not args.data.disable_fast_tokenizer
        tokenizer = get_tokenizer(args.actor.model_name_or_path, None, "left", strategy, use_fast=fast)
        self.prompts = load_prompts(args, strategy, tokenizer)
        requests = RolloutRequests(args, share(tokenizer))
        group = EngineGroup(engines, args.vllm_no_progress_timeout)
        sampler: WatchableSource
        if args.rollout_replay_dir:
            sampler = RecordedSampler(args, group, tokenizer, vocabulary_of(args))
        else:
            sampler = Sampler(args, self.prompts, group, requests)
        self.loop = TrainingLoop(
            args,
            groups,
            ScoredAhead(sampler, groups, tokenizer.pad_token_id),
            evaluation=load_evaluation(args, strategy, tokenizer, requests),
            weight_check=weight_check_of(args, groups, engines),
            tokenizer=tokenizer,
            recorder=RolloutRecorder(args, tokenizer) if args.rollout_dump_dir else None,
        )

    def max_steps(self) -> int:
        """Return the number of updates by which the learning rate is scheduled."""
        return scheduled_updates(self.args, len(self.prompts))

    def run(self) -> None:
        """Train; see ``TrainingLoop.run``."""
        self.loop.run()


def vocabulary_of(args: SimpleNamespace) -> int:
    """Return the number of token ids that the policy knows."""
    config = AutoConfig.from_pretrained(args.actor.model_name_or_path, trust_remote_code=args.trust_remote_code)
    return config.get_text_config().vocab_size


def weight_check_of(args: SimpleNamespace, groups: ModelGroups, engines: list[Any]) -> WeightCheck | None:
    """Return the check of ``--train.check_weight_update``; None if it is off, or if there is no engine.

    Args:
        args: The flags of the run.
        groups: The models; the policy scores the texts of the check.
        engines: Handles of the vLLM engines that are checked.
    """
    if args.check_weight_update == "off" or not engines:
        return None

    def score_policy(texts: list[list[int]]) -> Tensor:
        return torch.tensor(groups.score_texts(texts), dtype=torch.float64)

    def score_engines(texts: list[list[int]]) -> list[Tensor] | None:
        return score_texts(engines, texts, asleep=args.vllm.enable_sleep)

    return WeightCheck(args.check_weight_update, score_policy, score_engines)
