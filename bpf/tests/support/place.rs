// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Where the sources are.

use std::path::Path;

/// The root of the repository.
pub fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap()
}
