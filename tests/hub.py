"""A small server that speaks the parts of the hub's file protocol that pushing and loading a folder use."""

import base64
import hashlib
import json
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import unquote, urlsplit


class Hub(ThreadingHTTPServer):
    """Repositories in memory, on loopback: name -> commit -> path -> content. Writing needs the token."""

    def __init__(self, token):
        super().__init__(("127.0.0.1", 0), _Handler)
        self.token, self.repos, self.branches, self.objects = token, {}, {}, {}
        self.requests = []
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
        self.repos[repo][sha] = files
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

    def _allowed(self):
        given = self.headers.get("Authorization", "")
        if given == f"Bearer {self.server.token}":
            return True
        # A careless server: it sends back what it was given.
        self._answer(403, {"error": "no"}, {"X-Error-Message": f"You may not write here as {given}"})
        return False

    def do_POST(self):
        body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        path = [unquote(part) for part in urlsplit(self.path).path.strip("/").split("/")]
        self.server.requests.append(("POST", self.path))
        if path == ["api", "validate-yaml"]:
            return self._answer(200, {"errors": [], "warnings": []})
        if not self._allowed():
            return None
        if path == ["api", "repos", "create"]:
            wanted = json.loads(body)
            repo = f"{wanted['organization']}/{wanted['name']}"
            if repo in self.server.repos:
                return self._answer(409, {"error": "there already", "url": f"{self.server.url}/{repo}"})
            self.server.repos[repo] = {}
            self.server.commit(repo, "main", {})
            return self._answer(200, {"url": f"{self.server.url}/{repo}"})
        if path[-4:] == ["info", "lfs", "objects", "batch"]:
            objects = json.loads(body)["objects"]
            actions = [
                {**one, "actions": {"upload": {"href": f"{self.server.url}/upload/{one['oid']}"}}} for one in objects
            ]
            return self._answer(200, {"transfer": "basic", "objects": actions})
        repo = "/".join(path[2:4])
        if path[4] == "preupload":
            modes = [
                {
                    "path": file["path"],
                    "uploadMode": "lfs" if file["path"].endswith(".safetensors") else "regular",
                    "shouldIgnore": False,
                }
                for file in json.loads(body)["files"]
            ]
            return self._answer(200, {"files": modes})
        if path[4] == "commit":
            files = dict(self.server.files(repo, path[5]) or {})
            for line in map(json.loads, body.splitlines()):
                value = line["value"]
                if line["key"] == "file":
                    files[value["path"]] = base64.b64decode(value["content"])
                elif line["key"] == "lfsFile":
                    files[value["path"]] = self.server.objects[value["oid"]]
            sha = self.server.commit(repo, path[5], files)
            return self._answer(200, {"commitUrl": f"{self.server.url}/{repo}/commit/{sha}", "commitOid": sha})
        return self._answer(404, {"error": "unknown"})

    def do_PUT(self):
        content = self.rfile.read(int(self.headers["Content-Length"]))
        oid = self.path.rpartition("/")[2]
        assert hashlib.sha256(content).hexdigest() == oid
        self.server.objects[oid] = content
        self._answer(200)

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
