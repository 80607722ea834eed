"""An S3 server on this machine, which can kill whoever asks it for an object."""

import threading
import urllib.request
from collections.abc import Callable
from pathlib import Path

import boto3
import psutil
from moto.server import DomainDispatcherApplication, create_backend_app
from werkzeug.serving import WSGIRequestHandler, make_server


class Silent(WSGIRequestHandler):
    def log(self, *args, **kwargs):
        pass


class Bucket:
    """The bucket `data` of a server of its own.

    Attributes:
        address: of the server.
        fatal: end of a key -> function of the process that asks for such an object, called before the answer.
    """

    def __init__(self):
        self.fatal: dict[str, Callable[[int], None]] = {}
        self._app = DomainDispatcherApplication(create_backend_app)
        self._server = make_server("127.0.0.1", 0, self._answer, threaded=True, request_handler=Silent)
        self.address = f"http://127.0.0.1:{self._server.port}"
        threading.Thread(target=self._server.serve_forever, daemon=True).start()
        self.environment = {"AWS_ENDPOINT_URL": self.address, "AWS_DEFAULT_REGION": "us-east-1"}
        self.environment |= {"AWS_ACCESS_KEY_ID": "test", "AWS_SECRET_ACCESS_KEY": "test"}
        key = {"aws_access_key_id": "test", "aws_secret_access_key": "test"}
        self.s3 = boto3.client("s3", "us-east-1", endpoint_url=self.address, **key)
        self.s3.create_bucket(Bucket="data")

    def upload(self, folder: Path, prefix: str) -> None:
        """Put all files below a folder under a prefix."""
        for file in folder.rglob("*"):
            if file.is_file():
                key = f"{prefix}/{file.relative_to(folder).as_posix()}"
                self.s3.put_object(Bucket="data", Key=key, Body=file.read_bytes())

    def keys(self, prefix: str) -> dict[str, object]:
        """What lies under a prefix, and when it was written."""
        pages = self.s3.get_paginator("list_objects_v2").paginate(Bucket="data", Prefix=f"{prefix}/")
        found = [entry for page in pages for entry in page.get("Contents", [])]
        return {entry["Key"].removeprefix(f"{prefix}/"): entry["LastModified"] for entry in found}

    def read(self, key: str) -> bytes:
        return self.s3.get_object(Bucket="data", Key=key)["Body"].read()

    def ask_for_credentials(self, wanted: bool) -> None:
        """Whether requests from now on need the key of a known user, of whom there are none."""
        address, plain = f"{self.address}/moto-api/reset-auth", {"Content-Type": "text/plain"}
        request = urllib.request.Request(address, b"0" if wanted else b"inf", plain)
        urllib.request.urlopen(request).read()

    def stop(self) -> None:
        self._server.shutdown()

    def _answer(self, environ, start_response):
        method, path = environ["REQUEST_METHOD"], environ["PATH_INFO"]
        for end, kill in list(self.fatal.items()):
            if method == "GET" and path.endswith(end):
                port = int(environ["REMOTE_PORT"])
                kill(next(one.pid for one in psutil.net_connections("tcp") if one.laddr.port == port and one.pid))
        return self._app(environ, start_response)
