"""The order of things in upstream's loop, which resuming and stopping rely on."""

import ast

FIT = ("trainer/ppo_trainer.py", "PPOTrainer.fit")


def test_a_resumed_run_gets_its_states_then_its_weights_then_its_data(upstream):
    code = ast.unparse(upstream.find(*FIT))
    order = ("self.init_checkpoint_states()", "self.restore_best_checkpoint_state(", "self.broadcast_to_vllm()")
    order += ("self.prompts_dataloader.load_state_dict(", "self.samples_generator.generate_samples(")
    assert [code.count(part) for part in order] == [1] * 5
    assert sorted(order, key=code.find) == list(order)
    assert "if global_step:\n        self.broadcast_to_vllm()" in code


def test_an_evaluation_follows_the_checkpoint_of_its_step(upstream):
    code = ast.unparse(upstream.find(*FIT))
    due = "if global_step % self.args.eval.steps == 0 and self.eval_dataloader:"
    assert 0 < code.find("self.save_logs_and_checkpoints(") < code.find(due) < code.find("self.save_best_checkpoint(")
    (evaluated,) = upstream.calls(*FIT, "self.evaluate")
    assert [ast.unparse(arg) for arg in evaluated.args] == ["global_step"]
    assert [keyword.arg for keyword in evaluated.keywords] == [None]
    for setting in ("temperature", "n_samples_per_prompt"):
        assert f"eval_generate_kwargs['{setting}'] = self.args.eval.{setting}" in code


def test_the_client_states_are_those_we_restore(upstream, ours):
    (states,) = (
        node.value
        for node in ast.walk(upstream.find(*FIT))
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "client_states"
    )
    (own,) = (
        node.value
        for node in ours.tree("trainer/ppo_trainer.py").body
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "CLIENT_STATES"
    )
    assert [key.value for key in states.keys] == list(ast.literal_eval(own))


def test_weights_are_sent_by_the_base_class_and_asynchronously_under_a_lock(upstream):
    for path, trainer in (("trainer/ppo_trainer.py", "PPOTrainer"), ("trainer/ppo_trainer_async.py", "TrainingActor")):
        own = {node.name for node in upstream.find(path, trainer).body if isinstance(node, ast.FunctionDef)}
        assert ("broadcast_to_vllm" in own) == (trainer == "TrainingActor")
    code = ast.unparse(upstream.find("trainer/ppo_trainer_async.py", "TrainingActor.broadcast_to_vllm"))
    places = [code.find(part) for part in ("vllm_lock.acquire", "super().broadcast_to_vllm()", "vllm_lock.release")]
    assert -1 < places[0] < places[1] < places[2]
