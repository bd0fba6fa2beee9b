#!/bin/sh
# SPDX-License-Identifier: Apache-2.0 OR MIT
# Installs a C linker, the one thing that `cargo xtask setup` cannot install
# itself: it has to be linked first. Called by make only when there is no `cc`.
set -eu

if [ "$(id -u)" != 0 ]; then
	echo 'tidegate: no C linker (cc) here; as root: apt-get install gcc libc6-dev' >&2
	exit 1
fi
if ! command -v apt-get >/dev/null; then
	echo 'tidegate: no C linker (cc) and no apt-get here: install gcc and the C library headers by hand' >&2
	exit 1
fi
export DEBIAN_FRONTEND=noninteractive
apt-get update -q
apt-get install -y -q --no-install-recommends gcc libc6-dev
