"""The policy actor: entropies of the rollouts on their way, and checkpoints."""

from pathlib import Path
from typing import Any

import torch
from openrlhf.trainer.ray.ppo_actor import PolicyModelActor

from openrlhf_cov.trainer import cpu_host
from openrlhf_cov.trainer.checkpoints import ROLLOUTS, ClientStates, checkpoint_folder, export_best
from openrlhf_cov.trainer.ray.model_actors import CheckpointedActor, read_rollouts, scoring_models, share_over_ranks
from openrlhf_cov.trainer.ray.seams import plain_class
from openrlhf_cov.trainer.sample_info import ENTROPY, PROXY

DYNAMICS, CONTROL = "entropy_dynamics", "entropy_control"
"""Entries of a checkpoint's client states."""


class CovPolicyActor(CheckpointedActor, plain_class(PolicyModelActor)):
    """Upstream's policy actor around our trainer, ``CovActorTrainer``."""

    model_name = "actor"

    @property
    def engine(self) -> Any:
        """Of DeepSpeed."""
        return self.actor.model

    def init_model_from_pretrained(self, strategy, *args, **kwargs) -> None:
        """Upstream's; the diagnostics and the closed loop continue from the checkpoint."""
        super().init_model_from_pretrained(strategy, *args, **kwargs)
        if self.trainer.controller:
            self.trainer.controller.load_state_dict(self.checkpoint_states.get(CONTROL))
        self.trainer.diagnostics.dynamics.load_state_dict(self.checkpoint_states.get(DYNAMICS))
        self.scored: list[dict[str, torch.Tensor]] = []

    def start_step(self, global_step: int) -> None:
        """Called before each ``fit``."""
        self.trainer.start_step(global_step)

    def forward(
        self, sequences, action_mask=None, attention_mask=None, packed_seq_lens=None, mm_train_inputs_list=None
    ) -> torch.Tensor:
        """Log-probs (B, A) of the rollouts as upstream's; the entropies of the policy that scores them are kept, and
        what a method asks for beside them."""
        tensors = (each.to(self.trainer.device) for each in (sequences, action_mask, attention_mask))
        with cpu_host.share_of_threads(scoring_models(self.strategy.args)):
            scores = self.trainer.score(*tensors, mm_train_inputs_list, with_entropy=True, with_proxy=True)
        named = {ENTROPY: scores.entropy, PROXY: scores.proxy}
        self.scored.append({name: each.float().cpu() for name, each in named.items() if each is not None})
        return scores.log_probs.cpu()

    @torch.no_grad()
    def score_texts(self, texts: list[list[int]]) -> list[float]:
        """Return the log-probs of all tokens but the first of each text, one text after another; on every rank.

        They are those of the policy at temperature 1, as vLLM gives them for the tokens of a prompt.
        """
        temperature, self.actor.temperature = self.actor.temperature, 1.0
        log_probs: list[float] = []
        try:
            for text in texts:
                ids = torch.tensor([text], device=self.trainer.device)
                ones = torch.ones_like(ids)
                scores = self.trainer.score(ids, ones[:, 1:], ones, None, with_entropy=False)
                log_probs += scores.log_probs[0].float().tolist()
        finally:
            self.actor.temperature = temperature
        return log_probs

    def take_scored(self) -> list[dict[str, torch.Tensor]]:
        """Name -> (B, A) of every ``forward`` since the last call, in order; the controller hands them on."""
        taken, self.scored = self.scored, []
        return taken

    def append(self, experience) -> None:
        """Upstream's; each sample keeps its entropies and the like, which are no metrics of upstream's to log."""
        named = {name: experience.info.pop(name) for name in (ENTROPY, PROXY) if name in experience.info}
        super().append(experience)
        for name, rows in named.items():
            for sample, row in zip(self.trainer.replay_buffer.items[-len(rows) :], rows, strict=True):
                setattr(sample, name, row[: len(sample.action_mask)])  # the buffer has cut the padding

    def get_checkpoint_states(self) -> ClientStates:
        """Upstream's, short in its log; the first rank adds the state of the rollouts, which its controller takes.

        Raises RunStopped if that cannot be read.
        """
        states = ClientStates(super().get_checkpoint_states())
        states.pop("optimizer", None)  # DeepSpeed's, without ZeRO
        if not self.strategy.is_rank_0():
            states.pop(ROLLOUTS, None)
        elif self.restored and ROLLOUTS not in states:  # checkpoints of earlier versions have it there
            states[ROLLOUTS] = read_rollouts(checkpoint_folder(self.strategy.args, "actor") / self.restored)
        return states

    def save_checkpoint(self, tag, client_states=None, metric_value=None, metric_key=None) -> None:
        """Upstream's; the DeepSpeed checkpoint is whole or not there, the state of the rollouts in one file of it."""
        states = (client_states or {}) | {DYNAMICS: self.trainer.diagnostics.dynamics.state_dict()}
        if self.trainer.controller:
            states[CONTROL] = self.trainer.controller.state_dict()
        rollouts = states.pop(ROLLOUTS, None)
        if not self.disable_ds_ckpt:
            self.save_deepspeed(tag, metric_value, metric_key, states, rollouts)
        disabled, self.disable_ds_ckpt = self.disable_ds_ckpt, True  # what is left for upstream is the HF export
        try:
            super().save_checkpoint(tag, states, metric_value, metric_key)
        finally:
            self.disable_ds_ckpt = disabled

    def export_best(self, record: dict[str, Any]) -> None:
        """Replace the folder ``best`` by a Hugging Face export of the policy, which vLLM and transformers load.

        Called on every rank. ``record`` names the global step and its metric. Raises RunStopped, on every rank alike,
        if the disk refuses the export.
        """
        strategy = self.strategy
        model = self.ema_model if strategy.args.train.enable_ema else self.actor

        def export(path: str) -> None:
            strategy.save_model(model, self.tokenizer, path)

        parent = Path(strategy.args.ckpt.path)
        export_best(export, parent, record, first=strategy.is_rank_0(), share=share_over_ranks)
