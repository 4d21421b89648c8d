"""One of two ranks that gather parameters as ZeRO-3 does; ``tests/cluster/test_gathers_of_ranks.py`` starts them."""

from rank_group import serve

from openrlhf_cov.cluster import cpu_host

cpu_host.install()
cpu_host.adapt_deepspeed()
import deepspeed  # noqa: E402
import deepspeed.comm as dist  # noqa: E402
import torch  # noqa: E402

SIZES = (200_000, 300, 40)


def main(times: int) -> None:
    """Print how often a parameter was not whole once the last gather had been waited for."""
    wrong = 0
    for value in range(times):
        whole = [torch.empty(2 * size) for size in SIZES]
        parts = [torch.full((size,), float(value)) for size in SIZES]
        works = [dist.all_gather_into_tensor(*each, async_op=True) for each in zip(whole, parts, strict=True)]
        works[-1].wait()
        wrong += any(bool((each != value).any()) for each in whole)
        for work in works:
            work.wait()
    print(wrong)


if __name__ == "__main__":
    deepspeed.init_distributed("gloo")
    serve(main)
