import sys

import pytest
import torch
from rank_group import RankGroup
from rank_models import Engine

from openrlhf_cov.errors import RunStopped
from openrlhf_cov.trainer.bad_updates import BadUpdates, gradient_of, gradients_are_finite


def watched(tmp_path, on_nan):
    """Return an engine whose optimizer says if the last update was skipped, and what watches it."""
    engine = Engine(torch.nn.Parameter(torch.zeros(1)), accumulation=1, dynamic=False)
    return engine, BadUpdates(engine, on_nan, tmp_path / "bad", rank=0)


def test_three_in_a_row_end_the_run(tmp_path):
    engine, updates = watched(tmp_path, "stop")
    for overflow in (True, True, False, True, True):  # never three in a row
        engine.optimizer.overflow = overflow
        assert updates.check(4, "batch") is overflow
    with pytest.raises(RunStopped, match=r"global step 6: the gradient is NaN .*; 3 in a row end the run"):
        updates.check(5, "batch")
    assert updates.total == 5


def test_skip_goes_on_and_keeps_the_first_batches(tmp_path):
    engine, updates = watched(tmp_path, "skip")
    engine.optimizer.overflow = True
    assert all(updates.check(7, {"batch": number}) for number in range(9))
    kept = sorted(path.name for path in (tmp_path / "bad").iterdir())
    assert kept == ["step8_1_rank0.pt", "step8_2_rank0.pt", "step8_3_rank0.pt"]
    assert torch.load(tmp_path / "bad" / kept[1], weights_only=False) == {"batch": 1}


NAN, INF = float("nan"), float("inf")


@pytest.mark.parametrize("bad", [NAN, INF, -INF])
@pytest.mark.parametrize("place", [0, 1])
def test_one_bad_element_of_one_parameter_is_seen(one_process, bad, place):
    parameters = [torch.nn.Parameter(torch.zeros(2)) for _ in range(3)]  # the last has no gradient
    for parameter in parameters[:2]:
        parameter.grad = torch.tensor([1e30, -1e30])  # their squares would be infinite, they are not
    assert gradients_are_finite(map(gradient_of, parameters)) is True
    parameters[place].grad[1] = bad
    assert gradients_are_finite(map(gradient_of, parameters)) is False
    parameters[place]._hp_grad = torch.zeros(2)  # what DeepSpeed's bf16 optimizer steps with
    assert gradients_are_finite(map(gradient_of, parameters)) is True


def test_one_rank_that_sees_it_is_enough(monkeypatch):
    # e.g. with tensor parallelism, where ranks hold different parameters; MIN with a rank that says 0
    monkeypatch.setattr(torch.distributed, "all_reduce", lambda verdict, op: verdict.zero_())
    assert gradients_are_finite([torch.ones(2)]) is False


class Plain:
    """A DeepSpeed engine of ZeRO stage 0: its optimizer steps whatever the gradients are."""

    def __init__(self, fp16=False) -> None:
        self.module = torch.nn.Linear(1, 1, bias=False)
        self.optimizer = torch.optim.SGD(self.module.parameters(), lr=1.0)
        self.fp16_enabled = lambda: fp16


@pytest.mark.parametrize(("fp16", "moved"), [(False, False), (True, True)])
def test_fp16_is_left_to_its_loss_scale(one_process, tmp_path, fp16, moved):
    engine = Plain(fp16)
    BadUpdates(engine, "skip", tmp_path, rank=0)
    engine.module.weight.grad = torch.full((1, 1), NAN)
    engine.optimizer.step()
    assert bool(engine.module.weight.isnan().any()) is moved  # SGD writes what it is given


ON_DEEPSPEED = """
from pathlib import Path
import deepspeed, torch
from openrlhf_cov.cluster import cpu_host
from openrlhf_cov.trainer.bad_updates import BadUpdates
from openrlhf_cov.cluster.extension_locks import remove_stale_locks
from rank_group import serve

remove_stale_locks()
cpu_host.adapt_deepspeed()
deepspeed.init_distributed("gloo")

def skips(stage, dtype, optimizer, folder):
    dtypes = {"fp32": torch.float32, "bf16": torch.bfloat16, "bf16 with fp32 gradients": torch.bfloat16}
    model = torch.nn.Linear(2, 1, bias=False, dtype=dtypes[dtype])
    config = {
        "train_micro_batch_size_per_gpu": 1,
        "zero_optimization": {"stage": stage},
        "gradient_clipping": 1.0,
        "bf16": {"enabled": dtypes[dtype] is torch.bfloat16},
        "data_types": {"grad_accum_dtype": "fp32" if "fp32" in dtype else None},
        "zero_allow_untested_optimizer": True,
        "zero_force_ds_cpu_optimizer": False,
    }
    if optimizer == "PyTorch's Adam":  # as in training on a CPU host
        settings = {"lr": 0.1, "weight_decay": 0.0, "torch_adam": True, "fused": True}
        config["optimizer"] = {"type": "AdamW", "params": settings}
    if optimizer == "DeepSpeed's Adam":  # as on a GPU host
        config["optimizer"] = {"type": "Adam", "params": {"lr": 0.1}}
    sgd = torch.optim.SGD(model.parameters(), lr=0.1) if optimizer == "SGD" else None
    engine, *_ = deepspeed.initialize(model=model, optimizer=sgd, config=config, model_parameters=model.parameters())
    updates = BadUpdates(engine, "skip", Path(folder), rank=0)

    def weights():
        with deepspeed.zero.GatheredParameters(list(engine.parameters())):
            return next(engine.parameters()).detach().clone()

    def update(factor):
        engine.backward((engine(torch.ones(1, 2, dtype=dtypes[dtype])) * factor).sum())
        engine.step()
        return updates.check(1, "batch")

    before = weights()
    for factor in (float("nan"), float("inf")):
        assert update(factor) is True
        assert torch.equal(weights(), before)
    assert update(1.0) is False
    # both elements of the gradient are 1, its norm is clipped from 2 ** 0.5 to 1; Adam divides by the gradient's size,
    # and DeepSpeed lets it make a step of zeros before the first:
    # (0.1 / (1 - 0.9 ** 2)) / (0.001 / (1 - 0.999 ** 2)) ** 0.5
    moved = 0.1 / 2**0.5 if optimizer == "SGD" else 0.1 * 0.7441
    # Neighbouring numbers of bf16, which has 8 significant bits, differ by up to 2 ** -7 of their size, and the
    # expected value is rounded too.
    bits = dict(rtol=0, atol=1e-5) if dtype == "fp32" else dict(rtol=2**-7, atol=1e-3)
    torch.testing.assert_close(weights(), before - moved, **bits)
    assert engine.skipped_steps == 2

serve(skips)
"""


@pytest.fixture(scope="module")
def on_deepspeed(tmp_path_factory):
    group = RankGroup([sys.executable, "-c", ON_DEEPSPEED], ranks=1, folder=tmp_path_factory.mktemp("rank"))
    yield group
    group.end()


@pytest.mark.e2e
@pytest.mark.parametrize(
    ("stage", "dtype", "optimizer"),
    [
        (0, "fp32", "SGD"),
        (0, "bf16", "PyTorch's Adam"),
        # compiled, which takes a minute
        pytest.param(0, "bf16", "DeepSpeed's Adam", marks=pytest.mark.long),
        (1, "fp32", "SGD"),
        (1, "bf16 with fp32 gradients", "SGD"),
        (2, "fp32", "SGD"),
        (2, "bf16", "SGD"),
        (3, "fp32", "SGD"),
    ],
)
def test_deepspeed_skips_the_update_and_goes_on(on_deepspeed, tmp_path, stage, dtype, optimizer):
    """On a real engine, in another process: NaN and infinity change no weight, the next loss does."""
    on_deepspeed(stage, dtype, optimizer, str(tmp_path))
