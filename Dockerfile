# syntax=docker/dockerfile:1
# Training on GPU hosts, with the versions of requirements.txt:
#   docker build -t openrlhf-cov .
#   docker run --gpus all --shm-size 16g -it openrlhf-cov openrlhf-cov doctor
# flash-attn is compiled, which takes most of the time. MAX_JOBS limits its memory (about 4 GB per job), and
# FLASH_ATTN_CUDA_ARCHS names the GPUs: 80 is A100, 90 is H100 and H200.

# The major version of CUDA must be that of the PyTorch that vLLM installs; the image has nvcc for flash-attn.
ARG CUDA_IMAGE=nvidia/cuda:13.0.3-cudnn-devel-ubuntu24.04
FROM ${CUDA_IMAGE}
ARG MAX_JOBS=8
ARG FLASH_ATTN_CUDA_ARCHS="80;90"

SHELL ["/bin/bash", "-euo", "pipefail", "-c"]
ENV PIP_NO_CACHE_DIR=1 \
    PIP_DISABLE_PIP_VERSION_CHECK=1 \
    PATH=/opt/venv/bin:${PATH}

# DeepSpeed compiles its optimizers at run time, with g++ and Python.h. bubblewrap is the sandbox of the code rewards.
# hadolint ignore=DL3008
RUN apt-get update \
    && apt-get install --yes --no-install-recommends \
        bubblewrap g++ git libibverbs1 ninja-build python3.12-dev python3.12-venv \
    && rm -rf /var/lib/apt/lists/* \
    && python3.12 -m venv /opt/venv

# The lists come before the sources, so that a change of the code does not compile flash-attn again.
WORKDIR /workspace/openrlhf_cov
COPY requirements.txt requirements-tools.txt ./
# hadolint ignore=DL3013
RUN pip install "$(grep '^vllm==' requirements.txt)" "setuptools>=77" wheel packaging ninja

# Another CUDA would fail after minutes of compilation, with a long error.
RUN torch_cuda=$(python -c 'import torch; print(torch.version.cuda)') \
    && if [ "${CUDA_VERSION%%.*}" != "${torch_cuda%%.*}" ]; then \
        echo "the image has CUDA ${CUDA_VERSION}, PyTorch was built for ${torch_cuda}: pass --build-arg CUDA_IMAGE=..." >&2; \
        exit 1; \
    fi
RUN MAX_JOBS="${MAX_JOBS}" FLASH_ATTN_CUDA_ARCHS="${FLASH_ATTN_CUDA_ARCHS}" \
    pip install --no-build-isolation -r requirements.txt

# The recipes of scripts/ are run from this folder.
COPY . .
RUN pip install --no-deps --no-build-isolation . \
    && openrlhf-cov --version
CMD ["bash"]
