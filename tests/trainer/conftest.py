"""Upstream's modules import on a CPU host only with the stand-ins installed; Ray and engines without processes."""

import random

import pytest
import torch
from played_engines import SAMPLES, Clock, Engine, all_steps, half_pass
from played_ray import PlayedRay, install
from run_flags import run_flags

from openrlhf_cov.cluster import cpu_host
from openrlhf_cov.config import SamplingConfig

cpu_host.install()


@pytest.fixture
def uncompiled(monkeypatch):
    """In fp32. Upstream compiles its entropy, anew for every shape."""
    from openrlhf.utils import utils

    monkeypatch.setattr(utils, "convert_to_torch_dtype", utils.convert_to_torch_dtype)  # as it was, afterwards
    cpu_host.accept_fp32()
    with torch.compiler.set_stance("force_eager"):
        yield


@pytest.fixture
def played_ray(monkeypatch) -> PlayedRay:
    """Ray's functions on references, played until the end of the test."""
    played = PlayedRay()
    install(monkeypatch, played)
    return played


@pytest.fixture
def gpu_host(monkeypatch):
    """A host with GPUs, as far as flags and arguments follow from it."""
    monkeypatch.setattr(cpu_host, "is_cpu_host", lambda: False)


@pytest.fixture
def one_process(tmp_path):
    """A process group of one; upstream's trainer asks for the rank and waits at barriers."""
    torch.distributed.init_process_group("gloo", init_method=f"file://{tmp_path}/store", rank=0, world_size=1)
    yield
    torch.distributed.destroy_process_group()


@pytest.fixture
def make_sampler(monkeypatch):
    """Function (settings...) -> (``Sampler`` of two samples per prompt, its engines); prompts are "0", "1", ..."""
    from openrlhf_cov.trainer.rollout import generation
    from openrlhf_cov.trainer.rollout.generation import EngineGroup
    from openrlhf_cov.trainer.rollout.prompts import Prompt, PromptOrder
    from openrlhf_cov.trainer.rollout.requests import RolloutRequests
    from openrlhf_cov.trainer.rollout.sampler import Sampler

    class DataOrder(PromptOrder):
        """Draws prompts in the order of the data, so that tests can say which ones a step has."""

        def permutation(self, episode):
            return list(range(self.prompts))

    def make(score=half_pass, prompts=1000, batch=4, engines=1, delays=0, failures=None, filtering=True, **settings):
        episodes, ranks = settings.pop("episodes", 1), settings.pop("ranks", 1)
        train_batch, generated = settings.pop("train_batch", SAMPLES), settings.pop("generated", None)
        dynamic_batch, micro = settings.pop("dynamic_batch", False), settings.pop("micro", 2)
        queue = settings.pop("queue", 0)
        clock = Clock()
        monkeypatch.setattr(generation, "ray", clock)
        chance = random.Random(delays)
        handles = [Engine(clock, score, chance, (failures or {}).get(place)) for place in range(engines)]
        args = run_flags({
            **vars(SamplingConfig(**settings)), "data.max_len": 100, "rollout.batch_size": batch,
            "rollout.n_samples_per_prompt": SAMPLES, "rollout.vllm_generate_batch_size": generated or batch,
            "rollout.micro_batch_size": micro, "rollout.max_new_tokens": 10, "train.seed": 1,
            "algo.dynamic_filtering_enable": filtering, "train.num_episodes": episodes,
            "train.batch_size": train_batch, "train.dynamic_batch_enable": dynamic_batch,
            "train.async_enable": queue > 0,
            "train.async_queue_size": max(1, queue), "eval.temperature": 0.5, "eval.n_samples_per_prompt": SAMPLES,
            "ds.zero_stage": 3, "actor.num_gpus_per_node": ranks,
        })  # fmt: skip
        data = [Prompt(place, str(place), f"label {place}", source="numbers") for place in range(prompts)]
        sampler = Sampler(args, data, EngineGroup(handles), RolloutRequests(args, "tokenizer"))
        sampler.order = DataOrder(prompts, seed=1)
        return sampler, handles

    return make


@pytest.fixture
def check_resuming(make_sampler):
    """Function (arguments of a sampler) that stops such a run after each of its steps, in turn, and resumes it."""

    def check(run: dict) -> None:
        expected = all_steps(make_sampler(**run)[0])
        for done in range(1, len(expected) + 1):
            first, _ = make_sampler(**run)
            assert all_steps(first, done) == expected[:done]
            second, _ = make_sampler(**run)
            second.load_state_dict(first.state_dict())
            assert all_steps(second) == expected[done:]

    return check
