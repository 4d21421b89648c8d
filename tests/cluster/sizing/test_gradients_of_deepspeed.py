"""What DeepSpeed does with ``--ds.grad_accum_dtype``, on a real engine with upstream's own config."""

import json
import sys

import pytest
from rank_group import RankGroup

ON_DEEPSPEED = """
import json
from openrlhf_cov.cluster import cpu_host
cpu_host.install()
import deepspeed, torch
from openrlhf.utils.deepspeed.deepspeed_utils import get_train_ds_config
from openrlhf_cov.cluster.extension_locks import remove_stale_locks
from rank_group import serve

remove_stale_locks()
cpu_host.adapt_deepspeed()
deepspeed.init_distributed("gloo")

def accumulate(stage, grad_accum_dtype):
    model = torch.nn.Linear(4, 1, bias=False, dtype=torch.bfloat16)
    config = get_train_ds_config(
        offload=False, adam_offload=False, stage=stage, param_dtype="bf16", zpg=1, grad_accum_dtype=grad_accum_dtype
    )
    config |= {"train_micro_batch_size_per_gpu": 1, "gradient_accumulation_steps": 2, "train_batch_size": 2}
    config |= {"zero_allow_untested_optimizer": True, "zero_force_ds_cpu_optimizer": False}
    sgd = torch.optim.SGD(model.parameters(), lr=0.0)
    try:
        engine, *_ = deepspeed.initialize(
            model=model, optimizer=sgd, config=config, model_parameters=model.parameters()
        )
    except NotImplementedError as error:
        print(json.dumps(["refused"]))
        return
    for factor in (2.0, 2.0**-9):  # halved, as two micro-batches make an update
        engine.backward((engine(torch.ones(1, 4, dtype=torch.bfloat16)) * factor).sum())
        if not engine.is_gradient_accumulation_boundary():
            engine.step()
    optimizer = engine.optimizer
    if stage == 1 and grad_accum_dtype:
        held = [*optimizer.fp32_groups_gradients_flat, *(param.grad for param in model.parameters())]
    else:
        held = optimizer.averaged_gradients[0]
    held = [[str(each.dtype), each.numel(), each.flatten()[0].item()] for each in held]
    print(json.dumps([str(engine.communication_data_type), held]))

serve(accumulate)
"""

FP32, BF16 = "torch.float32", "torch.bfloat16"


@pytest.fixture(scope="module")
def accumulate(tmp_path_factory):
    group = RankGroup([sys.executable, "-c", ON_DEEPSPEED], ranks=1, folder=tmp_path_factory.mktemp("rank"))
    yield group
    group.end()


@pytest.mark.e2e
@pytest.mark.parametrize(
    ("stage", "dtype", "held"),
    [
        # 1 + 2 ** -10 has 11 bits; bf16 keeps 8 of them
        (3, "fp32", [[FP32, 4, 1.0009765625]]),
        (3, None, [[BF16, 4, 1.0]]),
        # stage 2 takes the flag and accumulates in bf16 all the same
        (2, "fp32", [[BF16, 4, 1.0]]),
        # stage 1 holds both kinds while it computes a micro-batch
        (1, "fp32", [[FP32, 4, 1.0], [BF16, 4, 2**-10]]),
        (1, None, [[BF16, 4, 1.0]]),
    ],
)
def test_the_type_in_which_a_stage_accumulates(accumulate, stage, dtype, held):
    communication, found = json.loads(accumulate(stage, dtype)[-1])
    assert found == held
    # ranks exchange gradients in bf16 in every stage, whatever the type in which they accumulate
    assert communication == BF16


@pytest.mark.e2e
def test_stage_0_refuses_another_type(accumulate):
    assert json.loads(accumulate(0, "fp32")[-1]) == ["refused"]
