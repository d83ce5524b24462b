"""Servers on loopback that models are fetched from: stand-ins for a registry and a hub, and a real registry."""

import hashlib
import http.server
import json
import pathlib
import select
import shutil
import socket
import ssl
import subprocess
import threading
import time
import urllib.error
import urllib.request

MANIFEST = "application/vnd.docker.distribution.manifest.v2+json"
MODEL = "application/vnd.ollama.image.model"


def digest_of(data):
    return "sha256:" + hashlib.sha256(data).hexdigest()


class Authority:
    """An authority of certificates of its own, made by the program openssl in a folder."""

    program = shutil.which("openssl")

    def __init__(self, folder):
        self.folder = pathlib.Path(folder)
        self.certificate = str(self.folder / "ca.pem")
        self._openssl("req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", "-subj", "/CN=test authority",
                      "-keyout", "ca.key", "-out", "ca.pem")

    def _openssl(self, *words):
        subprocess.run([self.program, *words], cwd=self.folder, check=True, capture_output=True)

    def context(self, *names):
        """Returns a server's TLS context with a certificate for names ("DNS:a.test", "IP:127.0.0.1")."""
        (self.folder / "names").write_text("subjectAltName=" + ",".join(names))
        self._openssl("req", "-newkey", "rsa:2048", "-nodes", "-subj", "/CN=server", "-keyout", "server.key", "-out",
                      "server.csr")
        self._openssl("x509", "-req", "-in", "server.csr", "-CA", "ca.pem", "-CAkey", "ca.key", "-CAcreateserial",
                      "-days", "2", "-extfile", "names", "-out", "server.pem")
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(self.folder / "server.pem", self.folder / "server.key")
        return context


class Proxy:
    """A proxy that answers CONNECT alone: leads each host of `hosts` to a port of this machine. Logs in `asked`."""

    def __init__(self, hosts):
        self.hosts, self.asked = hosts, []
        owner = self

        class Handler(http.server.BaseHTTPRequestHandler):
            def do_CONNECT(self):
                owner.asked.append(self.path)
                port = owner.hosts.get(self.path)
                if port is None:
                    return self.send_error(403)
                with socket.create_connection(("127.0.0.1", port)) as other:
                    self.send_response(200, "Connection established")
                    self.end_headers()
                    owner.copy(self.connection, other)
                self.close_connection = True

            def do_GET(self):
                owner.asked.append(self.path)
                self.send_error(403)

            def log_message(self, *_):
                pass

        self.server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.server.daemon_threads = True
        self.url = f"http://127.0.0.1:{self.server.server_address[1]}"
        threading.Thread(target=self.server.serve_forever, daemon=True).start()

    @staticmethod
    def copy(one, other):
        ends = {one: other, other: one}
        while True:
            for ready in select.select(list(ends), [], [], 60)[0]:
                data = ready.recv(1 << 16)
                if not data:
                    return
                ends[ready].sendall(data)

    def close(self):
        self.server.shutdown()
        self.server.server_close()


class StandIn:
    """A server that answers GET requests with what `answer(request)` does; logs them in `asked`. `tls`: its context."""

    def __init__(self, tls=None):
        self.asked = []  # path and headers
        owner = self

        class Handler(http.server.BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_GET(self):
                owner.asked.append((self.path, dict(self.headers)))
                try:
                    owner.answer(self)
                except (BrokenPipeError, ConnectionResetError):
                    pass

            def log_message(self, *_):
                pass

        self.server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.server.handle_error = lambda *_: None  # clients leave
        self.server.daemon_threads = True
        self.port = self.server.server_address[1]
        self.host = f"127.0.0.1:{self.port}"
        self.url = f"{'https' if tls else 'http'}://{self.host}"
        if tls:
            self.server.socket = tls.wrap_socket(self.server.socket, server_side=True)
        threading.Thread(target=self.server.serve_forever, daemon=True).start()

    def close(self):
        self.server.shutdown()
        self.server.server_close()

    def paths(self):
        return [path for path, _ in self.asked]

    def answer(self, request):
        raise NotImplementedError


def send(request, status, data=b"", headers=(), length=None):
    request.send_response(status)
    for name, value in headers:
        request.send_header(name, value)
    request.send_header("Content-Length", str(len(data) if length is None else length))
    request.end_headers()
    request.wfile.write(data)


def send_file(request, data):
    """Sends bytes, or the end of them that a Range asks for."""
    wanted = request.headers.get("Range")
    if not wanted:
        return send(request, 200, data)
    begin = int(wanted.removeprefix("bytes=").removesuffix("-"))
    return send(request, 206, data[begin:],
                [("Content-Range", f"bytes {begin}-{len(data) - 1}/{len(data)}")])


class Registry(StandIn):
    """Models by name, such as "me/tiny:latest": the text of a manifest; blobs by digest."""

    def __init__(self, tls=None):
        super().__init__(tls)
        self.manifests, self.blobs = {}, {}
        self.needs_token = False
        self.send_blob = send_file  # what a test replaces

    def add(self, name, layers, config=b"{}"):
        """Adds a model of layers (type, bytes); returns its manifest, which may be changed."""
        rows = [{"mediaType": kind, "digest": digest_of(data), "size": len(data)} for kind, data in layers]
        for data in [config, *(data for _, data in layers)]:
            self.blobs[digest_of(data)] = data
        self.manifests[name] = {
            "schemaVersion": 2, "mediaType": MANIFEST, "layers": rows,
            "config": {"mediaType": "application/vnd.docker.container.image.v1+json",
                       "digest": digest_of(config), "size": len(config)}}
        return self.manifests[name]

    def answer(self, request):
        path, _, _ = request.path.partition("?")
        if path == "/token":
            return send(request, 200, json.dumps({"token": "let-me-in"}).encode())
        if self.needs_token and request.headers.get("Authorization") != "Bearer let-me-in":
            realm = f'Bearer realm="{self.url}/token",service="stand-in",scope="repository:x:pull"'
            return send(request, 401, b"{}", [("WWW-Authenticate", realm)])
        parts = path.split("/")
        if len(parts) == 6 and parts[4] == "manifests":
            manifest = self.manifests.get(f"{parts[2]}/{parts[3]}:{parts[5]}")
            if manifest is None:
                return send(request, 404, b'{"errors":[]}')
            data = manifest if isinstance(manifest, bytes) else json.dumps(manifest).encode()
            return send(request, 200, data, [("Content-Type", MANIFEST)])
        if len(parts) == 6 and parts[4] == "blobs" and parts[5] in self.blobs:
            return self.send_blob(request, self.blobs[parts[5]])
        return send(request, 404)


class Hub(StandIn):
    """A hub with one repository, me/tiny, and its files."""

    revision = "0123456789abcdef0123456789abcdef01234567"

    def __init__(self, files, tls=None):
        super().__init__(tls)
        self.files = files
        self.token = None
        self.send_file = send_file

    def listing(self):
        return {"id": "me/tiny", "sha": self.revision, "siblings": [
            {"rfilename": name, "size": len(data),
             **({"lfs": {"sha256": hashlib.sha256(data).hexdigest(), "size": len(data), "pointerSize": 1}}
                if name.endswith(".gguf") else {})}
            for name, data in self.files.items()]}

    def answer(self, request):
        if self.token and request.headers.get("Authorization") != f"Bearer {self.token}":
            return send(request, 401, b"{}", [("WWW-Authenticate", 'Bearer realm="Authentication required"')])
        path, _, _ = request.path.partition("?")
        if path == "/api/models/me/tiny/revision/main":
            return send(request, 200, json.dumps(self.listing()).encode())
        prefix = f"/me/tiny/resolve/{self.revision}/"
        if path.startswith(prefix) and path.removeprefix(prefix) in self.files:
            return self.send_file(request, self.files[path.removeprefix(prefix)])
        return send(request, 404)


def free_port():
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return one.getsockname()[1]


class RealRegistry:
    """Debian's docker-registry with its files in a folder."""

    program = shutil.which("docker-registry")

    def __init__(self, folder):
        folder = pathlib.Path(folder)
        self.host = f"127.0.0.1:{free_port()}"
        config = {"version": 0.1, "log": {"level": "error"},
                  "storage": {"filesystem": {"rootdirectory": str(folder / "registry")}},
                  "http": {"addr": self.host}}
        (folder / "registry.yml").write_text(json.dumps(config))  # JSON is YAML
        self.process = subprocess.Popen([self.program, "serve", str(folder / "registry.yml")],
                                        stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        for _ in range(300):
            try:
                urllib.request.urlopen(f"http://{self.host}/v2/", timeout=5).close()
                return
            except OSError:
                time.sleep(0.1)
        raise AssertionError("docker-registry does not start")

    def close(self):
        self.process.kill()
        self.process.wait()

    def _send(self, method, url, data, kind="application/octet-stream"):
        request = urllib.request.Request(url, data=data, method=method, headers={"Content-Type": kind})
        with urllib.request.urlopen(request, timeout=30) as answer:
            return answer.headers

    def push(self, name, tag, store, manifest):
        """Pushes a model of a local store; `manifest` is its text."""
        described = json.loads(manifest)
        for layer in [described["config"], *described["layers"]]:
            data = (pathlib.Path(store) / "blobs" / layer["digest"].replace(":", "-")).read_bytes()
            place = self._send("POST", f"http://{self.host}/v2/{name}/blobs/uploads/", b"")["Location"]
            mark = "&" if "?" in place else "?"
            self._send("PUT", f"{place}{mark}digest={layer['digest']}", data)
        self._send("PUT", f"http://{self.host}/v2/{name}/manifests/{tag}", manifest.encode(), MANIFEST)
