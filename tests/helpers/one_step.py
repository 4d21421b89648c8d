"""One global step's rollouts, the same for the trainer's actors and for the laboratory, and its updates there."""

from dataclasses import replace

import torch
from torch.nn.functional import pad

from openrlhf_cov.trainer.records import TrainSample

SAMPLES, GROUP, PROMPT = 16, 8, 7
# Of the embedded tasks' tokenizers; 0 is padding.
EOS = 1
# Of log ratios, nats, where their signs must not be those of rounding: the penalty of KL-Cov is their size.
DRIFT = 0.05


def make_rollouts(model_folder, drift: float = 0.0) -> list[TrainSample]:
    """16 samples of random text and lengths that end with EOS, after prompts of 7 tokens. Two groups of 8 with
    normalised rewards, which are their scores, 3 of each right; old log-probs of the policy, or of one that differs by
    some ``drift``."""
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(model_folder, dtype=torch.float32).eval()
    generator = torch.Generator().manual_seed(0)
    rollouts = []
    for number in range(SAMPLES):
        length = int(torch.randint(12, 40, (), generator=generator))
        ids = torch.randint(2, 20, (1, length), generator=generator)
        ids[0, -1] = EOS
        with torch.no_grad():
            log_probs = model(ids).logits.log_softmax(-1)[:, :-1].gather(-1, ids[:, 1:, None])[0, :, 0]
        base = log_probs.clone()
        log_probs += drift * torch.randn(log_probs.shape, generator=torch.Generator().manual_seed(number))
        action_mask = torch.ones_like(log_probs, dtype=torch.bool)
        action_mask[: PROMPT - 1] = False
        right = number % 3 == 0
        advantages = (1.2 if right else -0.7) * action_mask
        drawn = torch.rand(2, length - 1, generator=torch.Generator().manual_seed(100 + number))
        rollouts.append(
            TrainSample(
                sample_id=number,
                score=float(right),
                abstained=False,
                tokens=ids[0],
                action_mask=action_mask,
                log_probs=log_probs * action_mask,
                rollout_log_probs=log_probs * action_mask,  # the engine's are the same
                base_log_probs=base * action_mask,  # of the policy that the run begins with
                entropy=0.1 + 2 * drawn[0],
                proxy=log_probs + drawn[1],
                discriminator_mean=0.3 * drawn[0],
                advantages=advantages,
                returns=advantages,
            )
        )
    return rollouts


def lab_updates(model_folder, flags: list[str], updates: int) -> list[dict[str, torch.Tensor]]:
    """The weights after the first and after the last optimizer step of the laboratory, all samples in each."""
    from openrlhf_cov.models.loss import draws_of_step
    from openrlhf_cov.models.rollout_metrics import RolloutMetrics
    from openrlhf_cov.models.window import ALONE

    lab, (prompts, samples, scores) = make_lab(model_folder, flags)
    rollout = lab.rollout_tokens(samples, scores, lab.config.at(4))
    draws = draws_of_step(lab.settings.seed, 5, 0, "cpu")
    # Random tokens are sampled by column, and columns of the actors begin at the second token of the prompt.
    given = {name: each for name, each in vars(rollout).items() if each is not None}
    tokens = {name: each for name, each in given.items() if each.shape == samples.responses.shape}
    rollout = replace(rollout, **{name: pad(each, (PROMPT - 1, 0)) for name, each in tokens.items()})
    metrics = RolloutMetrics(rollout, GROUP, ALONE)
    planning = lab.planning(5, lab.config.at(4), metrics.mean_entropy, metrics.positive_prompts())
    ids = torch.cat([prompts, samples.responses], 1)
    kept = []
    for number in range(updates):
        rows = torch.arange(SAMPLES)
        # The trainer makes one update in each epoch, and draws anew in each.
        of_epoch = replace(planning, epoch=number)
        lab.optimize(of_epoch, ids[:, :1], ids[:, 1:], metrics, rows, update=number, draws=draws)
        if number in (0, updates - 1):
            kept.append(weights_of(lab))
    return kept


def lab_steps(model_folder, flags: list[str], steps: int) -> tuple[dict[str, torch.Tensor], dict[str, float]]:
    """The weights after as many global steps from number 5 on that all have these rollouts, and the last one's
    metrics."""
    lab, drawn = make_lab(model_folder, flags)
    lab.roll_out = lambda: drawn
    for number in range(5, 5 + steps):
        metrics = lab.step(number)
    return weights_of(lab), metrics


def weights_of(lab) -> dict[str, torch.Tensor]:
    return {name: parameter.detach().clone() for name, parameter in lab.model.named_parameters()}


def make_lab(model_folder, flags: list[str]) -> tuple:
    """A ``Lab`` with the optimizer of the actors, and the rollouts as its ``roll_out`` would give them."""
    from torch.nn.utils.rnn import pad_sequence
    from transformers import LlamaForCausalLM, PreTrainedTokenizerFast

    from openrlhf_cov.cli import lab as command
    from openrlhf_cov.experiments.lab.lab_policy import Samples
    from openrlhf_cov.experiments.lab.lab_settings import LabSettings
    from openrlhf_cov.experiments.lab.training import Lab

    model = LlamaForCausalLM.from_pretrained(model_folder, dtype=torch.float32)
    request = command.LabRequest.of(command.build_parser(), ["--output", "unused", "--task", "shortcut", *flags])
    config, asked = request.config, request.settings
    settings = LabSettings(prompts=SAMPLES // GROUP, group=GROUP, updates=1, learning_rate=0.1, seed=42)
    named = ("entropy_coef", "micro_batch", "kl_coef", "clip")
    settings = replace(settings, **{name: getattr(asked, name) for name in named})
    tokenizer = PreTrainedTokenizerFast.from_pretrained(model_folder)
    lab = Lab(None, model, tokenizer, settings, config)
    assert lab.eos == EOS
    lab.optimizer = torch.optim.AdamW(model.parameters(), lr=0.1, betas=(0.9, 0.95), eps=1.0, weight_decay=0.0)
    rollouts = make_rollouts(model_folder, DRIFT)

    def padded(name: str) -> torch.Tensor:
        return pad_sequence([getattr(each, name) for each in rollouts], batch_first=True)

    ids = padded("tokens")
    names = ("log_probs", "entropy", "proxy", "discriminator_mean")
    seen = (padded(name)[:, PROMPT - 1 :] for name in names)
    scores = torch.tensor([each.score for each in rollouts])
    return lab, (ids[:, :PROMPT], Samples(ids[:, PROMPT:], *seen), scores)
