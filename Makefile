# run          start the proxy on config/ota-pacer.yaml, with its buckets in memory
# test         everything that must hold: format, lints, unit, integration and doc tests
# test-model   the scripts in Redis against the arithmetic in Rust, 100,000 random steps (STEPS=1000000 for more)
# test-servers the limiter on other servers and versions than the system's (OTA_PACER_TEST_SERVERS=PATH:PATH for more)
# test-clients real clients of every family through the proxy, and docs/clients.md written from it
# demo         six workers against an OTA, without and with ota-pacer
# bench        what a request costs: ota-pacer, a bare proxy and no proxy, side by side
# tools        what `test` and `demo` use besides Rust

TARGET := $(or $(CARGO_TARGET_DIR),target)
NODE   := $(TARGET)/tools/node_modules/node/bin/node

.PHONY: run test test-model test-servers test-clients lint demo bench tools redis requests java

run:
	cargo run --locked -- serve --config config/ota-pacer.yaml

test: lint tools
	cargo build --locked --bins --examples
	@if cargo nextest --version >/dev/null 2>&1; then \
		set -x; cargo nextest run --locked --lib --bins --tests; \
	else \
		set -x; cargo test --locked --lib --bins --tests -- --test-threads=2; \
	fi
	cargo test --locked --doc

# The scripts against the arithmetic in Rust, for longer than `test` does.
test-model:
	OTA_PACER_MODEL_STEPS=$(or $(STEPS),100000) cargo test --locked --test it limiter_script

test-servers:
	cargo build --locked --bin ota-pacer --example mock_ota
	tests/servers/install.sh $(TARGET)/servers
	tests/servers/run.sh $(abspath $(TARGET)/servers)

test-clients:
	cargo build --locked --bin ota-pacer
	tests/clients/install.sh $(TARGET)/clients $(TARGET)
	python3 tests/clients/compare_test.py
	python3 tests/clients/run.py --pacer $(TARGET)/debug/ota-pacer --tools $(TARGET)/clients --docs docs/clients.md

lint:
	cargo fmt --check
	cargo clippy --locked --all-targets -- -D warnings

demo: requests
	cargo build --locked --bin ota-pacer --example mock_ota
	python3 examples/demo/demo.py --bin-dir $(TARGET)/debug

bench:
	cargo build --locked --release --bins --example bare_proxy --example mock_ota
	cargo bench --locked --bench proxy

tools: redis requests java $(NODE)

redis:
	@command -v redis-server >/dev/null || .ci/install redis-server

java:
	@command -v keytool >/dev/null && command -v javac >/dev/null || .ci/install default-jdk-headless

requests:
	@python3 -c 'import requests' 2>/dev/null || python3 -m pip install --quiet requests \
		|| .ci/install python3-requests

# A Node whose fetch reads HTTPS_PROXY, which the one of most distributions is too old for.
$(NODE):
	npm install --no-audit --no-fund --no-save --prefix $(TARGET)/tools node@24
