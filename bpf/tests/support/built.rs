// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The hooks' C as ordinary programs: how they are compiled.

use super::place::root;
use std::collections::hash_map::DefaultHasher;
use std::fs::{self, File};
use std::hash::{Hash, Hasher as _};
use std::path::{Path, PathBuf};
use std::process::Command;

/// For coverage. What is always inlined would be counted once for each place that it is inlined into.
const COVERED: [&str; 3] = ["-O0", "--coverage", "-Dalways_inline="];
const SANITIZED: [&str; 3] = ["-O1", "-fsanitize=address,undefined", "-fno-sanitize-recover=all"];
/// Nobody debugs a planted bug, and debug information is most of what its compiler would write.
const QUICK: [&str; 3] = ["-O0", "-g0", "-w"];

/// What was made under this name from all that is hashed: by `make`, in a folder, or by a test before.
pub fn kept(name: &str, from: impl Hash, make: impl FnOnce(&Path) -> PathBuf) -> PathBuf {
    let place = Path::new(env_tmpdir()).join("native");
    fs::create_dir_all(&place).unwrap();
    let locked = File::create(place.join(format!("{name}.lock"))).unwrap();
    locked.lock().unwrap();
    let mut hash = DefaultHasher::new();
    from.hash(&mut hash);
    let (before, hash) = (format!("{name}-"), hash.finish());
    let kept = place.join(format!("{before}{hash:016x}"));
    if kept.exists() {
        return kept;
    }
    // What was built from other sources is of no use any more.
    let others = fs::read_dir(&place).unwrap().map(|entry| entry.unwrap());
    for other in others.filter(|it| it.file_name().to_string_lossy().starts_with(&before)) {
        fs::remove_file(other.path()).unwrap();
    }
    let dir = tempfile::tempdir_in(&place).unwrap();
    fs::rename(make(dir.path()), &kept).unwrap();
    kept
}

/// A program to compile.
#[derive(Clone, Debug)]
pub struct Source {
    /// Its name when it is built.
    pub name: String,
    /// Its file in bpf/tests/native.
    pub main: &'static str,
    /// More flags.
    pub flags: Vec<String>,
}

impl Source {
    /// With sanitizers. It takes seconds, and many test programs want the same: the result stays below
    /// target/, under a hash of everything that the compiler reads.
    pub fn sanitized(&self) -> PathBuf {
        let mut read = self.compiler(&cc(), root(), &SANITIZED);
        let read = read.args(["-E", "-dD"]).output().unwrap().stdout;
        kept(&self.name, (cc(), SANITIZED, self.main, &self.flags, read), |dir| {
            self.build((&cc(), root(), dir), &SANITIZED)
        })
    }

    /// With sanitizers, from sources below another root, which may hold bugs.
    pub fn sanitized_from(&self, sources: &Path, dir: &Path) -> PathBuf {
        self.build((&cc(), sources, dir), &[&SANITIZED[..], &["-g0", "-w"]].concat())
    }

    /// For coverage, and without sanitizers, which would be counted as branches.
    pub fn covered(&self, dir: &Path) -> PathBuf {
        self.build((&cc(), root(), dir), &COVERED)
    }

    /// From sources below another root, which may hold bugs: by the compiler that is quick about it, and
    /// without warnings.
    pub fn quick(&self, sources: &Path, dir: &Path) -> PathBuf {
        let clang = std::env::var("TIDEGATE_CLANG").unwrap_or_else(|_| "clang-19".into());
        self.build((&clang, sources, dir), &QUICK)
    }

    /// `sources`: where bpf/ and policy/ are.
    fn compiler(&self, compiler: &str, sources: &Path, flags: &[&str]) -> Command {
        let native = sources.join("bpf/tests/native");
        let mut command = Command::new(compiler);
        command
            .args(["-std=gnu11", "-g", "-Wall", "-Werror", "-Wno-unknown-pragmas"])
            .args(["-Wno-unused-function", "-Wno-address-of-packed-member"])
            .args(flags)
            .args(&self.flags)
            .arg(format!("-I{}", native.display()))
            .arg(format!("-I{}", sources.join("bpf").display()))
            .arg(native.join(self.main));
        command
    }

    fn build(&self, (compiler, sources, dir): (&str, &Path, &Path), flags: &[&str]) -> PathBuf {
        let binary = dir.join(&self.name);
        let mut command = self.compiler(compiler, sources, flags);
        let built = command.arg("-o").arg(&binary).current_dir(dir).output();
        let built =
            built.unwrap_or_else(|error| panic!("{compiler} (`make setup` installs it): {error}"));
        assert!(built.status.success(), "{}", String::from_utf8_lossy(&built.stderr));
        binary
    }
}

/// The C compiler; `CC` chooses another.
fn cc() -> String {
    std::env::var("CC").unwrap_or_else(|_| "cc".into())
}

/// Cargo names it to tests; fuzz targets are none.
fn env_tmpdir() -> &'static str {
    option_env!("CARGO_TARGET_TMPDIR").unwrap_or(concat!(env!("CARGO_MANIFEST_DIR"), "/target/tmp"))
}
