"""Shows what ota-pacer is for: six sync workers against an OTA that allows 20 requests a second, first without it, then with.

Started by `make demo`. Needs the built `ota-pacer` and `mock_ota`, Python's `requests` for the workers, and, for two proxies
that share one limit, redis-server.
"""

import argparse
import contextlib
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
import urllib.request
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
WORKER = ROOT / "examples/workers/sync_rates.py"
PATH = "/hotels/xml/availability"

RATE = 20
CAPACITY = 20
WORKERS = 6
UNPACED_SECONDS = 4
PACED_SECONDS = 14
PAUSE_AT = 6  # seconds into the paced run
PAUSE = 3     # seconds that the OTA asks for

# What the OTA truly allows is one more at once, since requests sent apart may arrive together.
OTA_LIMIT = f"{PATH}=bucket:{RATE}/s:{CAPACITY + 1}"

PROXY_CONFIG = """
listen: 127.0.0.1:0
admin: 127.0.0.1:0
{redis}
ca: {{ dir: "{directory}/ca" }}
upstream: {{ ca_file: "{ota_ca}" }}
defaults: {{ max_wait: 20s }}
channels:
  booking_com:
    hosts: [localhost]
    credential: {{ basic_user: true }}
    endpoints:
      availability:
        match: {{ method: POST, path: {path} }}
        limits: [{{ rate: {rate}/s, capacity: {capacity} }}]
"""

BAR_WIDTH = 60
COLOUR = sys.stdout.isatty() and "NO_COLOR" not in os.environ


def main():
    options = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    options.add_argument("--bin-dir", type=Path, default=ROOT / "target/debug", help="where cargo put the programs")
    bin_dir = options.parse_args().bin_dir
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    try:
        with contextlib.ExitStack() as stack:
            show(stack, bin_dir)
    except KeyboardInterrupt:
        print("\nStopped.")
        return 130
    except Failure as failure:
        print(f"demo: {failure}", file=sys.stderr)
        return 1
    return 0


def show(stack, bin_dir):
    directory = stack.enter_context(tempfile.TemporaryDirectory(prefix="ota-pacer-demo-"))
    ota = Ota(stack, bin_dir / "mock_ota" if (bin_dir / "mock_ota").exists() else bin_dir / "examples/mock_ota", directory)
    print(f"An OTA at {bold(ota.url)} allows {bold(f'{RATE} requests a second')}, {CAPACITY} at once.")
    print(f"{WORKERS} workers push availability to it as fast as it answers: {WORKER.relative_to(ROOT)}")

    print(f"\n{bold('Without ota-pacer')}")
    workers = [start_worker(stack, ota, {"REQUESTS_CA_BUNDLE": ota.ca_file}, UNPACED_SECONDS) for _ in range(WORKERS)]
    unpaced = watch(ota, workers)

    ota.control("/reset", {})
    proxies = start_fleet(stack, bin_dir / "ota-pacer", ota, directory)
    shared = "two proxies, one limit in Redis" if len(proxies) > 1 else "one proxy, no redis-server found for a second"
    print(f"\n{bold('With ota-pacer')}: {shared}; the workers have two environment variables more")
    workers = [
        start_worker(stack, ota, proxies[number % len(proxies)].environment, PACED_SECONDS) for number in range(WORKERS)
    ]
    paced = watch(ota, workers, pause_at=PAUSE_AT)

    print()
    print(f"{'':22}{'OTA answered':>14}{'of these 429':>14}{'workers saw 429':>17}{'errors':>8}")
    for name, (report, summaries) in [("without ota-pacer", unpaced), ("with ota-pacer", paced)]:
        throttled = report["by_status"].get("429", 0)
        seen = sum(summary["statuses"].get("429", 0) for summary in summaries)
        errors = sum(summary["errors"] for summary in summaries)
        cells = f"{report['total']:>14}{throttled:>14}{seen:>17}{errors:>8}"
        print(f"{name:22}{(red if seen or errors else green)(cells)}")
    print(f"\nIn second {PAUSE_AT + 1} of the second run the OTA answered 429 and asked for {PAUSE} s of silence. The whole fleet kept it.")


def watch(ota, workers, pause_at=None):
    """Prints a bar for each second the OTA has seen, until the workers end."""
    printed = 0
    asked = pause_at is None
    while True:
        running = any(worker.poll() is None for worker in workers)
        report = ota.report()
        elapsed = 0 if report["first_us"] is None else (report["now_us"] - report["first_us"]) / 1e6
        if not asked and elapsed >= pause_at:
            ota.control("/script", {"path": PATH, "answers": [{"status": 429, "retry_after": str(PAUSE)}]})
            asked = True
        # A second without arrivals at the end of the list is missing from it.
        seconds = report["seconds"] + [{"ok": 0, "throttled": 0, "other": 0}] * (int(elapsed) - len(report["seconds"]))
        while printed < int(elapsed) and running:
            print(bar(printed + 1, seconds[printed]), flush=True)
            printed += 1
        if not running:
            break
        time.sleep(0.05)
    return report, [summary_of(worker) for worker in workers]


def bar(number, second):
    ok, throttled = second["ok"], second["throttled"] + second["other"]
    shown_ok = min(ok, BAR_WIDTH)
    shown_throttled = min(throttled, BAR_WIDTH - shown_ok)
    cut = "…" if ok + throttled > BAR_WIDTH else " "
    blank = " " * (BAR_WIDTH - shown_ok - shown_throttled)
    counts = f"{ok:4} × 200" + (red(f"  {throttled:4} × 429") if throttled else "")
    return f"{number:4} s  {green('█' * shown_ok)}{red('▒' * shown_throttled)}{cut}{blank}{counts}"


class Failure(Exception):
    """Ends the demo with a message."""


class Ota:
    """The mock OTA and its control port."""

    def __init__(self, stack, program, directory):
        if not program.exists():
            raise Failure(f"`{program}` is missing\n\nhint: make demo")
        self.ca_file = f"{directory}/ota-ca.pem"
        command = [program, "--ca-file", self.ca_file, "--limit", OTA_LIMIT, "--exit-with-stdin"]
        process = start(stack, command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        ready = json.loads(process.stdout.readline() or "{}")
        if not ready:
            raise Failure("the mock OTA did not start")
        self.url = "https://localhost:" + ready["https"].rsplit(":", 1)[1]
        self._control = "http://" + ready["control"]

    def control(self, path, message):
        request = urllib.request.Request(self._control + path, data=json.dumps(message).encode())
        with DIRECT.open(request, timeout=10) as answer:
            return json.load(answer)

    def report(self):
        with DIRECT.open(f"{self._control}/report?path={PATH}", timeout=10) as answer:
            return json.load(answer)


class Proxy:
    """A running ota-pacer; `environment` is what its workers need."""

    def __init__(self, stack, program, ota, directory, redis):
        if not program.exists():
            raise Failure(f"`{program}` is missing\n\nhint: make demo")
        os.makedirs(directory)
        config = Path(directory, "ota-pacer.yaml")
        config.write_text(PROXY_CONFIG.format(
            redis=redis, directory=directory, ota_ca=ota.ca_file, path=PATH, rate=RATE, capacity=CAPACITY))
        process = start(stack, [program, "serve", "--config", config], stderr=subprocess.PIPE)
        said = []
        for line in process.stderr:
            said.append(line)
            if "proxy listening" in line:
                break
        else:
            raise Failure("ota-pacer did not start:\n" + "".join(said))
        # Its log must be read on, or it would wait for room in the pipe.
        threading.Thread(target=process.stderr.read, daemon=True).start()
        url = "http://" + line.split("addr", 1)[1].strip("=:\" ").split()[0].strip("\",}")
        self.environment = {"HTTPS_PROXY": url, "REQUESTS_CA_BUNDLE": f"{directory}/ca/bundle.pem"}


def start_fleet(stack, program, ota, directory):
    """Two proxies on one Redis, or one on its own."""
    if shutil.which("redis-server") is None:
        return [Proxy(stack, program, ota, f"{directory}/proxy", redis="")]
    port = start_redis(stack, directory)
    redis = f'redis: {{ url: "redis://127.0.0.1:{port}", expected_instances: 2 }}'
    return [Proxy(stack, program, ota, f"{directory}/proxy-{number}", redis) for number in (1, 2)]


def start_redis(stack, directory):
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    command = ["redis-server", "--bind", "127.0.0.1", "--port", str(port), "--save", "", "--dir", directory]
    redis = start(stack, command, stdout=subprocess.DEVNULL)
    deadline = time.monotonic() + 10
    while redis.poll() is None and time.monotonic() < deadline:
        with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), timeout=1):
            return port
        time.sleep(0.02)
    raise Failure("redis-server did not start")


def start_worker(stack, ota, environment, seconds):
    account = {"OTA_URL": ota.url, "OTA_USER": "hotel-machine", "OTA_PASSWORD": "not-a-secret"}
    command = [sys.executable, WORKER, "--path", PATH, "--seconds", str(seconds)]
    return start(stack, command, env=CLEAN_ENVIRONMENT | account | environment, stdout=subprocess.PIPE,
                 stderr=subprocess.PIPE)


def summary_of(worker):
    stdout, stderr = worker.communicate()
    if not stdout:
        raise Failure(f"a worker failed:\n{stderr}")
    return json.loads(stdout)


def start(stack, command, **options):
    """Starts a child that is gone when the demo ends, however it ends."""
    process = subprocess.Popen([str(word) for word in command], text=True, **options)
    stack.callback(end, process)
    return process


def end(process):
    process.kill()
    process.wait()


def bold(text):
    return paint(text, 1)


def green(text):
    return paint(text, 32)


def red(text):
    return paint(text, 31)


def paint(text, code):
    return f"\x1b[{code}m{text}\x1b[0m" if COLOUR and text else text


PROXY_VARIABLES = {"HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", "NO_PROXY", "REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE"}
CLEAN_ENVIRONMENT = {name: value for name, value in os.environ.items() if name.upper() not in PROXY_VARIABLES}
DIRECT = urllib.request.build_opener(urllib.request.ProxyHandler({}))

if __name__ == "__main__":
    sys.exit(main())
