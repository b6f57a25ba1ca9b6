# An image for NVIDIA GPUs, with the CUDA libraries from PyPI; the host needs the
# driver and the NVIDIA Container Toolkit. kubernetes.yaml uses it. Build it from
# the clone:
#
#     docker build -f configs/cluster/gpu.Dockerfile -t REGISTRY/albert-tf:gpu .
#     docker run --gpus=all -v "$PWD:/work" REGISTRY/albert-tf:gpu --help
FROM python:3.12-slim-bookworm
COPY . /albert_tf
RUN pip install --no-cache-dir -c /albert_tf/constraints/tensorflow-2.21.txt \
    "/albert_tf[gpu]"
WORKDIR /work
ENTRYPOINT ["albert-tf"]
