"""A small server that speaks the parts of the hub's file protocol that loading a folder uses."""

import hashlib
import json
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import unquote, urlsplit


class Hub(ThreadingHTTPServer):
    """Repositories in memory, on loopback: name -> commit -> path -> content."""

    def __init__(self):
        super().__init__(("127.0.0.1", 0), _Handler)
        self.repos, self.branches, self.requests = {}, {}, []
        self.url = f"http://127.0.0.1:{self.server_port}"

    def __enter__(self):
        threading.Thread(target=self.serve_forever, daemon=True).start()
        return self

    def __exit__(self, *_):
        self.shutdown()
        self.server_close()

    def commit(self, repo, revision, files):
        """Store a commit on a branch; returns its hash."""
        content = repr(sorted((path, hashlib.sha256(data).hexdigest()) for path, data in files.items()))
        sha = hashlib.sha1((repo + content).encode()).hexdigest()
        self.repos.setdefault(repo, {})[sha] = files
        self.branches[repo, revision] = sha
        return sha

    def files(self, repo, revision):
        return self.repos[repo].get(self.branches.get((repo, revision), revision))


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def log_message(self, *_):
        pass

    def _answer(self, status, content=b"", headers=None):
        body = content if isinstance(content, bytes) else json.dumps(content).encode()
        self.send_response(status)
        for name, value in ({"Content-Length": len(body)} | (headers or {})).items():
            self.send_header(name, str(value))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def do_GET(self):
        self.server.requests.append((self.command, self.path))
        path = [unquote(part) for part in urlsplit(self.path).path.strip("/").split("/")]
        api = path[:2] == ["api", "models"]
        repo, rest = "/".join(path[2:4] if api else path[:2]), path[4:] if api else path[2:]
        if repo not in self.server.repos:
            return self._answer(404, {"error": "no such"}, {"X-Error-Code": "RepoNotFound"})
        revision = rest[1] if len(rest) > 1 else "main"
        files = self.server.files(repo, revision)
        if files is None:
            return self._answer(404, {"error": "no such"}, {"X-Error-Code": "RevisionNotFound"})
        sha = self.server.branches.get((repo, revision), revision)
        if api and rest[:1] == ["tree"]:
            return self._answer(200, [self._entry(name, data) for name, data in sorted(files.items())])
        if api:
            siblings = [{"rfilename": name} for name in sorted(files)]
            facts = {"_id": "0", "id": repo, "modelId": repo, "sha": sha, "private": False, "tags": [], "downloads": 0}
            return self._answer(200, facts | {"likes": 0, "siblings": siblings})
        content = files.get("/".join(rest[2:]))
        if content is None:
            return self._answer(404, {"error": "no such"}, {"X-Error-Code": "EntryNotFound"})
        etag = self._entry("", content)["oid"]
        return self._answer(200, content, {"ETag": f'"{etag}"', "X-Repo-Commit": sha, "X-Linked-Size": len(content)})

    do_HEAD = do_GET

    @staticmethod
    def _entry(name, content):
        header = f"blob {len(content)}\0".encode()
        oid = hashlib.sha1(header + content).hexdigest()
        return {"type": "file", "path": name, "size": len(content), "oid": oid}
