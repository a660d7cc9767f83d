# ShardBench in a container: the steps of noxfile.py's install(), of the same locked packages by their hashes.
#   CPU:   docker build -t shardbench .
#   CUDA:  docker build -t shardbench:cuda --build-arg ENGINE=cuda .
# docs/container.md says how to run it. The same base serves both: wheels bring CUDA with them, the host its driver.

FROM python:3.11-slim AS build
ARG ENGINE=cpu
# Settings of pip, where the machine that builds needs others: pip reads them by these names.
ARG PIP_INDEX_URL
ARG PIP_EXTRA_INDEX_URL
RUN python -m venv /opt/shardbench
ENV PATH=/opt/shardbench/bin:$PATH PIP_NO_CACHE_DIR=1 PIP_DISABLE_PIP_VERSION_CHECK=1
WORKDIR /build
COPY requirements/ requirements/
RUN python requirements/install.py ${ENGINE}
COPY pyproject.toml setup.py README.md LICENSE ./
COPY src/ src/
COPY baselines/ baselines/
COPY datasets/ datasets/
COPY benchmarks/ benchmarks/
# Not editable: nothing of the checkout is in the image. The lock has the setuptools that builds the wheel.
RUN python -m pip install --quiet --no-deps --no-build-isolation .

FROM python:3.11-slim
RUN useradd --create-home --uid 1000 shardbench \
 && mkdir --parents /bench/data /bench/runs \
 && chown --recursive shardbench:shardbench /bench
COPY --from=build /opt/shardbench /opt/shardbench
ENV PATH=/opt/shardbench/bin:$PATH \
    PYTHONSAFEPATH=1 \
    OMP_NUM_THREADS=1 \
    OMP_WAIT_POLICY=PASSIVE \
    NVIDIA_DRIVER_CAPABILITIES=compute,utility
USER shardbench
WORKDIR /bench
VOLUME ["/bench/data", "/bench/runs"]
ENTRYPOINT ["shardbench"]
CMD ["--help"]
