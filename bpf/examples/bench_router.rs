// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Worker of `cargo xtask bench router`: nanoseconds per packet of a router's measurement and limits.

mod bench_support;

use bench_support::{router, worker};

fn main() -> anyhow::Result<()> {
    let mut subjects = router::subjects(&router::Scale::FULL);
    worker::serve(&mut subjects, std::io::stdin().lock(), std::io::stdout().lock())
}
