"""The Ray actors: roles of models and vLLM engines. They only connect; the work is in the modules beside them."""
