"""The Ray actor in which a training is built and runs."""

from types import SimpleNamespace

import ray

from openrlhf_cov.utils import garbage_collection


@ray.remote
class TrainingActor:
    """The process of the controller.

    It is an actor because the driver of ``ray job submit`` runs on the head node, which often has little memory. The
    driver imports this module, which therefore imports neither PyTorch nor vLLM before ``train`` is called.
    """

    def train(self, args: SimpleNamespace) -> None:
        """Build the training with these flags, and run it until it is over.

        Args:
            args: The flags of the run, which have passed all checks.

        Raises:
            RunStopped: The run could not begin or go on, or a signal asked it to stop.
        """
        from openrlhf_cov.trainer.build import train
        from openrlhf_cov.trainer.ray import warm_engines

        garbage_collection.resume()  # the set-up of the worker has paused it
        try:
            train(args)
            warm_engines.give_back()
        finally:
            warm_engines.show_outputs()
