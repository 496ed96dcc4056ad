# The front door. Each target is one script in scripts/, which brings what it needs (packages, sources, model, build),
# so that a laptop and CI run the same. ARGS are passed on:  make serve ARGS="--port 9000 --max-batch 8"
MAKEFLAGS += --no-print-directory
.DEFAULT_GOAL := help
.PHONY: help deps build demo demo-restart demo-cluster serve test asan tsan libcxx neon arm64 macos cuda bench-cuda bench fuzz bench-traces bench-structured bench-tools peer-tests page agents clients package wheel soak hostile bench-quality bench-perplexity bench-hybrids bare everything format check-format lint clean

help:          ## This list
	@awk -F ':.*## ' '/^[a-z0-9-]+:.*## / {printf "  make %-16s  %s\n", $$1, $$2}' Makefile

deps:          ## Install the packages, fetch and check the pinned sources and models, build llama.cpp and XGrammar
	@scripts/deps.sh

build:         ## Build everything: build/coppice and the tests
	@scripts/build.sh release

demo:          ## Eight requests at once on one shared prefix, with sharing on and off; also MODEL=gemma3
	@scripts/run.sh demo $(ARGS)

demo-restart:  ## Kill a server and start another on its folder (--kv-dir): the first token of 8,000 again
	@scripts/run.sh demo --restart $(ARGS)

demo-cluster:  ## Two servers behind vllm-router while agents work, one leaves and one joins: with and without events and Redis, 2 minutes
	@scripts/demo-cluster.sh $(ARGS)

serve:         ## Serve the pinned model (or MODEL=gemma3) on http://127.0.0.1:8080; yours: ARGS="--model FILE"
	@scripts/run.sh serve $(ARGS)

test:          ## Build and run all tests; some: ARGS="-R kv_"
	@scripts/test.sh release $(ARGS)

bench-tools:   ## Forced calls of 200 functions of BFCL, validated: DATA=folder of BFCL_v4_*.json
	@scripts/bench-tools.sh "$(DATA)"

peer-tests:    ## llama.cpp's own server tests against coppice, some three minutes: ARGS="unit/test_basic.py"
	@scripts/peer-tests.sh $(ARGS)

page:          ## Look at the page in Debian's Chromium; renew docs/page*.png: ARGS="--screenshots"
	@scripts/page.sh $(ARGS)

agents:        ## Two real coding agents do a task on coppice, through Anthropic's and OpenAI's APIs: two minutes
	@scripts/agents.sh $(ARGS)

clients:       ## Libraries, lm-eval and load generators from PyPI against coppice, some ten minutes: ARGS="-k litellm"
	@scripts/clients.sh $(ARGS)

package:       ## Build a .deb for any x86-64 machine and test it in a bare Debian, 15 minutes at first; only build: ARGS="--build"
	@scripts/package.sh $(ARGS)

wheel:         ## Build a wheel and a tarball for any Linux with glibc 2.28 (x86-64), test them in bare Debians 11 to 13 and in a container; some: ARGS="-k container"; only build: ARGS="--build"; 64-bit ARM: ARGS="--arm64"
	@scripts/wheel.sh $(ARGS)

soak:          ## All kinds of load at once, MINUTES=60, and what must hold at the end; again: ARGS="--seed N"
	@scripts/soak.sh --minutes $(or $(MINUTES),60) $(ARGS)

hostile:       ## One key sends hostile requests, another short chats that must not suffer: ARGS="--seconds 3600 --seed N --judge"
	@scripts/soak.sh hostile $(ARGS)

asan:          ## All tests but parity, end-to-end and benchmarks under AddressSanitizer and UBSan
	@scripts/test.sh asan $(ARGS)

tsan:          ## The tests whose threads meet in ways of their own, under ThreadSanitizer
	@scripts/test.sh tsan $(ARGS)

fuzz:          ## Fuzz cancellations, hang-ups, HTTP, model files, requests, schemas and templates, each for a minute; longer: SECONDS=1800
	@scripts/fuzz.sh $(SECONDS)

libcxx:        ## Compile kv, engine, model and server with clang's own standard library, which other systems have
	@scripts/libcxx.sh $(ARGS)

neon:          ## Run the attention kernel's tests on 64-bit ARM, under qemu
	@scripts/arm64.sh --kernels

arm64:         ## Build for 64-bit ARM and run the unit tests, the program, a .deb and the wheel under qemu, an hour and a half; only a part: ARGS=--build, --deb, --serve
	@scripts/arm64.sh $(ARGS)

macos:         ## Cross-compile the program for macOS on Apple Silicon, and look at its file: nothing is run
	@scripts/macos.sh $(ARGS)

cuda:          ## Build the GPU's kernels, their tests and benchmarks, with this machine's nvcc (12.4 or newer) or one from PyPI; with a GPU, run the tests
	@scripts/cuda.sh

bench-cuda:    ## Test and measure a GPU, in resumable stages; then bench/page.py (ARGS="PROGRAMS FOLDER RESULTS")
	@scripts/bench-cuda.sh $(ARGS)

bench:         ## Measure against llama.cpp (ARGS="--only all": hours), or two builds: ARGS="--before OTHER/coppice --only engine"
	@scripts/bench.sh $(ARGS)

bench-traces:  ## Replay recorded requests against the cache, a few minutes: TRACES=folder of *.jsonl
	@scripts/bench-traces.sh "$(TRACES)" $(ARGS)

bench-structured: ## Check and follow 500 JSON schemas, and validate what comes: SCHEMAS=folder of *.json
	@scripts/bench-structured.sh "$(SCHEMAS)"

bench-quality: ## What the KV formats cost: perplexity and KL divergence against f16 on a novel
	@scripts/bench-quality.sh $(ARGS)

bench-perplexity: ## Perplexity of a novel beside llama.cpp's own tool, for eight files
	@scripts/bench-perplexity.sh $(ARGS)

bench-hybrids: ## Agents' transcripts on a hybrid in half the room they fill, against no sharing; perplexity token by token
	@scripts/bench-hybrids.sh $(ARGS)

bare:          ## make demo in a fresh clone on a bare Debian 12, as a newcomer would; another command: ARGS="make test"
	@scripts/bare.sh $(ARGS)

everything:    ## Every target in its shortest form, before a release, some hours: DATA= SCHEMAS= TRACES= as above; some: ARGS="soak fuzz"; goes on: ARGS=--resume
	@DATA="$(DATA)" SCHEMAS="$(SCHEMAS)" TRACES="$(TRACES)" scripts/everything.sh $(ARGS)

format:        ## Format all C++ files
	@scripts/format.sh

check-format:  ## Say which C++ files are not formatted
	@scripts/format.sh --check

lint:          ## Look for faults in changed C++ files, and for arrows upward; all files: ARGS=--all
	@scripts/lint.sh $(ARGS)

clean:         ## Delete the build folders (the cache folder stays)
	@rm -rf build build-arm64 build-asan build-bare build-macos build-package build-wheel build-wheel-arm64 build-tsan build-fuzz
