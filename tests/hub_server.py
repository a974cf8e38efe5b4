"""A Hub on the loopback address: the part of the protocol that huggingface_hub needs to push a small model, without
large file storage and Xet.

It keeps the files of every revision, refuses requests without a token, and fails where a test tells it to.
"""

import base64
import contextlib
import json
import re
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import unquote, urlsplit

import yaml


class Hub:
    """State of the server. `repos[id][branch][path]` is the content of a file."""

    def __init__(self):
        self.repos, self.private, self.requests, self.faults = {}, set(), [], []
        self.lock = threading.Lock()
        self.url = ""

    def fail(self, pattern, times=10**9, status=500):
        """Answer the first requests whose "METHOD path" matches with `status`.

        Status 0 closes the connection.
        """
        with self.lock:
            self.faults.append([re.compile(pattern), times, status])

    def fault_of(self, request):
        with self.lock:
            self.requests.append(request)
            for fault in self.faults:
                if fault[1] > 0 and fault[0].search(request):
                    fault[1] -= 1
                    return fault[2]
        return None

    def files(self, repo, branch="main"):
        """Return the files of a revision by path, without the one that the Hub itself adds."""
        return {path: content for path, content in self.repos[repo][branch].items() if path != ".gitattributes"}


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    hub: Hub

    def log_message(self, *args):
        pass

    def do_GET(self):
        self.handle_one("GET")

    def do_POST(self):
        self.handle_one("POST")

    def handle_one(self, method):
        path = urlsplit(self.path).path
        fault = self.hub.fault_of(f"{method} {path}")
        if fault == 0:
            self.close_connection = True
            return
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        if fault is not None:
            return self.answer({"error": "told to fail"}, fault)
        if not self.headers.get("Authorization", "").startswith("Bearer hf_"):
            return self.answer({"error": "Invalid credentials in Authorization header"}, 401)
        for wanted, pattern, route in ROUTES:
            if wanted == method and (found := re.fullmatch(pattern, path)):
                with self.hub.lock:
                    return route(self, body, *map(unquote, found.groups()))
        self.answer({"error": f"no such route: {method} {path}"}, 404)

    def answer(self, content, status=200, **headers):
        data = content if isinstance(content, bytes) else json.dumps(content).encode()
        self.send_response(status)
        for name, value in {"Content-Type": "application/json", "Content-Length": len(data), **headers}.items():
            self.send_header(name.replace("_", "-"), str(value))
        self.end_headers()
        self.wfile.write(data)

    def missing(self, what):
        self.answer({"error": f"{what} not found"}, 404, X_Error_Code=f"{what}NotFound")

    # The routes.

    def create(self, body):
        asked = json.loads(body)
        repo = f"{asked.get('organization') or 'tester'}/{asked['name']}"
        if repo.startswith("others/"):
            return self.answer({"error": "You don't have the rights to create a model under this namespace"}, 403)
        url = {"url": f"{self.hub.url}/{repo}", "name": repo}
        if repo in self.hub.repos:
            return self.answer({"error": "You already created this model repo", **url}, 409)
        self.hub.repos[repo] = {"main": {".gitattributes": b"*.safetensors filter=lfs\n"}}
        if asked.get("visibility") == "private" or asked.get("private"):
            self.hub.private.add(repo)
        self.answer(url)

    def info(self, body, repo, revision="main"):
        if repo not in self.hub.repos:
            return self.missing("Repo")
        branch = self.hub.repos[repo].get(revision)
        if branch is None:
            return self.missing("Revision")
        self.answer({"id": repo, "sha": "0" * 40, "siblings": [{"rfilename": path} for path in branch]})

    def tree(self, body, repo, revision):
        if repo not in self.hub.repos or revision not in self.hub.repos[repo]:
            return self.missing("Revision")
        files = self.hub.repos[repo][revision]
        self.answer(
            [{"type": "file", "path": path, "size": len(c), "oid": "0" * 40} for path, c in sorted(files.items())]
        )

    def branch(self, body, repo, name):
        if name in self.hub.repos[repo]:
            return self.answer({"error": "Reference already exists"}, 409)
        self.hub.repos[repo][name] = dict(self.hub.repos[repo]["main"])
        self.answer({})

    def preupload(self, body, repo, revision):
        if repo not in self.hub.repos or revision not in self.hub.repos[repo]:
            return self.missing("Revision")
        paths = [file["path"] for file in json.loads(body)["files"]]
        self.answer({"files": [dict(path=path, uploadMode="regular", shouldIgnore=False, oid=None) for path in paths]})

    def validate(self, body):
        try:
            metadata = yaml.safe_load(json.loads(body)["content"].split("---\n")[1])
            errors = [] if isinstance(metadata, dict) else [{"message": "no mapping"}]
        except (yaml.YAMLError, IndexError) as error:
            errors = [{"message": str(error)}]
        self.answer({"errors": errors, "warnings": []}, 400 if errors else 200)

    def commit(self, body, repo, revision):
        if repo not in self.hub.repos or revision not in self.hub.repos[repo]:
            return self.missing("Revision")
        files = dict(self.hub.repos[repo][revision])
        for line in body.splitlines():
            operation = json.loads(line)
            key, value = operation["key"], operation["value"]
            if key == "file":
                files[value["path"]] = base64.b64decode(value["content"])
            elif key == "deletedFile":
                del files[value["path"]]
        self.hub.repos[repo][revision] = files
        self.answer({"commitUrl": f"{self.hub.url}/{repo}/commit/{'1' * 40}", "commitOid": "1" * 40})


_REPO = r"([\w.-]+/[\w.-]+)"
ROUTES = [
    ("POST", r"/api/repos/create", Handler.create),
    ("POST", r"/api/validate-yaml", Handler.validate),
    ("GET", rf"/api/models/{_REPO}", Handler.info),
    ("GET", rf"/api/models/{_REPO}/revision/([^/]+)", Handler.info),
    ("GET", rf"/api/models/{_REPO}/tree/([^/]+)", Handler.tree),
    ("POST", rf"/api/models/{_REPO}/branch/([^/]+)", Handler.branch),
    ("POST", rf"/api/models/{_REPO}/preupload/([^/]+)", Handler.preupload),
    ("POST", rf"/api/models/{_REPO}/commit/([^/]+)", Handler.commit),
]


@contextlib.contextmanager
def running():
    """Run a `Hub` that answers at its `url`."""
    hub = Hub()
    server = ThreadingHTTPServer(("127.0.0.1", 0), type("OfThisHub", (Handler,), {"hub": hub}))
    server.daemon_threads = True
    hub.url = f"http://127.0.0.1:{server.server_address[1]}"
    thread = threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True)
    thread.start()
    try:
        yield hub
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
