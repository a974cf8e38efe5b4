"""A Hub on the loopback address: the part of the protocol that huggingface_hub needs to push a
small model, without large file storage and Xet.

It keeps the files of every revision, refuses requests without a token, and fails where a test tells
it to.
"""

import base64
import contextlib
import json
import re
import threading
from urllib.parse import unquote, urlsplit

import yaml
from harness import answering


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
        self.faults.append([re.compile(pattern), times, status])

    def files(self, repo, branch="main"):
        """Return the files of a revision by path, without the one that the Hub itself adds."""
        return {
            path: content
            for path, content in self.repos[repo][branch].items()
            if path != ".gitattributes"
        }

    def respond(self, address, body, headers):
        method, path = "GET" if body is None else "POST", urlsplit(address).path
        with self.lock:
            self.requests.append(f"{method} {path}")
            for fault in self.faults:
                if fault[1] > 0 and fault[0].search(self.requests[-1]):
                    fault[1] -= 1
                    return fault[2], '{"error": "told to fail"}'
            if not headers.get("Authorization", "").startswith("Bearer hf_"):
                return 401, '{"error": "Invalid credentials in Authorization header"}'
            for wanted, pattern, route in ROUTES:
                if wanted == method and (found := re.fullmatch(pattern, path)):
                    status, content, *more = route(self, body, *map(unquote, found.groups()))
                    return status, json.dumps(content), *more
        return 404, json.dumps({"error": f"no such route: {method} {path}"})

    # The routes.

    def create(self, body):
        asked = json.loads(body)
        repo = f"{asked.get('organization') or 'tester'}/{asked['name']}"
        if repo.startswith("others/"):
            return 403, {
                "error": "You don't have the rights to create a model under this namespace"
            }
        url = {"url": f"{self.url}/{repo}", "name": repo}
        if repo in self.repos:
            return 409, {"error": "You already created this model repo", **url}
        self.repos[repo] = {"main": {".gitattributes": b"*.safetensors filter=lfs\n"}}
        if asked.get("visibility") == "private" or asked.get("private"):
            self.private.add(repo)
        return 200, url

    def info(self, body, repo):
        if repo not in self.repos:
            return missing("Repo")
        siblings = [{"rfilename": path} for path in self.repos[repo]["main"]]
        head = self.repos[repo]["main"].get("README.md", b"").decode().split("---\n")
        card = yaml.safe_load(head[1]) if len(head) > 1 else None
        return 200, {"id": repo, "sha": "0" * 40, "siblings": siblings, "cardData": card}

    def tree(self, body, repo, revision):
        if repo not in self.repos or revision not in self.repos[repo]:
            return missing("Revision")
        files = sorted(self.repos[repo][revision].items())
        return 200, [
            {"type": "file", "path": path, "size": len(c), "oid": "0" * 40} for path, c in files
        ]

    def branch(self, body, repo, name):
        if name in self.repos[repo]:
            return 409, {"error": "Reference already exists"}
        self.repos[repo][name] = dict(self.repos[repo]["main"])
        return 200, {}

    def preupload(self, body, repo, revision):
        if repo not in self.repos or revision not in self.repos[repo]:
            return missing("Revision")
        paths = [file["path"] for file in json.loads(body)["files"]]
        return 200, {
            "files": [
                dict(path=path, uploadMode="regular", shouldIgnore=False, oid=None)
                for path in paths
            ]
        }

    def validate(self, body):
        try:
            metadata = yaml.safe_load(json.loads(body)["content"].split("---\n")[1])
            errors = [] if isinstance(metadata, dict) else [{"message": "no mapping"}]
        except (yaml.YAMLError, IndexError) as error:
            errors = [{"message": str(error)}]
        return 400 if errors else 200, {"errors": errors, "warnings": []}

    def commit(self, body, repo, revision):
        if repo not in self.repos or revision not in self.repos[repo]:
            return missing("Revision")
        files = dict(self.repos[repo][revision])
        for line in body.splitlines():
            operation = json.loads(line)
            key, value = operation["key"], operation["value"]
            if key == "file":
                files[value["path"]] = base64.b64decode(value["content"])
            elif key == "deletedFile":
                del files[value["path"]]
        self.repos[repo][revision] = files
        return 200, {"commitUrl": f"{self.url}/{repo}/commit/{'1' * 40}", "commitOid": "1" * 40}


def missing(what):
    return 404, {"error": f"{what} not found"}, {"X-Error-Code": f"{what}NotFound"}


_REPO = r"([\w.-]+/[\w.-]+)"
ROUTES = [
    ("POST", r"/api/repos/create", Hub.create),
    ("POST", r"/api/validate-yaml", Hub.validate),
    ("GET", rf"/api/models/{_REPO}", Hub.info),
    ("GET", rf"/api/models/{_REPO}/tree/([^/]+)", Hub.tree),
    ("POST", rf"/api/models/{_REPO}/branch/([^/]+)", Hub.branch),
    ("POST", rf"/api/models/{_REPO}/preupload/([^/]+)", Hub.preupload),
    ("POST", rf"/api/models/{_REPO}/commit/([^/]+)", Hub.commit),
]


@contextlib.contextmanager
def running():
    """Run a `Hub` that answers at its `url`."""
    hub = Hub()
    with answering(hub.respond) as hub.url:
        yield hub
