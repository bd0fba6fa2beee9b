// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Where the sources are.

use std::path::Path;

/// Folders of the hooks and of what they are made of.
pub const HOOK_FOLDERS: [&str; 12] = [
    "bpf/hook",
    "bpf/packet",
    "bpf/border",
    "bpf/datagram",
    "bpf/import",
    "bpf/http",
    "bpf/track",
    "bpf/reply",
    "bpf/syn",
    "bpf/request",
    "bpf/router",
    "bpf/mark",
];

/// The root of the repository.
pub fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap()
}
