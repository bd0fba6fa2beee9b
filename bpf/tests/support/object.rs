// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Compiling a C file for the kernel and loading it: what the product's loader does for its own
//! objects, done here for test objects and for other compilers.

#[path = "../../builder.rs"]
#[allow(dead_code, reason = "the build script uses the rest")]
mod builder;

use super::built::kept;
use super::place::{HOOK_FOLDERS, root};
use libbpf_rs::query::ProgInfoIter;
use libbpf_rs::{MapCore, MapFlags, Object, ObjectBuilder, Program, ProgramInput};
use std::os::fd::AsFd as _;
use std::path::{Path, PathBuf};
use std::process::Command;
use tidegate_bpf::testing::Objects;
use tidegate_bpf::{MarkObjects, RouterObjects};

/// Every compiler that builds the dataplane; `cargo xtask setup` installs them all.
pub const COMPILERS: [&str; 4] = ["clang-14", "clang-16", "clang-19", "clang-22"];
/// The one that the product is built with.
pub const COMPILER_DEFAULT: &str = "clang-19";
const MISSING: &str = "`make setup` installs every compiler";

/// Fails with words, not with EPERM from somewhere deep down.
pub fn require_root() {
    assert!(
        rustix::process::geteuid().is_root(),
        "this test loads programs into the kernel: run it as root (sudo -E cargo test …)"
    );
}

/// Where objects are put, gone when dropped.
fn directory() -> tempfile::TempDir {
    tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap()
}

/// What objects are made from: the hooks' sources and what they include, how they are compiled, and by which
/// version.
fn made_from(compiler: &str) -> Vec<Vec<u8>> {
    let folders = HOOK_FOLDERS.into_iter().chain(["bpf/abi", "bpf/vmlinux", "policy"]);
    let mut folders: Vec<PathBuf> = folders.map(|folder| root().join(folder)).collect();
    let mut files = vec![root().join("bpf/builder.rs"), root().join("Cargo.lock")];
    while let Some(folder) = folders.pop() {
        for entry in std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path()) {
            if entry.is_dir() { &mut folders } else { &mut files }.push(entry);
        }
    }
    files.sort();
    let version = Command::new(compiler).arg("--version").output();
    let version = version.unwrap_or_else(|error| panic!("{compiler}: {error} ({MISSING})"));
    let read = files.into_iter().map(|file| std::fs::read(file).unwrap());
    read.chain([version.stdout]).collect()
}

/// Compiles a hook with another compiler, or takes what was kept of that.
fn compiled(compiler: &str) -> impl Fn(&str) -> Vec<u8> + use<'_> {
    let from = made_from(compiler);
    move |hook: &str| {
        let object = kept(&format!("{compiler}-{hook}"), &from, |dir| {
            let object = dir.join("made.o");
            let made = builder::compile(&root().join("bpf"), hook, Path::new(compiler), &object);
            made.unwrap_or_else(|error| panic!("{error} ({MISSING})"));
            object
        });
        std::fs::read(object).unwrap()
    }
}

/// The programs of a router's measurement as another compiler makes them.
pub fn router_objects(compiler: &str) -> RouterObjects {
    let compile = compiled(compiler);
    RouterObjects {
        ingress: compile("router_in"),
        egress: compile("router_out"),
        sweep: compile("router_sweep"),
    }
}

/// The programs of marks as another compiler makes them.
pub fn mark_objects(compiler: &str) -> MarkObjects {
    let compile = compiled(compiler);
    MarkObjects { ingress: compile("mark_in"), egress: compile("mark_out") }
}

/// The hooks as another compiler makes them. It takes 6 s of CPU, so they are kept for other tests.
pub fn objects(compiler: &str) -> Objects {
    let compile = compiled(compiler);
    Objects {
        xdp: compile("xdp"),
        tc: compile("tc"),
        egress: compile("egress"),
        heartbeat: compile("heartbeat"),
        replay: compile("replay"),
        request_in: compile("request_in"),
        request_out: compile("request_out"),
        sweep: compile("sweep"),
    }
}

/// An instruction as the kernel was given it.
#[derive(Clone, Copy, Debug, Default)]
pub struct Insn {
    /// Class, operation and source.
    pub code: u8,
    /// Registers.
    pub dst: u8,
    /// See [`Insn::dst`].
    pub src: u8,
    /// Of a jump, or into memory.
    pub off: i16,
    /// Constant.
    pub imm: i32,
}

/// Loads an object; the instructions of its programs, those of the functions that they call behind them.
pub fn instructions(object: &[u8]) -> Vec<Vec<Insn>> {
    let open = ObjectBuilder::default().open_memory(object).unwrap();
    let loaded = open.load().unwrap();
    let insn = |insn: &libbpf_rs::libbpf_sys::bpf_insn| Insn {
        code: insn.code,
        dst: insn.dst_reg(),
        src: insn.src_reg(),
        off: insn.off,
        imm: insn.imm,
    };
    loaded.progs().map(|program| program.insns().iter().map(insn).collect()).collect()
}

/// A loaded object, its maps and programs by name.
pub struct Loaded(Object);

impl Loaded {
    /// Compiles `source` (under the repository's root) for the kernel and loads it.
    pub fn compile(source: &str, compiler: &str) -> Self {
        let (directory, source) = (directory(), root().join(source));
        let object = directory.path().join("test.o");
        builder::compile_source(&source, Path::new(compiler), &object)
            .unwrap_or_else(|error| panic!("{error} ({MISSING})"));
        let open = ObjectBuilder::default().open_file(&object).unwrap();
        Self(open.load().unwrap_or_else(|error| panic!("{}: {error}", source.display())))
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

    /// Writes an entry of a map that is gone with the object.
    pub fn put(&self, map: &str, key: &[u8], value: &[u8]) {
        let found = self.0.maps().find(|m| m.name() == map).unwrap();
        found.update(key, value, MapFlags::ANY).unwrap();
    }

    /// Runs a syscall program once over this context, which it may change.
    pub fn run(&self, program: &str, context: &mut [u8]) -> u32 {
        let found = self.0.progs_mut().find(|p| p.name() == program).unwrap();
        let input = ProgramInput { context_in: Some(context), ..ProgramInput::default() };
        found.test_run(input).unwrap().return_value
    }

    /// Runs a tc program once over this frame; what it returns.
    pub fn run_frame(&self, program: &str, frame: &[u8]) -> i32 {
        let found = self.0.progs_mut().find(|p| p.name() == program).unwrap();
        let input = ProgramInput { data_in: Some(frame), ..ProgramInput::default() };
        found.test_run(input).unwrap().return_value as i32
    }

    /// Instructions that the verifier processed for a program.
    pub fn verified(&self, program: &str) -> u32 {
        let found = self.0.progs().find(|p| p.name() == program).unwrap();
        let id = Program::id_from_fd(found.as_fd()).unwrap();
        ProgInfoIter::default().find(|info| info.id == id).unwrap().verified_insns
    }
}
