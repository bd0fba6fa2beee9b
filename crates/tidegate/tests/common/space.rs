// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Namespaces beside that of a [`World`].

use super::ip;
use super::world::World;
use std::path::{Path, PathBuf};
use std::process::Command;

/// Another namespace; gone with drop.
pub(crate) struct Space(pub(crate) String);

impl Space {
    pub(crate) fn new(world: &World, suffix: &str) -> Self {
        let name = format!("{}{suffix}", world.name());
        ip(&format!("netns add {name}"));
        ip(&format!("-n {name} link set lo up"));
        Self(name)
    }

    pub(crate) fn path(&self) -> PathBuf {
        Path::new("/run/netns").join(&self.0)
    }
}

impl Drop for Space {
    fn drop(&mut self) {
        let _ = Command::new("ip").args(["netns", "del", &self.0]).status();
    }
}

/// A client behind v0: 10.83.0.2, and the host 10.83.0.1.
pub(crate) fn client(world: &World) -> Space {
    let client = Space::new(world, "c");
    let (name, host) = (&client.0, world.name());
    ip(&format!("-n {host} link set v1 netns {name}"));
    for (namespace, link, address) in [(host, "v0", "10.83.0.1"), (name, "v1", "10.83.0.2")] {
        ip(&format!("-n {namespace} address add {address}/24 dev {link}"));
        ip(&format!("-n {namespace} link set {link} up"));
    }
    client
}
