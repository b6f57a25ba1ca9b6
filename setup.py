"""Metadata, dependencies and extras of the `albert-tf` distribution.

TensorFlow has three distributions that install into the same directory and so
exclude each other. Therefore each is an extra, not a dependency:

    pip install -e '.[cpu]'   # a laptop, or a machine with its own CUDA
    pip install -e '.[gpu]'   # NVIDIA GPUs, CUDA libraries from PyPI
    pip install -e '.[tpu]'   # a Cloud TPU VM

`constraints/` has exact versions that were tested together.
"""

import pathlib
import re

from setuptools import find_packages, setup

ROOT = pathlib.Path(__file__).parent
(VERSION,) = re.findall(
    r'^__version__ = "(.*)"$',
    (ROOT / "albert_tf/__init__.py").read_text(),
    re.M,
)
# `albert_tf.io.shipped` finds these directories here, and in an installation.
SHIPPED = ("configs", "constraints", "models")
PACKAGE_DIR = {f"albert_tf.{name}": name for name in SHIPPED}
# Pages and pictures that README links to are not in the distribution.
README = re.sub(
    r"!?\[([^][]*)\]\((?!https:)[^)]*\)",
    r"\1",
    (ROOT / "README.md").read_text(),
)

# tensorflow-text tokenizes in served models. It has no wheels for Windows. The
# extra `tpu` leaves it out, because it would install a second TensorFlow. It
# follows TensorFlow by months, and had no wheel for Python 3.14 in 2026.
TEXT = [
    "tensorflow-text>=2.20,<2.23; "
    "sys_platform != 'win32' and python_version < '3.14'"
]
# Builds records with the workers of a cluster.
DASK = ["distributed>=2024.8"]
# Reads Parquet.
DATA = ["pyarrow>=15"]
# Scores of spans of words.
SEQEVAL = ["seqeval>=1.2.2"]
# As in albert_tf/cluster/jax_private.py.
JAX = "jax>=0.10.2,<0.13"

setup(
    name="albert-tf",
    version=VERSION,
    description="Pretrain ALBERT with TensorFlow on Cloud TPUs and GPUs",
    long_description=README,
    long_description_content_type="text/markdown",
    license="Apache-2.0",
    keywords="albert bert language-model pretraining tensorflow keras tpu",
    project_urls={"Paper": "https://arxiv.org/abs/1909.11942"},
    classifiers=[
        "Development Status :: 4 - Beta",
        "Environment :: GPU :: NVIDIA CUDA",
        "Intended Audience :: Developers",
        "Intended Audience :: Science/Research",
        "Operating System :: POSIX :: Linux",
        "Programming Language :: Python :: 3.11",
        "Programming Language :: Python :: 3.12",
        "Programming Language :: Python :: 3.13",
        "Programming Language :: Python :: 3.14",
        "Topic :: Scientific/Engineering :: Artificial Intelligence",
        "Topic :: Text Processing :: Linguistic",
    ],
    python_requires=">=3.11,<3.15",
    # build/ itself has results, and old modules would get into a new wheel.
    options={"build": {"build_base": "build/package"}},
    entry_points={"console_scripts": ["albert-tf = albert_tf.__main__:main"]},
    packages=[
        *find_packages(include=["albert_tf*", "data_prep*", "tpu*"]),
        *PACKAGE_DIR,
    ],
    package_dir=PACKAGE_DIR,
    package_data={
        "albert_tf.first_model": ["*.html"],
        "albert_tf.configs": ["*/*", "*/include/*"],
        "albert_tf.constraints": ["*.txt"],
        "albert_tf.models": ["*/*"],
        "albert_tf.interop": ["*.json"],
        "albert_tf.serving": ["*.config"],
        "data_prep": ["sample_corpus/*", "sample_questions/*"],
    },
    install_requires=[
        "absl-py>=2.1",
        "fonttools>=4.55",  # the scripts of Unicode 16 or later
        "google-crc32c>=1.5",  # the checksums of TFRecord files
        "keras>=3.12,<4",
        "matplotlib>=3.8",
        "numpy>=2.0",
        "packaging>=22",
        "protobuf>=4.25",  # sentencepiece needs it to edit models
        "safetensors>=0.4",
        "scikit-learn>=1.5",  # with SciPy, the scores of fine-tuned models
        "scipy>=1.13",
        # Of segmentations with equal scores, 0.2.2 chooses another one than
        # 0.2.1; tensorflow-text, and so every served model, agrees with 0.2.1.
        # 4 of 20,153 lines of text differed. 0.2.1 has wheels for Python 3.14.
        "sentencepiece>=0.2.0,<=0.2.1",
        "sentencex>=1.0",
        "tensorboard>=2.20,<2.23",  # not installed by TensorFlow 2.21
        "tqdm>=4.66",
        "zstandard>=0.22",
    ],
    extras_require={
        "cpu": ["tensorflow>=2.20,<2.23", *TEXT],
        "gpu": ["tensorflow[and-cuda]>=2.20,<2.23", *TEXT],
        # tensorflow-tpu 2.20.0 is the newest; with a libtpu newer than
        # 0.0.30 `import tensorflow` aborts the process.
        "tpu": ["tensorflow-tpu==2.20.0", "libtpu==0.0.30"],
        "tpu-compile": [JAX.replace("jax", "jax[tpu]")],
        # The compiler alone, without the libraries of CUDA.
        "gpu-compile": [
            JAX.replace("jax", "jax[cuda13-local]"),
            "nvidia-cuda-nvcc>=13",
        ],
        # For --runtime=pjrt: CPUs only, NVIDIA GPUs, TPUs.
        "jax": [JAX],
        "jax-cuda13": [JAX.replace("jax", "jax[cuda13]")],
        "jax-tpu": [JAX.replace("jax", "jax[tpu]")],
        # tensorflow-datasets 4.9.10 needs importlib_resources, but does not
        # declare it.
        "tfds": ["tensorflow-datasets>=4.9.7", "importlib_resources>=6"],
        "dask": DASK,
        "data": DATA,
        "interop": [
            "torch>=2.4",
            "transformers>=4.46",
        ],
        "litert": ["ai-edge-litert>=2.0", "flatbuffers>=24"],
        "onnx": ["onnxruntime>=1.20", "onnxscript>=0.5"],
        "seqeval": SEQEVAL,
        "test": [
            *DASK,
            *DATA,
            *SEQEVAL,
            "hypothesis>=6.100",
            "ipykernel>=6.29",  # with nbclient, runs the notebooks
            "mkdocs-material>=9.6",  # with mkdocstrings, makes the site
            "mkdocstrings[python]>=1.0",
            "mypy>=1.11",
            "nbclient>=0.10",
            "pytest>=8",
            "pytest-xdist>=3.6",
            "pyyaml>=6",
            "ruff>=0.6",
            *TEXT,
        ],
    },
)
