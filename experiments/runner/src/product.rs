// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The product that the lab starts. It is another program than the one that runs experiments, so it may be
//! missing, or of another commit.

use anyhow::{Context, Result, bail};
use std::path::Path;
use std::process::{Command, Stdio};

/// What a result should say about the product: nothing if it is of the build that writes the result.
///
/// # Errors
/// When there is no such program, or it is not tidegate.
pub(crate) fn note(program: &Path) -> Result<Option<String>> {
    let shown = program.display();
    if !program.is_file() {
        bail!("no product at {shown}: build it (make build), or name another with --program");
    }
    let output = Command::new(program)
        .arg("--version")
        .stdin(Stdio::null())
        .output()
        .with_context(|| format!("start {shown}"))?;
    let said = String::from_utf8_lossy(&output.stdout);
    let Some(version) = said.trim().strip_prefix("tidegate ") else {
        bail!("{shown} is not tidegate: it says {:?}", said.trim());
    };
    let ours = tidegate_results::PROGRAM;
    Ok((version != ours).then(|| format!("the product was {version}, the lab {ours}")))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;
    use std::os::unix::fs::PermissionsExt;

    fn program(says: &str) -> (tempfile::TempDir, std::path::PathBuf) {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("tidegate");
        fs::write(&path, format!("#!/bin/sh\necho '{says}'\n")).unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).unwrap();
        (dir, path)
    }

    #[test]
    fn another_build_is_noted_and_another_program_refused() {
        let ours = tidegate_results::PROGRAM;
        let (_dir, same) = program(&format!("tidegate {ours}"));
        assert_eq!(note(&same).unwrap(), None);
        let (_dir, other) = program("tidegate 9.9.9 (abc)");
        let wanted = format!("the product was 9.9.9 (abc), the lab {ours}");
        assert_eq!(note(&other).unwrap(), Some(wanted));
        let (dir, stranger) = program("hello");
        assert!(note(&stranger).unwrap_err().to_string().contains("it says \"hello\""));
        let error = note(&dir.path().join("missing")).unwrap_err().to_string();
        assert!(error.contains("no product at"), "{error}");
    }
}
