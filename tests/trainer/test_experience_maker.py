import pickle
from types import SimpleNamespace

import pytest
import torch
from openrlhf.trainer.ppo_utils import experience_maker as upstream_maker
from openrlhf.trainer.ppo_utils.experience_maker import RemoteExperienceMaker

from openrlhf_cov.trainer import cpu_host
from openrlhf_cov.trainer.experience_maker import CovExperienceMaker


def test_a_sample_travels_with_its_own_entropies_only(monkeypatch):
    entropies = torch.rand(64, 1000)
    monkeypatch.setattr(RemoteExperienceMaker, "make_experience", lambda self, samples: samples)
    monkeypatch.setattr(RemoteExperienceMaker, "_flatten_results", lambda self, refs, copies: [{"entropy": entropies}])
    maker = object.__new__(CovExperienceMaker)
    maker.args = SimpleNamespace(ds=SimpleNamespace(ring_attn_size=1, tensor_parallel_size=1))
    maker.actor_model_group = SimpleNamespace(async_run_method=lambda method_name: None)
    (experience,) = maker.make_experience([SimpleNamespace(info={})])
    assert torch.equal(torch.stack(experience.info["entropy"]), entropies)
    assert len(pickle.dumps(experience.info)) < 2 * entropies.numel() * 4  # 4 bytes a token, and some overhead


@pytest.mark.parametrize(
    ("on_cpu_host", "shared", "waits"), [(True, True, False), (False, True, True), (False, False, False)]
)
def test_models_score_side_by_side_unless_they_share_a_gpu(monkeypatch, on_cpu_host, shared, waits):
    monkeypatch.setattr(cpu_host, "is_cpu_host", lambda: on_cpu_host)
    asked = []

    class Group:
        def async_run_method_batch(self, method_name, **kwargs):
            asked.append((method_name, kwargs))
            return ["log-probs"]

        def async_run_method(self, method_name):
            asked.append((method_name, {}))

    monkeypatch.setattr(upstream_maker, "ray", SimpleNamespace(get=lambda refs: asked.append("waits")))
    maker = object.__new__(CovExperienceMaker)
    assert maker._dispatch_forward(Group(), shared, sequences=[1]) == ["log-probs"]
    after = ["waits", ("empty_cache", {}), "waits"] if waits else []
    assert asked == [("forward", {"sequences": [1]}), *after]
