// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Compiles the hooks; the loader embeds them.

#[path = "builder.rs"]
mod builder;

use std::env;
use std::path::PathBuf;

fn main() -> Result<(), String> {
    let root = PathBuf::from(env::var_os("CARGO_MANIFEST_DIR").ok_or("cargo sets it")?);
    let out = PathBuf::from(env::var_os("OUT_DIR").ok_or("cargo sets it")?);
    for watched in [
        "hook",
        "packet",
        "http",
        "track",
        "reply",
        "syn",
        "request",
        "abi",
        "vmlinux",
        "builder.rs",
        "../policy/contract",
        "../policy/chain",
        "../policy/algo",
        "../policy/policies.h",
        "../policy/policies.def",
        "../policy/reasons.def",
    ] {
        println!("cargo:rerun-if-changed={watched}");
    }
    println!("cargo:rerun-if-env-changed=TIDEGATE_CLANG");
    let clang = builder::clang()?;
    for hook in builder::HOOKS {
        builder::compile(&root, hook, &clang, &out.join(format!("{hook}.bpf.o")))?;
    }
    Ok(())
}
