// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Embeds every experiment folder (claim.md, scenario.yaml, expect.yaml) into the crate, so that
//! the binary runs and judges them from anywhere.

use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::{env, fs};

const FILES: [&str; 3] = ["claim.md", "scenario.yaml", "expect.yaml"];

fn main() {
    let here = PathBuf::from(env::var("CARGO_MANIFEST_DIR").expect("cargo sets it"));
    let root = here.parent().expect("runner/ lies in experiments/").to_path_buf();
    let mut folders = Vec::new();
    for (group, prefix) in [("papers", ""), ("product", "product/")] {
        println!("cargo:rerun-if-changed={}", root.join(group).display());
        collect(&root.join(group), &root.join(group), prefix, &mut folders);
    }
    folders.sort();
    let mut source = String::from("pub(crate) const EMBEDDED: &[Embedded] = &[\n");
    for (name, folder) in folders {
        let _ = writeln!(source, "Embedded {{ name: {name:?},");
        for file in FILES {
            let path = folder.join(file);
            println!("cargo:rerun-if-changed={}", path.display());
            let field = file.split('.').next().unwrap_or(file);
            let _ = writeln!(source, "{field}: include_str!({:?}),", path.display().to_string());
        }
        source.push_str("},\n");
    }
    source.push_str("];\n");
    let out = PathBuf::from(env::var("OUT_DIR").expect("cargo sets it")).join("embedded.rs");
    fs::write(out, source).expect("OUT_DIR is writable");
}

/// Every folder below `folder` that holds an expect.yaml, with its name.
fn collect(top: &Path, folder: &Path, prefix: &str, found: &mut Vec<(String, PathBuf)>) {
    let Ok(entries) = fs::read_dir(folder) else { return };
    for path in entries.flatten().map(|entry| entry.path()).filter(|path| path.is_dir()) {
        if path.join("expect.yaml").is_file() {
            let name = path.strip_prefix(top).expect("below top").display().to_string();
            found.push((format!("{prefix}{name}"), path.clone()));
        }
        collect(top, &path, prefix, found);
    }
}
