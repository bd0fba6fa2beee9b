// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Builds the harnesses in C with coverage for libFuzzer and with sanitizers, one archive a target.

use std::path::PathBuf;

/// Target, harness, and what the harness is told: the hook's file, its function, its context.
const TARGETS: [(&str, &str, &[(&str, Option<&str>)]); 5] = [
    (
        "hook_xdp",
        "hook.c",
        &[
            ("TG_HOOK", Some("\"hook/xdp.bpf.c\"")),
            ("TG_HOOK_FN", Some("tg_xdp")),
            ("TG_AT_XDP", None),
        ],
    ),
    (
        "hook_tc",
        "hook.c",
        &[("TG_HOOK", Some("\"hook/tc.bpf.c\"")), ("TG_HOOK_FN", Some("tg_ingress"))],
    ),
    (
        "turns",
        "turns.c",
        &[
            ("TG_HOOK", Some("\"hook/tc.bpf.c\"")),
            ("TG_HOOK_FN", Some("tg_ingress")),
            ("TG_HOOK_EGRESS", Some("\"hook/egress.bpf.c\"")),
        ],
    ),
    ("policy", "policy.c", &[]),
    ("request", "request.c", &[]),
];

fn main() {
    println!("cargo:rerun-if-changed=harness");
    println!("cargo:rerun-if-changed=../bpf");
    println!("cargo:rerun-if-changed=../policy");
    println!("cargo:rerun-if-env-changed=TIDEGATE_CLANG");
    let out = PathBuf::from(std::env::var_os("OUT_DIR").expect("cargo sets it"));
    let clang = std::env::var("TIDEGATE_CLANG").unwrap_or_else(|_| "clang-19".into());
    for (target, harness, defines) in TARGETS {
        let mut build = cc::Build::new();
        build.compiler(&clang).cargo_metadata(false).opt_level(1).flag("-std=gnu11").flag("-g");
        build.flag("-fsanitize=fuzzer-no-link,address,undefined");
        // callbacks of bpf_loop are called as the kernel calls them, with a context of any type
        build.flag("-fno-sanitize=function");
        // frames end at a guard page, so they begin anywhere
        build.flag("-fno-sanitize=alignment").flag("-fsanitize-trap=undefined");
        build.flag("-Wno-unknown-pragmas").flag("-Wno-unknown-attributes");
        build.flag("-Wno-unused-function").flag("-Wno-unused-parameter");
        build.include("../bpf/tests/native").include("../bpf").include("../policy");
        for (name, value) in defines {
            build.define(name, *value);
        }
        build.file(format!("harness/{harness}")).file("harness/main.c");
        build.compile(&format!("fuzz_{target}"));
        let archive = out.join(format!("libfuzz_{target}.a"));
        println!("cargo:rustc-link-arg-bin={target}={}", archive.display());
    }
}
