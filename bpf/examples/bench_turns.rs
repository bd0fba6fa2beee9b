// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Worker of `cargo xtask bench turns`: nanoseconds per packet by its place in an exchange.

mod bench_support;

use bench_support::{turns, worker};

fn main() -> anyhow::Result<()> {
    let mut subjects = turns::subjects(&turns::Scale::FULL);
    worker::serve(&mut subjects, std::io::stdin().lock(), std::io::stdout().lock())
}
