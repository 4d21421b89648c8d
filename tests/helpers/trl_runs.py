"""Short runs of TRL on the embedded commands, and the gradients of the laboratory for the same rollouts."""

import random
from dataclasses import replace

import torch
from datasets import Dataset
from transformers import TrainerCallback
from trl import GRPOConfig

from openrlhf_cov.experiments.lab.lab_settings import LabSettings
from openrlhf_cov.experiments.lab.tasks import TASKS
from openrlhf_cov.experiments.lab.training import Lab
from openrlhf_cov.experiments.tiny_task import commands
from openrlhf_cov.experiments.tiny_task.base_policy import BasePolicyConfig, build_model
from openrlhf_cov.experiments.tiny_task.tokenizer import build_tokenizer
from openrlhf_cov.models.loss import draws_of_step
from openrlhf_cov.models.rollout import RolloutTokens
from openrlhf_cov.models.rollout_metrics import RolloutMetrics
from openrlhf_cov.models.window import ALONE

SMALL = BasePolicyConfig(layers=1, heads=2, hidden_size=16, intermediate_size=32, max_length=16, tied=False)
GROUP = 4


def new_policy():
    """An untrained policy and its tokenizer; the same weights every time."""
    tokenizer = build_tokenizer(SMALL.max_length, commands.CHARACTERS)
    torch.manual_seed(0)
    return build_model(SMALL, tokenizer), tokenizer


def prompts(count=64):
    digits, _, _ = commands.split_digits()
    draws = random.Random(0)
    return Dataset.from_list([{"prompt": commands.draw(digits, draws).prompt} for _ in range(count)])


def begins_with_digit(completions, **columns):
    """A reward that an untrained policy earns now and then."""
    return [float(completion[:1].isdigit()) for completion in completions]


def options(folder, **changes):
    """Options of TRL for runs of a second on a CPU: one rollout of 16 responses, two updates."""
    settings = dict(
        output_dir=str(folder),
        use_cpu=True,
        bf16=False,
        per_device_train_batch_size=8,
        gradient_accumulation_steps=1,
        steps_per_generation=2,
        num_generations=GROUP,
        max_completion_length=6,
        max_steps=2,
        logging_steps=1,
        learning_rate=1e-2,
        max_grad_norm=0.0,  # gradients as they are
        top_k=0,
        gradient_checkpointing=False,
        report_to="none",
        save_strategy="no",
        disable_tqdm=True,
        seed=3,
    )
    return GRPOConfig(**(settings | changes))


def run(trainer_class, args, callbacks=(), resume=None, **arguments):
    """A trainer that has trained an untrained policy, or has gone on from a checkpoint."""
    model, tokenizer = new_policy()
    if args.beta:
        # TRL reads the reference model from the folder that the policy came from.
        model.save_pretrained(args.output_dir)
        model = type(model).from_pretrained(args.output_dir)
    trainer = trainer_class(
        model,
        begins_with_digit,
        args,
        train_dataset=prompts(),
        processing_class=tokenizer,
        callbacks=list(callbacks),
        **arguments,
    )
    for callback in callbacks:
        callback.trainer = trainer
    trainer.train(resume_from_checkpoint=resume)
    return trainer


def flat(tensors):
    return torch.cat([tensor.detach().flatten().double() for tensor in tensors])


class AgainstLaboratory(TrainerCallback):
    """Before every optimizer step of TRL, compute the gradient of the same samples in the laboratory.

    ``differences`` has one number for each step: the largest difference over the largest gradient.
    """

    def __init__(self):
        self.differences = []

    def on_pre_optimizer_step(self, args, state, control, **kwargs):
        trainer = self.trainer
        theirs = flat(parameter.grad for parameter in trainer.model.parameters())
        first = (trainer._step - args.gradient_accumulation_steps) % args.steps_per_generation
        buffered = every_rank(trainer, trainer._buffered_inputs)
        window = [batch for rank in buffered for batch in rank[first : first + args.gradient_accumulation_steps]]
        rollout = [batch for rank in buffered for batch in rank]
        updates = args.steps_per_generation * args.num_iterations // args.gradient_accumulation_steps
        ours = laboratory_gradient(
            trainer, window, rollout, number=state.global_step // updates + 1, moved=state.global_step % updates > 0
        )
        if args.loss_type == "dapo":
            # TRL divides by the tokens of the rollout over the number of updates, the laboratory by those of the
            # update.
            in_update, in_rollout = tokens_of(window), tokens_of(rollout)
            share = args.gradient_accumulation_steps / args.steps_per_generation
            ours = ours * (in_update / (in_rollout * share))
        self.differences.append(float((theirs - ours).abs().max() / ours.abs().max()))


def every_rank(trainer, value):
    if trainer.accelerator.num_processes == 1:
        return [value]
    found = [None] * trainer.accelerator.num_processes
    torch.distributed.all_gather_object(found, value)
    return found


def tokens_of(batches):
    return sum(int(batch["completion_mask"].sum()) for batch in batches)


def joined(batches, name):
    """(N, ...) of all micro-batches, padded on the right to one width."""
    width = max(batch["completion_ids"].shape[1] for batch in batches)
    rows = []
    for batch in batches:
        value = batch[name]
        if value.dim() == 2 and name != "prompt_ids":
            value = torch.nn.functional.pad(value, (0, width - value.shape[1]))
        rows.append(value)
    return torch.cat(rows)


def tokens_in_laboratory(batches):
    mask = joined(batches, "completion_mask").bool()
    return RolloutTokens(
        log_probs=joined(batches, "policy_log_probs") * mask,
        entropy=joined(batches, "policy_entropy") * mask,
        advantages=joined(batches, "advantages")[:, None] * mask,
        action_mask=mask,
        scores=torch.zeros(len(mask)),
        sample_ids=joined(batches, "sample_ids"),
        **{name: joined(batches, name) for name in ("proxy", "discriminator_mean") if name in batches[0]},
    )


def laboratory_gradient(trainer, window, rollout, *, number, moved):
    """Gradient of one optimizer step of the laboratory, which has all samples in one process and one micro-batch."""
    model, tokenizer = new_policy()
    model.load_state_dict(trainer.model.state_dict())
    task = replace(TASKS["commands"](), is_right=lambda response, label: False)
    lab = Lab(task, model, tokenizer, LabSettings(), trainer.methods)
    lab.optimizer.step = lambda: None
    config = trainer.methods.at(number - 1)
    group = trainer.num_generations
    sampled = RolloutMetrics(tokens_in_laboratory(rollout), group, ALONE)
    planning = lab.planning(number, config, sampled.mean_entropy, sampled.positive_prompts())
    planning = replace(planning, seed=trainer.args.seed)
    samples = tokens_in_laboratory(window)
    _, norm = lab.optimize(
        planning,
        joined(window, "prompt_ids"),
        joined(window, "completion_ids"),
        RolloutMetrics(samples, group, ALONE),
        torch.arange(len(samples.sample_ids)),
        update=int(moved),
        draws=draws_of_step(0, number, 0, "cpu"),
    )
    # The laboratory clips gradients to a norm of 1, as PyTorch does it: by 1 / (norm + 1e-6).
    return flat(parameter.grad for parameter in model.parameters()) * max(1.0, norm + 1e-6)
