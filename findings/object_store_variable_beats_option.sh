#!/usr/bin/env bash
# obstore 0.12.1 and deltalake 1.6.6: a variable of the environment beats the endpoint that the program gives.
#
# AWS_ENDPOINT_URL_S3 is meant as a default for programs that say nothing. The object_store library that both are made
# of takes it over an endpoint that was given by argument or storage_options=, so a program that is pointed to a store
# of its own, say for tests, talks to that of the environment. AWS_ENDPOINT_URL does not beat the option.
# AWS_IGNORE_CONFIGURED_ENDPOINT_URLS=true, which turns both off for Amazon's clients, changes nothing.
# Expected: what a program says wins, as in boto3.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet --disable-pip-version-check --no-cache-dir obstore==0.12.1 deltalake==1.6.6
"$folder/venv/bin/python" - <<'PYTHON'
import http.server
import os
import threading


def serve() -> tuple[http.server.ThreadingHTTPServer, str, list[str]]:
    asked: list[str] = []

    class Handler(http.server.BaseHTTPRequestHandler):
        def log_message(self, *arguments: object) -> None:
            pass

        def do_GET(self) -> None:
            asked.append(self.path)
            self.send_response(404)
            self.send_header("Content-Length", "0")
            self.end_headers()

        do_HEAD = do_GET

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    return server, f"http://127.0.0.1:{server.server_port}", asked


for name in [name for name in os.environ if name.startswith("AWS_")]:
    del os.environ[name]
os.environ.update(AWS_ACCESS_KEY_ID="a", AWS_SECRET_ACCESS_KEY="b", AWS_REGION="us-east-1", AWS_CONFIG_FILE=os.devnull)
import deltalake
import obstore.store

mine, of_mine, asked_mine = serve()
other, of_other, asked_other = serve()


def by_obstore() -> None:
    store = obstore.store.S3Store(
        "bucket", endpoint=of_mine, client_options={"allow_http": True}, retry_config={"max_retries": 0}
    )
    obstore.head(store, "a")


def by_deltalake() -> None:
    options = {"endpoint_url": of_mine, "allow_http": "true", "max_retries": "0"}
    deltalake.DeltaTable("s3://bucket/table", storage_options=options)


seen = {}
for variables in (
    {},
    {"AWS_ENDPOINT_URL": of_other},
    {"AWS_ENDPOINT_URL_S3": of_other, "AWS_IGNORE_CONFIGURED_ENDPOINT_URLS": "true"},
):
    os.environ.update(variables)
    for call in (by_obstore, by_deltalake):
        asked_mine.clear(), asked_other.clear()
        try:
            call()
        except Exception:  # there is nothing at either store
            pass
        endpoint = "option's" if asked_mine else "variable's" if asked_other else "none"
        seen[", ".join(variables) or "no variable", call.__name__[3:]] = endpoint
    for name in variables:
        del os.environ[name]
for (variables, library), store in seen.items():
    print(f"{variables}: {library} asks the {store} store")
for server in (mine, other):
    server.shutdown()
    server.server_close()
assert list(seen.values()) == ["option's"] * 4 + ["variable's"] * 2, "the option wins now"
PYTHON
