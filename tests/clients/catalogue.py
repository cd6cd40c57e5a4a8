"""The clients: how each is started, and what it is asked to do."""

import re
import shutil
import subprocess
from dataclasses import dataclass, field
from pathlib import Path

STEPS = ("get", "post", "chunked", "head", "redirect", "gzip", "missing", "stream", "series")
ENVIRONMENT = "nothing"
BASE_URL = "`OTA_PACER_GATEWAY` as the base URL"


@dataclass
class Client:
    """A client and its program. `needs` is what its user must do besides setting the environment; `preload` has
    `ota-pacer env --node-preload` print that; `gateway` has the client know no proxy, but ask the gateway.
    """

    name: str
    command: list[str]
    version_command: list[str]
    needs: str = ENVIRONMENT
    steps: tuple[str, ...] = STEPS
    environment: dict[str, str] = field(default_factory=dict)
    refuses_localhost: bool = False
    preload: bool = False
    gateway: bool = False

    def version(self, base: dict[str, str]) -> str:
        """Nothing where it is not installed."""
        try:
            ended = subprocess.run(
                self.version_command, env=base | self.environment, capture_output=True, text=True, timeout=60
            )
        except (OSError, subprocess.TimeoutExpired):
            return ""
        found = re.search(r"\d+(\.\d+)+", ended.stdout)
        return found.group() if ended.returncode == 0 and found else ""


def stage(programs: Path, tools: Path) -> Path:
    """Copies the programs beside the packages, which is where Node looks for them."""
    staged = tools / "programs"
    shutil.rmtree(staged, ignore_errors=True)
    shutil.copytree(programs, staged, ignore=shutil.ignore_patterns("__pycache__"))
    return staged


def clients(tools: Path) -> list[Client]:
    tools = tools.resolve()
    return [*tool_clients(), *python_clients(tools), *node_clients(tools), *other_clients(tools), *gateway_clients(tools)]


def tool_clients() -> list[Client]:
    return [
        Client("curl", ["sh", "curl.sh"], ["curl", "--version"]),
        Client("wget", ["sh", "wget.sh"], ["wget", "--version"], steps=all_but("chunked")),
    ]


def python_clients(tools: Path) -> list[Client]:
    environment = {"PYTHONPATH": str(tools / "python"), "PYTHONDONTWRITEBYTECODE": "1"}

    def client(name: str, program: str, package: str, **more) -> Client:
        version = f"import {package}; print({package}.__version__)"
        if package == "urllib":
            version = "import sys; print(sys.version)"
        arguments = more.pop("arguments", [])
        command = ["python3", program, *arguments]
        return Client(name, command, ["python3", "-c", version], environment=environment, **more)

    return [
        client("Python urllib.request", "urllib_request.py", "urllib"),
        client("Python requests", "requests_session.py", "requests"),
        client("Python requests, strict X.509", "requests_session.py", "requests", arguments=["strict"]),
        client("Python urllib3", "urllib3_pool.py", "urllib3", needs="`ProxyManager(os.environ[\"https_proxy\"])`"),
        client("Python httpx", "httpx_client.py", "httpx"),
        client("Python aiohttp", "aiohttp_session.py", "aiohttp", needs="`ClientSession(trust_env=True)`"),
    ]


def node_clients(tools: Path) -> list[Client]:
    found = []
    for major in (20, 24):
        node = str(tools / f"node_modules/node{major}/bin/node")
        version = [node, "--version"]
        preload = major < 22
        needs = "`ota-pacer env --node-preload`" if preload else ENVIRONMENT
        for name, program in (("fetch", "fetch.mjs"), ("https", "https_get.mjs")):
            found.append(Client(f"Node {major} {name}", [node, program], version, needs=needs, preload=preload))
        found.append(Client(f"Node {major} axios", [node, "axios.mjs"], version))
        found.append(Client(f"Node {major} got", [node, "got.mjs"], version, needs="`agent: new ProxyAgent()`"))
    return found


def other_clients(tools: Path) -> list[Client]:
    go = str(tools / "nethttp")
    go_environment = {"GOCACHE": str(tools / "go-cache"), "GO111MODULE": "off"}
    unchunked = all_but("chunked")
    context = "`'http' => ['proxy' => …]` in the stream context"
    return [
        Client("Java HttpClient", ["java", "HttpClientSteps.java"], ["java", "--version"]),
        Client("Java HttpURLConnection", ["java", "UrlConnectionSteps.java"], ["java", "--version"]),
        Client("Go net/http", [go], ["go", "version"], environment=go_environment, refuses_localhost=True),
        Client("PHP curl", ["php", "curl.php"], ["php", "-r", "curl_init() && print(PHP_VERSION);"]),
        Client("PHP streams", ["php", "streams.php"], ["php", "--version"], needs=context, steps=unchunked),
        Client("Ruby Net::HTTP", ["ruby", "net_http.rb"], ["ruby", "--version"]),
        Client("Rust reqwest", [str(tools / "reqwest-client")], ["cat", str(tools / "reqwest-version")]),
        Client("Perl LWP", ["perl", "lwp.pl"], ["perl", "-MLWP::Protocol::https", "-MLWP", "-e", "print LWP->VERSION"]),
    ]


def gateway_clients(tools: Path) -> list[Client]:
    python = {"PYTHONPATH": str(tools / "python"), "PYTHONDONTWRITEBYTECODE": "1"}
    php = ["php", "-r", "class_exists('SoapClient') && print(PHP_VERSION);"]

    def client(name: str, command: list[str], version: list[str], **more) -> Client:
        return Client(f"{name} at the gateway", command, version, needs=BASE_URL, gateway=True, **more)

    def version(package: str) -> list[str]:
        return ["python3", "-c", f"import {package}; print({package}.__version__)"]

    return [
        client("Python urllib3", ["python3", "urllib3_pool.py"], version("urllib3"), environment=python),
        client("Python aiohttp", ["python3", "aiohttp_session.py"], version("aiohttp"), environment=python),
        client("PHP streams", ["php", "streams.php"], ["php", "--version"], steps=all_but("chunked")),
        client("PHP SoapClient", ["php", "soap_client.php"], php, steps=all_but("get", "chunked", "head")),
    ]


def all_but(*steps: str) -> tuple[str, ...]:
    return tuple(step for step in STEPS if step not in steps)
