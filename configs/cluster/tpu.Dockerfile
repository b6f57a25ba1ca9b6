# An image for a TPU VM of one host. tpu_host.sh needs no image. Build it from
# the clone:
#
#     docker build -f configs/cluster/tpu.Dockerfile -t albert-tf:tpu .
#     docker run --privileged --net=host -v "$PWD:/work" albert-tf:tpu \
#         run-pretraining --help
FROM python:3.11-slim-bookworm
COPY . /albert_tf
# The pins of libtpu and tensorflow are for other extras.
RUN sed -E '/^(libtpu|tensorflow)==/d' \
    /albert_tf/constraints/tensorflow-2.20.txt > /tmp/constraints.txt \
    && pip install --no-cache-dir -c /tmp/constraints.txt "/albert_tf[tpu]"
WORKDIR /work
ENTRYPOINT ["albert-tf"]
