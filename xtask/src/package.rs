// SPDX-License-Identifier: Apache-2.0 OR MIT
//! `cargo xtask package`: a Debian package of the product, with its unit, its user, manual pages and examples.
//!
//! It is made by dpkg's own tools; what it needs is what dpkg-shlibdeps finds in the program.

use anyhow::{Context, Result, ensure};
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use crate::{build, process};

/// Where the package and the tree that it is made of are.
const FOLDER: &str = "target/package";
/// Filled in where it stands in [`CONTROL`].
const CONTROL: &str = include_str!("../../packaging/debian/control");
/// What dpkg runs on the machine.
const SCRIPTS: [&str; 3] = ["postinst", "prerm", "postrm"];
/// From here to there, as they are.
const FILES: [(&str, &str); 5] = [
    ("packaging/tidegate.service", "usr/lib/systemd/system/tidegate.service"),
    ("packaging/tidegate.sysusers", "usr/lib/sysusers.d/tidegate.conf"),
    ("packaging/tidegate.schema.json", "usr/share/tidegate/tidegate.schema.json"),
    ("docs/install.md", "usr/share/doc/tidegate/install.md"),
    ("CHANGELOG.md", "usr/share/doc/tidegate/CHANGELOG.md"),
];
/// What these folders hold is an example.
const EXAMPLES: [&str; 2] = ["packaging", "packaging/kubernetes"];
const DOCUMENTS: &str = "usr/share/doc/tidegate";
const LICENCES: [&str; 4] =
    ["LICENSE-APACHE", "LICENSE-MIT", "LICENSES/BSD-2-Clause.txt", "LICENSES/GPL-2.0-only.txt"];

/// Builds the programs, and the package of the product.
pub(crate) fn run() -> Result<()> {
    build::run()?;
    let path = make(&build::product(), &process::root().join(FOLDER))?;
    let shown = path.strip_prefix(process::root()).unwrap_or(&path);
    println!("built: {}", shown.display());
    Ok(())
}

/// Makes the package of this program below the folder, which is made anew; the result is its path.
fn make(program: &Path, folder: &Path) -> Result<PathBuf> {
    if folder.exists() {
        fs::remove_dir_all(folder).with_context(|| format!("removing {}", folder.display()))?;
    }
    let tree = folder.join("tidegate");
    put(program, &tree.join("usr/bin/tidegate"), 0o755)?;
    for (from, to) in FILES {
        put(&process::root().join(from), &tree.join(to), 0o644)?;
    }
    examples(&tree)?;
    made_by_the_program(&tree)?;
    copyright(&tree)?;
    fs::create_dir_all(tree.join("etc/tidegate"))?;
    control(&tree, folder)?;
    let mut dpkg = process::command("dpkg-deb");
    process::run(dpkg.args(["--root-owner-group", "--build"]).args([&tree, folder]))?;
    let mut packages = fs::read_dir(folder)?.flatten().map(|entry| entry.path());
    let package = packages.find(|path| path.extension().is_some_and(|is| is == "deb"));
    package.context("dpkg-deb made no package")
}

fn put(from: &Path, to: &Path, mode: u32) -> Result<()> {
    fs::create_dir_all(to.parent().unwrap_or(to))?;
    fs::copy(from, to).with_context(|| format!("{} to {}", from.display(), to.display()))?;
    Ok(fs::set_permissions(to, fs::Permissions::from_mode(mode))?)
}

fn write(to: &Path, text: impl AsRef<[u8]>, mode: u32) -> Result<()> {
    fs::create_dir_all(to.parent().unwrap_or(to))?;
    fs::write(to, text).with_context(|| to.display().to_string())?;
    Ok(fs::set_permissions(to, fs::Permissions::from_mode(mode))?)
}

/// Every configuration of packaging that is not installed itself.
fn examples(tree: &Path) -> Result<()> {
    for folder in EXAMPLES {
        let from = process::root().join(folder);
        for entry in fs::read_dir(&from).with_context(|| folder.to_owned())? {
            let path = entry?.path();
            let installed = FILES.iter().any(|(file, _)| process::root().join(file) == path);
            if path.is_file() && !installed {
                let name = path.strip_prefix(process::root().join("packaging"))?;
                put(&path, &tree.join(DOCUMENTS).join("examples").join(name), 0o644)?;
            }
        }
    }
    Ok(())
}

/// Manual pages, and what shells complete.
fn made_by_the_program(tree: &Path) -> Result<()> {
    let program = tree.join("usr/bin/tidegate");
    let pages = tree.join("usr/share/man/man1");
    process::run(process::command(&program).arg("man").arg(&pages))?;
    let shells = [
        ("bash", "usr/share/bash-completion/completions/tidegate"),
        ("zsh", "usr/share/zsh/vendor-completions/_tidegate"),
        ("fish", "usr/share/fish/vendor_completions.d/tidegate.fish"),
    ];
    for (shell, to) in shells {
        let text = process::output(process::command(&program).args(["completions", shell]))?;
        write(&tree.join(to), text, 0o644)?;
    }
    Ok(())
}

/// All licences of what is in the program, in the file in which Debian looks for them.
fn copyright(tree: &Path) -> Result<()> {
    let mut text = String::from(
        "tidegate: Apache-2.0 OR MIT; its C in policy/ and bpf/: GPL-2.0-only OR BSD-2-Clause.\n",
    );
    for name in LICENCES {
        let licence = fs::read_to_string(process::root().join(name));
        let licence = licence.with_context(|| name.to_owned())?;
        text.push_str(&format!("\n---- {name}\n\n{licence}"));
    }
    write(&tree.join(DOCUMENTS).join("copyright"), text, 0o644)
}

/// What dpkg reads, and runs.
fn control(tree: &Path, folder: &Path) -> Result<()> {
    let architecture = process::output(process::command("dpkg").arg("--print-architecture"))?;
    let words = [
        ("@VERSION@", env!("CARGO_PKG_VERSION").to_owned()),
        ("@ARCHITECTURE@", architecture.trim().to_owned()),
        ("@DEPENDS@", libraries(&tree.join("usr/bin/tidegate"), folder)?),
    ];
    let lines = CONTROL.lines().filter(|line| !line.starts_with('#'));
    let text: String = lines.map(|line| format!("{line}\n")).collect();
    let text = words.iter().fold(text, |text, (word, value)| text.replace(word, value));
    write(&tree.join("DEBIAN/control"), text, 0o644)?;
    for name in SCRIPTS {
        let from = process::root().join("packaging/debian").join(name);
        put(&from, &tree.join("DEBIAN").join(name), 0o755)?;
    }
    Ok(())
}

/// The packages of the libraries that the program links, and their versions.
fn libraries(program: &Path, folder: &Path) -> Result<String> {
    // dpkg-shlibdeps wants to stand in a source tree.
    let control = "Source: tidegate\n\nPackage: tidegate\nArchitecture: any\n";
    write(&folder.join("debian/control"), control, 0o644)?;
    let mut shlibdeps = process::command("dpkg-shlibdeps");
    let found = process::output(shlibdeps.current_dir(folder).arg("-O").arg(program))?;
    let depends = found.trim().strip_prefix("shlibs:Depends=").unwrap_or_default();
    ensure!(!depends.is_empty(), "dpkg-shlibdeps names no library: {found}");
    Ok(depends.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::process::Command;

    /// A program that has the two commands with which a package is made.
    const PROGRAM: &str = r#"
        #include <stdio.h>
        #include <stdlib.h>
        #include <string.h>
        int main(int n, char **words) {
            char make[4096];
            if (n > 2 && !strcmp(words[1], "man")) {
                snprintf(make, sizeof(make), "mkdir -p '%s' && echo page > '%s/tidegate.1'", words[2], words[2]);
                return system(make) != 0;
            }
            puts("complete -c tidegate");
            return 0;
        }"#;

    fn dpkg(root: &Path, arguments: &[&str]) {
        let mut dpkg = Command::new("dpkg");
        dpkg.arg(format!("--root={}", root.display()));
        dpkg.args(["--force-script-chrootless", "--force-depends", "--log=/dev/null"]);
        let output = dpkg.args(arguments).output().expect("dpkg runs");
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(output.status.success(), "{arguments:?}: {said}");
    }

    /// dpkg installs it into a tree of its own, and removes all of it. Needs root.
    #[test]
    fn dpkg_installs_removes_and_purges_it() {
        let folder = std::env::temp_dir().join(format!("tidegate-package-{}", std::process::id()));
        fs::create_dir_all(&folder).expect("a temporary folder");
        fs::write(folder.join("a.c"), PROGRAM).expect("writable");
        let cc = Command::new("cc").current_dir(&folder).args(["a.c", "-o", "a"]).status();
        assert!(cc.expect("cc runs").success());
        let package = make(&folder.join("a"), &folder.join("made")).expect("made");
        let package = package.to_str().expect("text");

        let root = folder.join("root");
        for path in ["var/lib/dpkg/updates", "var/lib/dpkg/info", "etc", "run"] {
            fs::create_dir_all(root.join(path)).expect("writable");
        }
        for path in ["var/lib/dpkg/status", "var/lib/dpkg/available", "etc/passwd", "etc/group"] {
            fs::write(root.join(path), "").expect("writable");
        }
        dpkg(&root, &["--install", package]);
        let text = |path: &str| fs::read_to_string(root.join(path)).unwrap_or_default();
        let unit = text("usr/lib/systemd/system/tidegate.service");
        assert!(unit.contains("ExecStart=!/usr/bin/tidegate run"), "{unit}");
        assert!(text("etc/passwd").contains("tidegate:"), "its user: {}", text("etc/passwd"));
        assert!(root.join("etc/tidegate").is_dir(), "where its configuration goes");
        assert!(text("var/lib/dpkg/status").contains("libc6 (>="), "what its program links");
        let kept = ["usr/share/man/man1/tidegate.1", "usr/share/doc/tidegate/examples/nginx.conf"];
        kept.iter().for_each(|path| assert!(root.join(path).is_file(), "{path}"));

        let own = root.join("etc/tidegate/tidegate.yaml");
        fs::write(&own, "services: {}\n").expect("writable");
        fs::create_dir_all(root.join("var/lib/tidegate/recordings")).expect("writable");
        dpkg(&root, &["--remove", "tidegate"]);
        assert!(!root.join("usr/bin/tidegate").exists() && root.join("var/lib/tidegate").exists());
        dpkg(&root, &["--purge", "tidegate"]);
        assert!(!root.join("var/lib/tidegate").exists() && own.is_file(), "its owner's file stays");
        fs::remove_dir_all(&folder).expect("ours");
    }
}
