// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Compiling a C file for the kernel and loading it: what the product's loader does for its own
//! objects, done here for test objects and for other compilers.

use libbpf_cargo::SkeletonBuilder;
use libbpf_rs::{MapCore, MapFlags, Object, ObjectBuilder, ProgramInput};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};

/// Every compiler that builds the dataplane; `cargo xtask setup` installs them all.
pub const COMPILERS: [&str; 4] = ["clang-14", "clang-16", "clang-19", "clang-22"];
/// The one that the product is built with.
pub const COMPILER_DEFAULT: &str = "clang-19";

/// The root of the repository.
pub fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap()
}

/// Fails with words, not with EPERM from somewhere deep down.
pub fn require_root() {
    assert!(
        rustix::process::geteuid().is_root(),
        "this test loads programs into the kernel: run it as root (sudo -E cargo test …)"
    );
}

/// Compiles `source` (under the repository's root) for the kernel; the object's path.
pub fn compile(source: &str, compiler: &str) -> PathBuf {
    static SERIAL: AtomicU32 = AtomicU32::new(0);
    let serial = SERIAL.fetch_add(1, Ordering::Relaxed);
    let stem = Path::new(source).file_name().unwrap().to_str().unwrap();
    let name = format!("{stem}-{compiler}-{}-{serial}.o", std::process::id());
    let object = Path::new(env!("CARGO_TARGET_TMPDIR")).join(name);
    let mut arguments = vec!["-Wall".into(), "-Werror".into()];
    for include in ["policy", "bpf", "bpf/vmlinux"] {
        arguments.push(format!("-I{}", root().join(include).display()));
    }
    arguments.push(format!("-I/usr/include/{}-linux-gnu", std::env::consts::ARCH));
    SkeletonBuilder::new()
        .source(root().join(source))
        .obj(&object)
        .clang(compiler)
        .clang_args(arguments)
        .build()
        .unwrap_or_else(|error| panic!("{compiler} (`make setup` installs it): {error:#}"));
    object
}

/// A loaded object, its maps and programs by name.
pub struct Loaded(Object);

impl Loaded {
    /// Loads the object and removes its file.
    pub fn load(object: &Path) -> Self {
        let open = ObjectBuilder::default().open_file(object).unwrap();
        let loaded = open.load().unwrap_or_else(|error| panic!("{}: {error}", object.display()));
        std::fs::remove_file(object).unwrap();
        Self(loaded)
    }

    /// Writes the only entry of an array map.
    pub fn write(&self, map: &str, value: &[u8]) {
        let found = self.0.maps().find(|m| m.name() == map).unwrap();
        found.update(&0_u32.to_ne_bytes(), value, MapFlags::ANY).unwrap();
    }

    /// Reads the only entry of an array map.
    pub fn read(&self, map: &str) -> Vec<u8> {
        let found = self.0.maps().find(|m| m.name() == map).unwrap();
        found.lookup(&0_u32.to_ne_bytes(), MapFlags::ANY).unwrap().unwrap()
    }

    /// Runs a syscall program once over this context, which it may change.
    pub fn run(&self, program: &str, context: &mut [u8]) -> u32 {
        let found = self.0.progs_mut().find(|p| p.name() == program).unwrap();
        let input = ProgramInput { context_in: Some(context), ..ProgramInput::default() };
        found.test_run(input).unwrap().return_value
    }
}
