// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The BPF objects of the benches: compiled when a worker starts, by the compiler of the product.

#[allow(dead_code, reason = "the build script uses the rest")]
#[path = "../../builder.rs"]
mod builder;

use anyhow::{Result, anyhow};
use std::path::Path;
use tidegate_bpf::testing::bench::Bench;

/// An object, to be loaded as often as wanted.
#[derive(Clone, Debug)]
pub struct Object {
    name: &'static str,
    bytes: Vec<u8>,
}

impl Object {
    /// Compiles `tests/bench/<name>.bpf.c`.
    pub fn compile(name: &'static str) -> Result<Self> {
        let folder = tempfile::tempdir()?;
        let object = folder.path().join("object.o");
        let root = Path::new(env!("CARGO_MANIFEST_DIR"));
        let source = root.join(format!("tests/bench/{name}.bpf.c"));
        let compile = || builder::compile_source(&source, &builder::clang()?, &object);
        compile().map_err(|error| anyhow!(error))?;
        Ok(Self { name, bytes: std::fs::read(&object)? })
    }

    /// Loads it: maps and programs of its own.
    pub fn load(&self) -> Result<Bench> {
        Ok(Bench::load(self.name, &self.bytes)?)
    }
}
