"""The calls that a global step made on models and engines before the loop was written anew.

How they were recorded: at commit 2bb97ad, the last one whose controllers were subclasses of OpenRLHF 0.11.2's
``PPOTrainer`` and ``TrainingActor``, ``train_step`` of those controllers ran once per layout on ``RecordedGroup`` and
``RecordedEngine`` of ``recording.py``, with a ``Recorder`` in the place of ``ray`` and with ``cpu_host.is_cpu_host``
false, as on GPUs. The eight samples of the step had two prompts. The rollouts were recorded likewise, from
``SamplesGenerator.generate_samples``.

A line ``model.method`` is a call, and ``wait model.method`` the first wait for its result. Equal lines in a row, such
as those of several engines, are one line.
"""

# Policy and reference on GPUs of their own.
PLAIN = [
    "policy.forward",
    "reference.forward",
    "wait policy.forward",
    "wait reference.forward",
    "policy.take_scored",
    "wait policy.take_scored",
    "policy.append",
    "wait policy.append",
    "policy.start_step",
    "wait policy.start_step",
    "policy.fit",
    "wait policy.fit",
    "engines.check_health",
    "wait engines.check_health",
    "policy.broadcast_to_vllm",
    "wait policy.broadcast_to_vllm",
]

# --train.colocate_all --vllm.enable_sleep --ds.enable_sleep, with a reward model.
COLOCATED_WITH_SLEEP = [
    "reward.forward",
    "wait reward.forward",
    "reward.empty_cache",
    "wait reward.empty_cache",
    "policy.forward",
    "wait policy.forward",
    "policy.empty_cache",
    "wait policy.empty_cache",
    "reference.forward",
    "wait reference.forward",
    "reference.empty_cache",
    "wait reference.empty_cache",
    "policy.take_scored",
    "wait policy.take_scored",
    "policy.append",
    "wait policy.append",
    "policy.start_step",
    "wait policy.start_step",
    "policy.reload_states",
    "wait policy.reload_states",
    "policy.fit",
    "wait policy.fit",
    "policy.offload_states",
    "wait policy.offload_states",
    "engines.check_health",
    "wait engines.check_health",
    "engines.wake_up {'tags': ['weights']}",
    "wait engines.wake_up {'tags': ['weights']}",
    "policy.broadcast_to_vllm",
    "wait policy.broadcast_to_vllm",
]

# With a critic; all models on GPUs of their own.
CRITIC = [
    "policy.forward",
    "critic.forward",
    "reference.forward",
    "wait policy.forward",
    "wait reference.forward",
    "wait critic.forward",
    "policy.take_scored",
    "wait policy.take_scored",
    "policy.append",
    "critic.append",
    "wait policy.append",
    "wait critic.append",
    "policy.start_step",
    "wait policy.start_step",
    "critic.start_step",
    "wait critic.start_step",
    "critic.fit",
    "policy.fit",
    "wait critic.fit",
    "wait policy.fit",
    "engines.check_health",
    "wait engines.check_health",
    "policy.broadcast_to_vllm",
    "wait policy.broadcast_to_vllm",
]

# --train.colocate_critic_reward --train.colocate_actor_ref, with critic and reward model.
CRITIC_BESIDE_REWARD_MODEL = [
    "reward.forward",
    "policy.forward",
    "wait policy.forward",
    "policy.empty_cache",
    "wait policy.empty_cache",
    "wait reward.forward",
    "reward.empty_cache",
    "wait reward.empty_cache",
    "critic.forward",
    "wait critic.forward",
    "critic.empty_cache",
    "wait critic.empty_cache",
    "reference.forward",
    "wait reference.forward",
    "reference.empty_cache",
    "wait reference.empty_cache",
    "policy.take_scored",
    "wait policy.take_scored",
    "policy.append",
    "critic.append",
    "wait policy.append",
    "wait critic.append",
    "policy.start_step",
    "wait policy.start_step",
    "critic.start_step",
    "wait critic.start_step",
    "critic.fit",
    "policy.fit",
    "wait critic.fit",
    "wait policy.fit",
    "engines.check_health",
    "wait engines.check_health",
    "policy.broadcast_to_vllm",
    "wait policy.broadcast_to_vllm",
]

# --train.colocate_all --vllm.enable_sleep --ds.enable_sleep, with critic and reward model.
CRITIC_WITH_SLEEP = [
    "reward.forward",
    "wait reward.forward",
    "reward.empty_cache",
    "wait reward.empty_cache",
    "policy.forward",
    "wait policy.forward",
    "policy.empty_cache",
    "wait policy.empty_cache",
    "critic.forward",
    "wait critic.forward",
    "critic.empty_cache",
    "wait critic.empty_cache",
    "reference.forward",
    "wait reference.forward",
    "reference.empty_cache",
    "wait reference.empty_cache",
    "policy.take_scored",
    "wait policy.take_scored",
    "policy.append",
    "critic.append",
    "wait policy.append",
    "wait critic.append",
    "policy.start_step",
    "wait policy.start_step",
    "critic.start_step",
    "wait critic.start_step",
    "critic.reload_states",
    "wait critic.reload_states",
    "critic.fit",
    "wait critic.fit",
    "critic.offload_states",
    "wait critic.offload_states",
    "policy.reload_states",
    "wait policy.reload_states",
    "policy.fit",
    "wait policy.fit",
    "policy.offload_states",
    "wait policy.offload_states",
    "engines.check_health",
    "wait engines.check_health",
    "engines.wake_up {'tags': ['weights']}",
    "wait engines.wake_up {'tags': ['weights']}",
    "policy.broadcast_to_vllm",
    "wait policy.broadcast_to_vllm",
]

# A step of --critic.freezing_steps.
CRITIC_ALONE = [
    "policy.forward",
    "critic.forward",
    "reference.forward",
    "wait policy.forward",
    "wait reference.forward",
    "wait critic.forward",
    "policy.take_scored",
    "wait policy.take_scored",
    "policy.append",
    "critic.append",
    "wait policy.append",
    "wait critic.append",
    "policy.start_step",
    "wait policy.start_step",
    "critic.start_step",
    "wait critic.start_step",
    "critic.fit",
    "wait critic.fit",
    "engines.check_health",
    "wait engines.check_health",
    "policy.broadcast_to_vllm",
    "wait policy.broadcast_to_vllm",
]

# --train.async_enable; the lock keeps the generating actor from its engines.
ASYNCHRONOUS = [
    "policy.forward",
    "reference.forward",
    "wait policy.forward",
    "wait reference.forward",
    "policy.take_scored",
    "wait policy.take_scored",
    "policy.append",
    "wait policy.append",
    "policy.start_step",
    "wait policy.start_step",
    "policy.fit",
    "wait policy.fit",
    "lock.acquire",
    "engines.check_health",
    "wait engines.check_health",
    "policy.broadcast_to_vllm",
    "wait policy.broadcast_to_vllm",
    "lock.release",
]

# --train.async_enable --train.partial_rollout_enable.
PARTIAL_ROLLOUT = [
    "policy.forward",
    "reference.forward",
    "wait policy.forward",
    "wait reference.forward",
    "policy.take_scored",
    "wait policy.take_scored",
    "policy.append",
    "wait policy.append",
    "policy.start_step",
    "wait policy.start_step",
    "policy.fit",
    "wait policy.fit",
    "lock.acquire",
    "engines.pause_generation",
    "wait engines.pause_generation",
    "engines.check_health",
    "wait engines.check_health",
    "policy.broadcast_to_vllm",
    "wait policy.broadcast_to_vllm",
    "engines.resume_generation",
    "wait engines.resume_generation",
    "lock.release",
]

# A rollout.
ROLLOUT = [
    "engines.generate_responses",
]

# A rollout with --vllm.enable_sleep.
ROLLOUT_WITH_SLEEP = [
    "engines.wake_up",
    "wait engines.wake_up",
    "engines.generate_responses",
    "engines.sleep",
    "wait engines.sleep",
]

# Former method -> method of the roles now. With None the call has gone: the samples and the number of the step come
# with ``update``, and the entropies with ``score``.
METHODS = {
    "forward": "score",
    "fit": "update",
    "broadcast_to_vllm": "send_weights",
    "append": None,
    "start_step": None,
    "take_scored": None,
}


def translated(recorded: list[str]) -> list[str]:
    """Return the lines with the names that the methods have now, without calls that have gone and without the lock."""
    lines = []
    for line in recorded:
        owner, method = line.split(".", 1)
        name = METHODS.get(method, method)
        if name is not None and owner != "lock":
            lines.append(f"{owner}.{name}")
    return lines
