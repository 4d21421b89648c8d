"""Training of an embedded task in one process, without Ray, vLLM and DeepSpeed."""
