// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Everything about the BPF tool chain: which clang, which flags. Used by build.rs, and by the
//! tests that load what other compilers make.

use libbpf_cargo::SkeletonBuilder;
use std::path::{Path, PathBuf};
use std::process::Command;

/// The objects, by the names of their sources in `hook/`.
pub(crate) const HOOKS: [&str; 13] = [
    "xdp",
    "tc",
    "egress",
    "heartbeat",
    "replay",
    "request_in",
    "request_out",
    "sweep",
    "router_in",
    "router_out",
    "router_sweep",
    "mark_in",
    "mark_out",
];

/// Sources whose programs run at XDP (`packet/context.h`); all others run at tc, or see no packet.
const AT_XDP: [&str; 3] = ["xdp.bpf.c", "flood.bpf.c", "ring.bpf.c"];

/// Compilers in order of preference, where `TIDEGATE_CLANG` does not name one.
const CLANGS: [&str; 5] = ["clang-19", "clang-22", "clang-16", "clang-14", "clang"];

/// The compiler to use.
pub(crate) fn clang() -> Result<PathBuf, String> {
    if let Some(clang) = std::env::var_os("TIDEGATE_CLANG") {
        return Ok(clang.into());
    }
    let found = CLANGS.iter().find(|clang| {
        Command::new(clang).arg("--version").output().is_ok_and(|output| output.status.success())
    });
    found.map(PathBuf::from).ok_or_else(|| {
        format!("no clang found: install one of {CLANGS:?}, or name one in TIDEGATE_CLANG")
    })
}

/// Compiles `root/hook/<hook>.bpf.c` to `object`.
pub(crate) fn compile(root: &Path, hook: &str, clang: &Path, object: &Path) -> Result<(), String> {
    compile_source(&root.join(format!("hook/{hook}.bpf.c")), clang, object)
}

/// Compiles any source to `object`.
pub(crate) fn compile_source(source: &Path, clang: &Path, object: &Path) -> Result<(), String> {
    let mut arguments = vec!["-mcpu=v3", "-Wall", "-Wextra", "-Werror", "-Wno-unused-parameter"];
    if AT_XDP.iter().any(|name| source.ends_with(name)) {
        arguments.push("-DTG_AT_XDP");
    }
    SkeletonBuilder::new()
        .source(source)
        .obj(object)
        .clang(clang)
        .clang_args(arguments)
        .build()
        .map_err(|error| format!("{} with {}: {error:#}", source.display(), clang.display()))
}
