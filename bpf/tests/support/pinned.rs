// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Writing into a pinned map as nobody should: what a test leaves behind for the next start.

use libbpf_rs::{MapCore, MapFlags, MapHandle};
use std::path::Path;

/// Overwrites bytes of the first entry of a pinned array.
pub(crate) fn write_at(map: &Path, offset: usize, bytes: &[u8]) {
    let map = MapHandle::from_pinned_path(map).expect("a pinned map");
    let key = 0_u32.to_ne_bytes();
    let mut value = map.lookup(&key, MapFlags::ANY).expect("readable").expect("an array");
    value[offset..offset + bytes.len()].copy_from_slice(bytes);
    map.update(&key, &value, MapFlags::ANY).expect("writable");
}
