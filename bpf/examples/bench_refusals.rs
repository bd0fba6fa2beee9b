// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Worker of `cargo xtask bench refusals`: nanoseconds per refused SYN on the receive path, ours
//! and what else an operator could take.

mod bench_support;

use bench_support::{refusals, worker};

fn main() -> anyhow::Result<()> {
    let mut subjects = refusals::subjects(&refusals::Scale::FULL)?;
    worker::serve(&mut subjects, std::io::stdin().lock(), std::io::stdout().lock())
}
