"""Runs real clients against a byte-logging origin, directly and through ota-pacer, and compares what the origin saw.

Through the proxy a client gets nothing but what `ota-pacer env` prints; at the gateway it is told no proxy, but the base
URL. Directly it gets the same, of a second CA that signed the origin's certificate, less what names a proxy. Differences
that `allowed.txt` does not give a reason for fail the run; the result is written into `docs/clients.md`.
"""

import argparse
import os
import re
import shutil
import socket
import subprocess
import sys
import tempfile
import time
import urllib.request
from dataclasses import dataclass, field
from pathlib import Path

import catalogue
import table
from compare import Allowed, differences, load_allowed
from origin import Origin, Request

HERE = Path(__file__).resolve().parent
NAME = "ota.test"
PATIENCE = 60


@dataclass
class Outcome:
    """What one client did."""

    client: catalogue.Client
    version: str = ""
    skipped: str = ""
    failures: list[str] = field(default_factory=list)
    allowed: list[Allowed] = field(default_factory=list)
    requests: int = 0

    @property
    def passed(self) -> bool:
        return not self.skipped and not self.failures


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--pacer", type=Path, required=True, help="the ota-pacer program")
    parser.add_argument("--tools", type=Path, required=True, help="where install.sh has put the clients")
    parser.add_argument("--docs", type=Path, help="the page to write")
    parser.add_argument("--only", default="", help="a part of the name of the clients to run")
    parser.add_argument("--host", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.host is None:
        return in_namespace()

    clients = [client for client in catalogue.clients(options.tools) if options.only in client.name]
    allowed = load_allowed(HERE / "allowed.txt")
    with tempfile.TemporaryDirectory() as scratch:
        rig = Rig(options.pacer.resolve(), options.tools.resolve(), Path(scratch), options.host)
        try:
            outcomes = [report(rig.try_client(client, allowed)) for client in clients]
        finally:
            rig.close()
    passed = sum(outcome.passed for outcome in outcomes)
    failed = sum(bool(outcome.failures) for outcome in outcomes)
    skipped = len(outcomes) - passed - failed
    if options.docs and not options.only:
        options.docs.parent.mkdir(exist_ok=True)
        options.docs.write_text(table.page(outcomes, allowed))
    print(f"{passed} passed, {failed} failed" + (f", {skipped} skipped" if skipped else ""))
    return 1 if failed else 0


def in_namespace() -> int:
    """Runs this program again where a name that is not `localhost` leads to this machine: Go never sends `localhost` to
    a proxy. The name is known in a mount namespace of our own, so nothing of the machine changes.
    """
    with tempfile.TemporaryDirectory() as scratch:
        hosts = Path(scratch) / "hosts"
        hosts.write_text(Path("/etc/hosts").read_text() + f"\n0.0.0.0 {NAME}\n")
        unshare = ["unshare", "--mount"] + ([] if os.geteuid() == 0 else ["--map-root-user"])
        enter = [*unshare, "sh", "-c", 'mount --bind "$0" /etc/hosts && exec "$@"', str(hosts)]
        again = [sys.executable, *sys.argv]
        if shutil.which("unshare") and subprocess.run([*enter, "true"], capture_output=True).returncode == 0:
            return subprocess.run([*enter, *again, "--host", NAME]).returncode
        return subprocess.run([*again, "--host", "localhost"]).returncode


def report(outcome: Outcome) -> Outcome:
    name = f"{outcome.client.name} {outcome.version}".strip()
    if outcome.skipped:
        print(f"skip {name}: {outcome.skipped}", flush=True)
    elif outcome.failures:
        print(f"FAIL {name}", *outcome.failures, sep="\n    ", flush=True)
    else:
        print(f"ok   {name}: {outcome.requests} requests", flush=True)
    return outcome


class Rig:
    """The origin, the proxy, and the two environments."""

    def __init__(self, pacer: Path, tools: Path, scratch: Path, host: str):
        self.pacer, self.tools, self.scratch, self.host = pacer, tools, scratch, host
        self.programs = catalogue.stage(HERE / "programs", tools)
        self.base = {"PATH": os.environ["PATH"], "HOME": str(scratch), "LANG": "C.UTF-8", "TMPDIR": str(scratch)}
        # pyenv and its like need it to find their interpreters.
        self.base |= {name: os.environ[name] for name in ("PYENV_ROOT",) if name in os.environ}

        direct = self.configuration("direct")
        self.direct = without_proxy(self.exports(direct))
        certificate, key = self.sign(scratch / "direct-ca")
        self.origin = Origin(certificate, key)
        self.address, self.admin, self.gateway = free_port(), free_port(), free_port()
        proxied = self.configuration("proxied", upstream=scratch / "direct-ca/ca.pem")
        self.proxied = self.exports(proxied)
        self.preloading = self.exports(proxied, "--node-preload")
        self.log = open(scratch / "pacer.log", "wb+")
        self.process = subprocess.Popen(
            [pacer, "serve", "--config", proxied], env=self.base, stdout=self.log, stderr=self.log
        )
        wait_for(self.address, self.process)
        wait_for(self.admin, self.process)
        wait_for(self.gateway, self.process)

    def close(self) -> None:
        self.process.terminate()
        try:
            self.process.wait(10)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        self.log.close()
        self.origin.close()

    def configuration(self, name: str, upstream: Path | None = None) -> Path:
        """A config file with a CA of its own."""
        ports = (self.address, self.admin, self.gateway) if upstream else (free_port(), free_port(), free_port())
        lines = [
            f"listen: 127.0.0.1:{ports[0]}",
            f"admin: 127.0.0.1:{ports[1]}",
            f"gateway: 127.0.0.1:{ports[2]}",
            f'ca: {{ dir: "{self.scratch / name}-ca" }}',
            f'upstream: {{ ca_file: "{upstream}" }}' if upstream else "",
            "channels:",
            "  ota:",
            f"    hosts: [{self.host}]",
            "    endpoints:",
            '      all: { match: { path: "/**" }, limits: [{ rate: 1000/s, capacity: 1000 }] }',
        ]
        path = self.scratch / f"{name}.yaml"
        path.write_text("\n".join(lines) + "\n")
        return path

    def exports(self, config: Path, *arguments: str) -> dict[str, str]:
        """What a shell has after it has evaluated `ota-pacer env`."""
        script = 'exports=$("$0" env "$@") && eval "$exports" && exec env -0'
        output = subprocess.run(
            ["sh", "-c", script, self.pacer, "--config", config, *arguments],
            env=self.base,
            stdout=subprocess.PIPE,
            check=True,
            text=True,
        ).stdout
        return dict(line.split("=", 1) for line in output.split("\0") if "=" in line)

    def sign(self, ca: Path) -> tuple[str, str]:
        """A certificate of the origin by the CA of the direct environment."""
        files = {name: str(self.scratch / f"origin.{name}") for name in ("key", "csr", "pem", "ext")}
        Path(files["ext"]).write_text(
            f"subjectAltName=DNS:{self.host}\nauthorityKeyIdentifier=keyid\nextendedKeyUsage=serverAuth\n"
            "keyUsage=critical,digitalSignature\n"
        )
        request = ["openssl", "req", "-new", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes"]
        request += ["-subj", f"/CN={self.host}", "-keyout", files["key"], "-out", files["csr"]]
        sign = ["openssl", "x509", "-req", "-in", files["csr"], "-CA", ca / "ca.pem", "-CAkey", ca / "ca.key"]
        sign += ["-set_serial", "0x1f2e3d4c5b6a7988", "-days", "30", "-extfile", files["ext"], "-out", files["pem"]]
        for command in (request, sign):
            subprocess.run(command, check=True, capture_output=True)
        return files["pem"], files["key"]

    def try_client(self, client: catalogue.Client, allowed: list[Allowed]) -> Outcome:
        outcome = Outcome(client, version=client.version(self.base))
        if not outcome.version:
            outcome.skipped = "not installed"
            return outcome
        if client.refuses_localhost and self.host == "localhost":
            outcome.skipped = "never sends `localhost` to a proxy, and this machine lends no other name"
            return outcome
        direct, direct_said, complaint = self.run(client, self.direct, f"https://{self.host}:{self.origin.port}")
        if complaint:
            outcome.failures.append(f"directly: {complaint}")
            return outcome
        before = self.paced()
        proxied, proxied_said, complaint = self.run(client, *self.way_of(client))
        if complaint:
            outcome.failures.append(f"through ota-pacer: {complaint}")
            return outcome
        outcome.requests = len(direct)
        if (came := self.paced_at_least(before + len(proxied)) - before) != len(proxied):
            outcome.failures.append(f"only {came:g} of {len(proxied)} requests came through the proxy")
        for step, expected, got in paired(direct_said, proxied_said):
            if expected != got:
                outcome.failures.append(f"step {step}: the client read `{got}` instead of `{expected}`")
        for difference in differences(direct, proxied):
            reason = next((entry for entry in allowed if entry.covers(client.name, difference)), None)
            if reason is None:
                outcome.failures.append(difference)
            elif reason not in outcome.allowed:
                outcome.allowed.append(reason)
        outcome.allowed.sort(key=lambda entry: entry.mark)
        return outcome

    def way_of(self, client: catalogue.Client) -> tuple[dict[str, str], str]:
        """The environment with which a client goes through ota-pacer, and what it asks for."""
        if client.gateway:
            return without_proxy(self.proxied), f"{self.proxied['OTA_PACER_GATEWAY']}/https/{self.host}:{self.origin.port}"
        return (self.preloading if client.preload else self.proxied), f"https://{self.host}:{self.origin.port}"

    def run(
        self, client: catalogue.Client, environment: dict[str, str], base_url: str
    ) -> tuple[list[Request], list[str], str]:
        """The requests at the origin, the lines that the client printed, and what went wrong, if anything did."""
        environment = environment | client.environment | {"ORIGIN": base_url}
        self.origin.take()
        try:
            ended = subprocess.run(
                client.command, env=environment, cwd=self.programs, capture_output=True, timeout=PATIENCE, text=True
            )
        except subprocess.TimeoutExpired:
            return [], [], f"did not end within {PATIENCE} s"
        requests, lines = self.origin.take(), ended.stdout.splitlines()
        if ended.returncode != 0:
            said = (ended.stderr or ended.stdout).strip().splitlines()
            return [], [], f"ended with {ended.returncode}: {' / '.join(said[:2] + said[-2:])}"
        answered = {line.split()[0] for line in lines if re.match(r"\w+ (200|302|404)", line)}
        if missing := [step for step in client.steps if step not in answered]:
            return [], [], f"no answer to {', '.join(missing)}: {ended.stderr.strip()[-300:]}"
        return requests, lines, ""

    def paced_at_least(self, expected: float) -> float:
        """The same, once it has counted that many: it counts an answer when the last byte is out, which may be later than
        the end of the client.
        """
        deadline = time.monotonic() + 3
        while (paced := self.paced()) < expected and time.monotonic() < deadline:
            time.sleep(0.02)
        return paced

    def paced(self) -> float:
        """The requests that the proxy says it has seen."""
        with urllib.request.urlopen(f"http://127.0.0.1:{self.admin}/metrics", timeout=5) as answer:
            lines = answer.read().decode().splitlines()
        return sum(float(line.rsplit(" ", 1)[1]) for line in lines if line.startswith("ota_pacer_requests_total{"))


def without_proxy(environment: dict[str, str]) -> dict[str, str]:
    """The same trust, and no proxy."""
    names = {"http_proxy", "https_proxy", "NODE_USE_ENV_PROXY", "PERL_LWP_ENV_PROXY"}
    kept = {name: value for name, value in environment.items() if name.lower() not in names and name not in names}
    if java := kept.get("JAVA_TOOL_OPTIONS"):
        kept["JAVA_TOOL_OPTIONS"] = re.sub(r"-Dhttps?\.proxy(Host|Port)=\S+ ?", "", java).strip()
    return kept


def paired(direct: list[str], proxied: list[str]):
    for index in range(max(len(direct), len(proxied))):
        expected = direct[index] if index < len(direct) else "nothing"
        got = proxied[index] if index < len(proxied) else "nothing"
        yield (expected if index < len(direct) else got).split()[0], expected, got


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        return listener.getsockname()[1]


def wait_for(port: int, process: subprocess.Popen) -> None:
    deadline = time.monotonic() + 20
    while time.monotonic() < deadline:
        if process.poll() is not None:
            sys.exit(f"ota-pacer ended with {process.returncode}")
        try:
            socket.create_connection(("127.0.0.1", port), 1).close()
            return
        except OSError:
            time.sleep(0.05)
    sys.exit("ota-pacer does not listen")


if __name__ == "__main__":
    sys.exit(main())
