"""A Hub on this machine: the four requests that fetching a checkpoint makes."""

import hashlib
import json
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

COMMIT = "c" * 40


class ToyHub:
    """Serves folders as repositories; may refuse, and may send other bytes than it names."""

    def __init__(self, repositories: dict[str, Path]) -> None:
        self.repositories = repositories
        self.refusals: list[tuple[int, dict[str, str]]] = []
        self.spoiled: set[str] = set()
        self.requests: list[str] = []
        hub = self

        class Handler(BaseHTTPRequestHandler):
            def do_HEAD(self):
                hub.answer(self, body=False)

            def do_GET(self):
                hub.answer(self, body=True)

            def log_message(self, *_):
                pass

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        # a short poll: stopping waits for it
        run = {"poll_interval": 0.02}
        threading.Thread(target=self.server.serve_forever, kwargs=run, daemon=True).start()
        self.url = f"http://127.0.0.1:{self.server.server_address[1]}"

    def close(self):
        self.server.shutdown()
        self.server.server_close()

    def answer(self, request, *, body: bool) -> None:
        path = request.path.partition("?")[0]
        self.requests.append(f"{request.command} {path}")
        if self.refusals and body:
            status, headers = self.refusals.pop(0)
            self._send(request, status, b"", headers)
        elif path.startswith("/api/models/"):
            self._describe(request, path)
        else:
            self._file(request, path, body)

    def _describe(self, request, path) -> None:
        repo = "/".join(path.split("/")[3:5])
        folder = self.repositories.get(repo)
        if folder is None:
            self._send(request, 404, b"", {"X-Error-Code": "RepoNotFound"})
            return
        siblings, tree = [], []
        for file in sorted(folder.iterdir()):
            content, large = file.read_bytes(), {}
            if file.suffix == ".safetensors":
                large = {"oid": hashlib.sha256(content).hexdigest(), "size": len(content)}
                large |= {"sha256": large["oid"], "pointerSize": 130}
            row = {"size": len(content)} | ({"lfs": large} if large else {})
            siblings.append(row | {"rfilename": file.name, "blobId": "b" * 40})
            tree.append(row | {"type": "file", "path": file.name, "oid": "b" * 40})
        answer = {"id": repo, "modelId": repo, "sha": COMMIT, "siblings": siblings}
        answer |= {"tags": [], "private": False, "downloads": 0}
        content = json.dumps(tree if "/tree/" in path else answer).encode()
        self._send(request, 200, content, {"Content-Type": "application/json"})

    def _file(self, request, path, body) -> None:
        _, owner, name, _, _, file = path.split("/", 5)
        content = (self.repositories[f"{owner}/{name}"] / file).read_bytes()
        tag = hashlib.sha256(content).hexdigest()
        if file in self.spoiled:
            content = content[:-1] + bytes([content[-1] ^ 1])
        headers = {"ETag": f'"{tag}"', "X-Repo-Commit": COMMIT, "Accept-Ranges": "bytes"}
        self._send(request, 200, content, headers, body=body)

    def _send(self, request, status, content, headers, *, body=True) -> None:
        request.send_response(status)
        for key, value in {**headers, "Content-Length": str(len(content))}.items():
            request.send_header(key, value)
        request.end_headers()
        if body:
            request.wfile.write(content)
