// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Worker of `cargo xtask bench router`: nanoseconds per packet of a router's measurement and limits,
//! and of the limits that servers push into it.

mod bench_support;

use bench_support::{pushed, router, tables, worker};

fn main() -> anyhow::Result<()> {
    let mut subjects = router::subjects(&router::Scale::FULL);
    subjects.extend(pushed::subjects(&tables::Scale::FULL)?);
    worker::serve(&mut subjects, std::io::stdin().lock(), std::io::stdout().lock())
}
