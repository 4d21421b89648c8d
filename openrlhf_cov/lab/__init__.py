"""A laboratory for methods: GRPO on the embedded tasks in one process, without Ray, vLLM and DeepSpeed."""
