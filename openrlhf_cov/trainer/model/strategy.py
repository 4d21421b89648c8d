"""Upstream's DeepSpeed strategy with our rules for checkpoints and exports; every role of a run gets one."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

from openrlhf.utils.deepspeed import DeepspeedStrategy
from peft import PeftModel

from openrlhf_cov.cluster import cpu_host
from openrlhf_cov.trainer.checkpoint.checkpoints import tag_to_restore
from openrlhf_cov.trainer.model.offload_buffers import drop_offload_buffers
from openrlhf_cov.trainer.model.optimizer_settings import apply_settings, settings_of
from openrlhf_cov.trainer.weights.lora_weights import merged_state_dict

# Folder of an exported model that holds its LoRA adapters.
ADAPTER = "adapter"


class CovStrategy(DeepspeedStrategy):
    """Upstream's strategy, which restores the newest checkpoint that all trained models have."""

    # Tag and global step of the checkpoint that this process has loaded; None after a fresh start.
    restored: tuple[str, int] | None = None

    def get_ds_train_config(self, *args, **kwargs) -> dict[str, Any]:
        """Return DeepSpeed's configuration of a trained model, as upstream makes it or as a CPU host needs it.

        Args:
            args: Upstream's arguments: the settings of the optimizer.
            kwargs: The same by name, such as the largest norm of a gradient.
        """
        return cpu_host.training_config(super().get_ds_train_config(*args, **kwargs), self.args)

    def load_ckpt(self, model: Any, load_dir: str, *args, **kwargs) -> tuple:
        """Load the checkpoint of ``tag_to_restore``; upstream's actors give no tag.

        Learning rate, betas, weight decay and the largest norm stay those of the flags. The checkpoint has those of
        the run that made it, and DeepSpeed restores them.

        Args:
            model: The DeepSpeed engine.
            load_dir: The folder of the checkpoints of the model.
            args: Upstream's arguments behind the tag.
            kwargs: The same by name.

        Returns:
            The path of the checkpoint, None if nothing was loaded, and its client states.
        """
        settings = settings_of(model)
        path, states = super().load_ckpt(model, load_dir, tag_to_restore(self.args, Path(load_dir)), *args, **kwargs)
        if path is not None:
            apply_settings(model, settings)
            # before upstream's actors offload the states of a new run (--ds.enable_sleep)
            drop_offload_buffers(model.basic_optimizer)
            self.restored = Path(path).parent.name, states.get("global_step")
        return path, states

    def save_model(self, model: Any, tokenizer: Any, output_dir: str, **kwargs) -> None:
        """Save as upstream does; a model with LoRA adapters is merged, so that the folder can be served.

        Upstream saves the adapters alone, beside a config.json that promises a whole model. They go to the folder
        ``adapter`` in ``output_dir``. Called on every rank.

        Args:
            model: The model, or what upstream unwraps to it.
            tokenizer: The tokenizer, which is saved beside the model.
            output_dir: The folder to write.
            kwargs: Arguments of ``save_pretrained`` of transformers.
        """
        peft_model = self._unwrap_model(model)
        if not isinstance(peft_model, PeftModel):
            super().save_model(model, tokenizer, output_dir, **kwargs)
            return
        state = merged_state_dict(peft_model, self.stage)
        if self.is_rank_0():
            base: Any = peft_model.get_base_model()
            base.save_pretrained(output_dir, state_dict=state, **kwargs)
            tokenizer.save_pretrained(output_dir)
        super().save_model(model, tokenizer, str(Path(output_dir) / ADAPTER), **kwargs)


def make_strategy(args: SimpleNamespace) -> CovStrategy:
    """Return the strategy of a run, with the settings that upstream's ``get_strategy`` takes from the flags."""
    return CovStrategy(
        seed=args.train.seed,
        full_determinism=args.train.full_determinism_enable,
        max_norm=1.0,  # only of the configuration that models are loaded with; an optimizer has a limit of its own
        micro_train_batch_size=args.train.micro_batch_size,
        train_batch_size=args.train.batch_size,
        zero_stage=args.ds.zero_stage,
        args=args,
    )
