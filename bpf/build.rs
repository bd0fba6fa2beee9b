// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Compiles the hooks, which the loader embeds, and generates the Rust side of `abi/`.

#[path = "../policy/bindings.rs"]
mod bindings;
#[path = "builder.rs"]
mod builder;

use bindgen::callbacks::IntKind;
use bindings::Conventions;
use std::env;
use std::path::{Path, PathBuf};

/// Constants have the types of the fields that they are stored in or compared with.
const CONVENTIONS: Conventions = Conventions {
    constants: &[
        ("TG_ABI_VERSION", IntKind::U32),
        ("TG_SLOTS", IntKind::U32),
        ("TG_TABLE_", IntKind::U32),
        ("TG_LINK_", IntKind::U32),
        ("TG_ANSWER_TX", IntKind::U32),
        ("TG_ANSWER_REDIRECT", IntKind::U32),
        ("TG_SOURCE_OPEN_BITS", IntKind::U32),
        ("TG_SRC_BLOCKS", IntKind::Custom { name: "usize", is_signed: false }),
        ("TG_SRC_BLOCK", IntKind::U16),
        ("TG_SRC_EXEMPT", IntKind::U16),
        ("TG_PORT_BYTES", IntKind::Custom { name: "usize", is_signed: false }),
        ("TG_PORT_", IntKind::U8),
        ("TG_LISTENER_IPV", IntKind::U8),
        ("TG_SERVICE_", IntKind::U8),
        ("TG_LISTEN_", IntKind::U8),
        ("TG_METHOD_", IntKind::U8),
        ("TG_REFUSE_", IntKind::U8),
        ("TG_GAUGES_EACH", IntKind::U8),
        ("TG_IMPORT_ASKS_", IntKind::U8),
        ("TG_ROUTER_PREFIX_BITS", IntKind::U32),
        ("TG_RULE_TLS", IntKind::U8),
        ("TG_RULE_CLOSE", IntKind::U8),
    ],
    private: &[],
};

fn main() -> Result<(), String> {
    let root = PathBuf::from(env::var_os("CARGO_MANIFEST_DIR").ok_or("cargo sets it")?);
    let out = PathBuf::from(env::var_os("OUT_DIR").ok_or("cargo sets it")?);
    for watched in [
        "hook",
        "packet",
        "border",
        "datagram",
        "http",
        "import",
        "track",
        "reply",
        "syn",
        "request",
        "router",
        "mark",
        "abi",
        "vmlinux",
        "builder.rs",
        "../policy/bindings.rs",
        "../policy/contract",
        "../policy/chain",
        "../policy/algo",
        "../policy/router",
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
    generate(&root, &out.join("abi.rs"))
}

/// Writes what user space needs of `abi/` and of what that is made of.
fn generate(root: &Path, file: &Path) -> Result<(), String> {
    println!("cargo:rerun-if-env-changed=LIBCLANG_PATH");
    let header = |path: &str| root.join(path).display().to_string();
    let bindings = bindings::bindings(CONVENTIONS)
        .header(header("vmlinux/vmlinux.h"))
        .header(header("abi/request.h"))
        .header(header("abi/import.h"))
        .header(header("abi/router.h"))
        .header(header("abi/mark.h"))
        // Only the bodies of inline functions call helpers, and no function is bound.
        .clang_args(["--target=bpf", "-Wno-implicit-function-declaration"])
        .allowlist_file(".*/abi/[a-z]+\\.h")
        .allowlist_type(
            "tg_(chain|bucket_copy|policy_stats|cohort|senders|request_chain|state|request_state)",
        )
        .allowlist_type("tg_(bucket|bucket_params|event|verdict)|bpf_spin_lock|xdp_md")
        .allowlist_type("tg_(durations|crowd_limit|crowd_bucket|crowd_filter|abacus_exact_params)")
        .allowlist_recursively(false)
        .blocklist_type("tg_.*__bindgen_ty_.*")
        .opaque_type("tg_(params|policy_stats|state|request_state|limits_row|crowd_filter)")
        .generate_comments(false)
        .generate()
        .map_err(|error| format!("bpf/abi to Rust: {error}"))?;
    bindings.write_to_file(file).map_err(|error| format!("{}: {error}", file.display()))
}
