"""A Hub on the loopback address: the part of its protocol that a push of a small model needs, without
large file storage and Xet. It keeps the files of every branch, and fails where a test tells it to."""

import base64
import contextlib
import json
import re
from urllib.parse import unquote, urlsplit

import yaml
from harness import answering


class Hub:
    """`repos[id][branch][path]` is the content of a file; `faults` are [pattern, times, status] of
    requests ("METHOD path") that fail."""

    def __init__(self):
        self.repos, self.private, self.faults, self.requests, self.url = {}, set(), [], [], ""

    def files(self, repo, branch="main"):
        """Return the files of a branch without the one that the Hub itself adds."""
        found = self.repos[repo][branch]
        return {path: content for path, content in found.items() if path != ".gitattributes"}

    def respond(self, address, body, headers):
        method, path = "GET" if body is None else "POST", urlsplit(address).path
        self.requests.append(f"{method} {path}")
        for fault in self.faults:
            if fault[1] > 0 and re.search(fault[0], self.requests[-1]):
                fault[1] -= 1
                return fault[2], '{"error": "told to fail"}'
        if not (headers.get("Authorization") or "").startswith("Bearer hf_"):
            return 401, '{"error": "Invalid credentials in Authorization header"}'
        for pattern, route in ROUTES.items():
            if found := re.fullmatch(pattern, self.requests[-1]):
                status, content = route(self, body, *map(unquote, found.groups()))
                return status, json.dumps(content)
        return 404, json.dumps({"error": f"no such route: {method} {path}"})

    def create(self, body):
        asked = json.loads(body)
        repo = f"{asked.get('organization') or 'tester'}/{asked['name']}"
        if repo.startswith("others/"):
            return 403, {"error": "You don't have the rights to create a model there"}
        url = {"url": f"{self.url}/{repo}", "name": repo}
        if repo in self.repos:
            return 409, {"error": "You already created this model repo", **url}
        self.repos[repo] = {"main": {".gitattributes": b""}}
        if asked.get("visibility") == "private" or asked.get("private"):
            self.private.add(repo)
        return 200, url

    def tree(self, body, repo, branch):
        files = sorted(self.repos[repo][branch].items())
        return 200, [
            {"type": "file", "path": path, "size": len(c), "oid": "0" * 40} for path, c in files
        ]

    def branch(self, body, repo, name):
        self.repos[repo].setdefault(name, dict(self.repos[repo]["main"]))
        return 200, {}

    def preupload(self, body, repo, branch):
        return 200, {
            "files": [
                {"path": file["path"], "uploadMode": "regular", "shouldIgnore": False, "oid": None}
                for file in json.loads(body)["files"]
            ]
        }

    def validate(self, body):
        front = yaml.safe_load(json.loads(body)["content"].split("---\n")[1])
        errors = [] if isinstance(front, dict) else [{"message": "no mapping"}]
        return 400 if errors else 200, {"errors": errors, "warnings": []}

    def commit(self, body, repo, branch):
        files = dict(self.repos[repo][branch])
        for line in body.splitlines():
            operation = json.loads(line)
            key, value = operation["key"], operation["value"]
            if key == "file":
                files[value["path"]] = base64.b64decode(value["content"])
            elif key == "deletedFile":
                del files[value["path"]]
        self.repos[repo][branch] = files
        return 200, {"commitUrl": f"{self.url}/{repo}/commit/{'1' * 40}", "commitOid": "1" * 40}


REPO = r"/api/models/([\w.-]+/[\w.-]+)"
ROUTES = {
    "POST /api/repos/create": Hub.create,
    "POST /api/validate-yaml": Hub.validate,
    f"GET {REPO}/tree/([^/]+)": Hub.tree,
    f"POST {REPO}/branch/([^/]+)": Hub.branch,
    f"POST {REPO}/preupload/([^/]+)": Hub.preupload,
    f"POST {REPO}/commit/([^/]+)": Hub.commit,
}


@contextlib.contextmanager
def running():
    """Run a `Hub` that answers at its `url`."""
    hub = Hub()
    with answering(hub.respond) as hub.url:
        yield hub
