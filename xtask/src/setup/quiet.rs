// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Installs servers without starting them.
//!
//! Debian starts a server as soon as it is installed. The lab starts its own, with private
//! configurations in its own namespaces: a second Apache on the machine's port 80 would be
//! somebody's surprise. Maintainer scripts ask `policy-rc.d` through invoke-rc.d and
//! deb-systemd-invoke before they start anything, with any init system or none; exit code 101
//! means no. So one stands there while apt runs.
//!
//! That does not keep a server that is enabled from starting at the next boot. Where systemd
//! runs, units that were not there before are therefore masked before apt runs: masking
//! what is not installed yet is allowed, and leaves a service that the operator already has alone.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};

use crate::process;

const POLICY: &str = "/usr/sbin/policy-rc.d";
const REFUSE: &str = "#!/bin/sh\n# tidegate setup: installed servers are not started\nexit 101\n";
/// Services of the packages that we install, and what proves that it was there before.
const SERVICES: [(&str, &str); 9] = [
    ("apache2.service", "/usr/sbin/apache2"),
    ("nginx.service", "/usr/sbin/nginx"),
    ("haproxy.service", "/usr/sbin/haproxy"),
    ("nftables.service", "/usr/sbin/nft"),
    ("softflowd.service", "/usr/sbin/softflowd"),
    ("gobgpd.service", "/usr/bin/gobgpd"),
    ("exabgp.service", "/usr/sbin/exabgp"),
    ("bird.service", "/usr/sbin/bird"),
    ("nats-server.service", "/usr/sbin/nats-server"),
];

/// While this lives, no installed service starts.
pub(super) struct Guard {
    /// The policy that we put there; none if the machine has its own, which is left alone.
    policy: Option<PathBuf>,
}

impl Guard {
    /// Errors: the policy cannot be written.
    pub(super) fn new() -> Result<Self> {
        mask_new_services();
        Ok(Self { policy: refuse_starts(Path::new(POLICY))? })
    }
}

impl Drop for Guard {
    fn drop(&mut self) {
        if let Some(policy) = &self.policy {
            // Ours is recognised by its text: should it have been replaced meanwhile, it stays.
            if fs::read_to_string(policy).is_ok_and(|text| text == REFUSE) {
                let _ = fs::remove_file(policy);
            }
        }
    }
}

fn refuse_starts(policy: &Path) -> Result<Option<PathBuf>> {
    match fs::read_to_string(policy) {
        Ok(text) if text != REFUSE => return Ok(None),
        Ok(_) => {} // left by a run that was killed
        Err(_) => {
            fs::write(policy, REFUSE).with_context(|| format!("writing {}", policy.display()))?;
        }
    }
    fs::set_permissions(policy, fs::Permissions::from_mode(0o755))?;
    Ok(Some(policy.to_path_buf()))
}

fn mask_new_services() {
    if !Path::new("/run/systemd/system").is_dir() {
        return;
    }
    for (service, program) in SERVICES {
        if Path::new(program).exists() {
            continue;
        }
        let masked = process::run(process::command("systemctl").args(["mask", "--quiet", service]));
        match masked {
            Ok(()) => println!("setup: {service} masked (undo: systemctl unmask {service})"),
            Err(error) => println!("setup: {service} may start at the next boot: {error}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn folder(name: &str) -> PathBuf {
        let folder =
            std::env::temp_dir().join(format!("tidegate-quiet-{name}-{}", std::process::id()));
        fs::create_dir_all(&folder).expect("a temporary folder");
        folder
    }

    #[test]
    fn the_policy_says_no_and_goes_away() {
        let folder = folder("new");
        let policy = folder.join("policy-rc.d");
        let guard = Guard { policy: refuse_starts(&policy).expect("writable") };
        let status = std::process::Command::new(&policy).status().expect("executable");
        assert_eq!(status.code(), Some(101));
        drop(guard);
        assert!(!policy.exists());
        fs::remove_dir_all(folder).expect("ours");
    }

    #[test]
    fn a_policy_of_the_machine_is_left_alone() {
        let folder = folder("own");
        let policy = folder.join("policy-rc.d");
        fs::write(&policy, "#!/bin/sh\nexit 0\n").expect("writable");
        let guard = Guard { policy: refuse_starts(&policy).expect("readable") };
        drop(guard);
        assert_eq!(fs::read_to_string(&policy).expect("still there"), "#!/bin/sh\nexit 0\n");
        fs::remove_dir_all(folder).expect("ours");
    }
}
