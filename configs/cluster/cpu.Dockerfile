# An image for one machine without accelerator. Build it from the clone:
#
#     docker build -f configs/cluster/cpu.Dockerfile -t albert-tf:cpu .
#     docker run -v "$PWD:/work" albert-tf:cpu run-pretraining --help
FROM python:3.12-slim-bookworm
COPY . /albert_tf
RUN pip install --no-cache-dir -c /albert_tf/constraints/tensorflow-2.21.txt \
    "/albert_tf[cpu]"
WORKDIR /work
ENTRYPOINT ["albert-tf"]
