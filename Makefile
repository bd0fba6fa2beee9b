# SPDX-License-Identifier: Apache-2.0 OR MIT
# Everyday commands. Each is a cargo xtask of the same name (docs/development.md);
# what is added here: the order of steps, and a linker where there is none yet.

# rustup's place: a login shell has it in PATH, `make` from a service may not.
export PATH := $(HOME)/.cargo/bin:$(PATH)

XTASK := cargo xtask

.PHONY: help linker setup build package test demo check tidy bench golden clean

help:
	@echo 'make setup    install what is needed (Debian packages; needs root)'
	@echo 'make build    target/release/tidegate and target/release/tidegate-lab'
	@echo 'make package  those, and a Debian package of the product'
	@echo 'make test     set up, build, run every test (needs root)'
	@echo 'make demo     set up, build, overload a real server without and with tidegate (needs root)'
	@echo 'make check    format, lints, tidy'
	@echo 'make tidy     the rules of the repository'
	@echo 'make bench    packets, requests, a router, refusals and the simulator, side by side (needs root)'
	@echo 'make golden   golden tables and generated documents: compare (BLESS=1: rewrite)'
	@echo 'make clean    remove build results and outputs'

# Rust links with cc: without it not even xtask, which installs the rest, builds.
linker:
	@command -v cc >/dev/null || sh xtask/linker.sh

setup: linker
	@$(XTASK) setup

build: setup
	@$(XTASK) build

package: setup
	@$(XTASK) package

test: setup
	@$(XTASK) test

demo: setup
	@$(XTASK) demo

check: setup
	@$(XTASK) check

tidy: linker
	@$(XTASK) tidy

bench: setup
	@$(XTASK) bench

golden: setup
	@$(XTASK) golden $(if $(BLESS),--bless)

clean:
	@cargo clean
	@rm -rf out
