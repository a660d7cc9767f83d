"""A store of objects in this process, which answers as S3 does to who reads: heads, ranges and lists of keys.

As Google's it answers with lists alone.
"""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import Any
from urllib.parse import parse_qs, unquote, urlsplit
from xml.sax.saxutils import escape

BUCKET = "logs"
LISTED = """<?xml version="1.0" encoding="UTF-8"?>
<ListBucketResult xmlns="http://s3.amazonaws.com/doc/2006-03-01/"><Name>logs</Name><MaxKeys>1000</MaxKeys>
<KeyCount>{count}</KeyCount><IsTruncated>false</IsTruncated>{keys}</ListBucketResult>"""
KEY = """<Contents><Key>{key}</Key><LastModified>2026-01-01T00:00:00.000Z</LastModified><ETag>"x"</ETag>
<Size>{size}</Size><StorageClass>STANDARD</StorageClass></Contents>"""


GOOGLE = f"/storage/v1/b/{BUCKET}/o"


def _described(folder: Path, path: Path) -> dict[str, Any]:
    """What Google's interface says of an object."""
    named = {"kind": "storage#object", "bucket": BUCKET, "name": path.relative_to(folder).as_posix()}
    moments = dict.fromkeys(("timeCreated", "updated"), "2026-01-01T00:00:00Z")
    return {**named, **moments, "size": str(path.stat().st_size), "generation": "1", "metageneration": "1"}


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    folder: Path

    def do_HEAD(self) -> None:
        self.do_GET()

    def do_GET(self) -> None:
        parts = urlsplit(self.path)
        if parts.path.startswith(GOOGLE):
            self._google(parts.path.removeprefix(GOOGLE).removeprefix("/"), parse_qs(parts.query))
            return
        _, bucket, *key = unquote(parts.path).split("/", 2)
        if bucket == BUCKET and key and key[0]:
            self._object(self.folder / key[0])
        elif bucket == BUCKET:
            self._list(parse_qs(parts.query).get("prefix", [""])[0])
        else:
            self._send(404, b"")

    def _google(self, key: str, asked: dict[str, list[str]]) -> None:
        path = self.folder / unquote(key)
        if key:
            self._json(_described(self.folder, path) if path.is_file() else None)
        else:
            files = sorted(path for path in self.folder.rglob("*") if path.is_file())
            items = [_described(self.folder, path) for path in files]
            prefix = asked.get("prefix", [""])[0]
            self._json({"kind": "storage#objects", "items": [one for one in items if one["name"].startswith(prefix)]})

    def _json(self, data: dict[str, Any] | None) -> None:
        text = json.dumps(data or {"error": {"code": 404}}).encode()
        self._send(404 if data is None else 200, text, {"Content-Type": "application/json"})

    def _object(self, path: Path) -> None:
        if not path.is_file():
            self._send(404, b"")
            return
        data, asked = path.read_bytes(), self.headers.get("Range")
        if asked is None:
            self._send(200, data)
            return
        first, last = asked.removeprefix("bytes=").split("-")
        self._send(206, data[int(first) : int(last) + 1], {"Content-Range": f"bytes {first}-{last}/{len(data)}"})

    def _list(self, prefix: str) -> None:
        keys = {path.relative_to(self.folder).as_posix(): path for path in self.folder.rglob("*") if path.is_file()}
        met = sorted((key, path.stat().st_size) for key, path in keys.items() if key.startswith(prefix))
        lines = "".join(KEY.format(key=escape(key), size=size) for key, size in met)
        self._send(200, LISTED.format(count=len(met), keys=lines).encode(), {"Content-Type": "application/xml"})

    def _send(self, status: int, data: bytes, headers: dict[str, str] | None = None) -> None:
        self.send_response(status)
        for name, value in {"Last-Modified": "Thu, 01 Jan 2026 00:00:00 GMT", "ETag": '"x"', **(headers or {})}.items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(data)

    def log_message(self, *given: object) -> None:
        pass


@contextmanager
def object_store(folder: Path, kind: str = "s3") -> Iterator[str]:
    """Give the address of the files in a folder, with what must stand behind a key, between braces: ``{}``."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), type("Handler", (_Handler,), {"folder": folder}))
    thread = Thread(target=server.serve_forever)
    thread.start()
    try:
        here = f"127.0.0.1%3A{server.server_port}"
        login, region = ("key:secret", "&region=us-east-1") if kind == "s3" else ("anonymous", "")
        yield f"{kind}://{login}@{BUCKET}/{{}}?scheme=http{region}&endpoint_override={here}"
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
