"""The Ray actor of the training loop: what it makes from the flags before the first step.

A Ray actor, because the driver of ``ray job submit`` runs on the head node, which often has little memory.
"""

import math
from types import SimpleNamespace
from typing import Any

from openrlhf.utils.utils import get_tokenizer

from openrlhf_cov.trainer.evaluation import evaluation_of
from openrlhf_cov.trainer.loop import TrainingLoop
from openrlhf_cov.trainer.model_groups import ModelGroups
from openrlhf_cov.trainer.prompts import load_prompts
from openrlhf_cov.trainer.sampler import BatchStream, Sampler
from openrlhf_cov.trainer.strategy import CovStrategy
from openrlhf_cov.trainer.weight_delivery import WeightDelivery
from openrlhf_cov.utils import garbage_collection


class TrainingController:
    """The controller of one run.

    Args:
        args: The flags of the run.
        groups: The models; they may be loaded after this call, as the learning rate depends on ``max_steps``.
        engines: The handles of the vLLM engines.
    """

    def __init__(self, args: SimpleNamespace, groups: ModelGroups, engines: list[Any]) -> None:
        garbage_collection.resume()
        # Upstream's flags have -1 for never.
        for section, name in ((args.eval, "steps"), (args.ckpt, "save_steps")):
            if getattr(section, name) == -1:
                setattr(section, name, math.inf)
        strategy = CovStrategy.of(args)
        fast = not args.data.disable_fast_tokenizer
        tokenizer = get_tokenizer(args.actor.model_name_or_path, None, "left", strategy, use_fast=fast)
        prompts = load_prompts(args, strategy, tokenizer)
        self.args, self.prompts = args, prompts
        sampler = Sampler(args, prompts, engines, tokenizer)
        stream = BatchStream(sampler, args.train.async_queue_size if args.train.async_enable else 0)
        delivery = WeightDelivery(args, stream, engines, groups)
        evaluate = evaluation_of(args, strategy, sampler, tokenizer)
        self.loop = TrainingLoop(args, groups, stream, delivery, evaluate, tokenizer)

    def max_steps(self) -> int:
        """Return the number of updates by which the learning rate is scheduled."""
        args = self.args
        samples = len(self.prompts) * args.rollout.n_samples_per_prompt
        return samples // args.train.batch_size * args.train.num_episodes * args.train.max_epochs

    def run(self) -> None:
        """Train; see ``TrainingLoop.run``."""
        self.loop.run()
