FROM python:3.11-slim
COPY . /src
RUN pip install --no-cache-dir '/src[relay,report]' && useradd --create-home flock && mkdir /work && chown flock /work
USER flock
WORKDIR /work
ENTRYPOINT ["flockrl"]
