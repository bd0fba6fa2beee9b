// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Worker of `cargo xtask bench requests`: nanoseconds per packet through the hooks for requests.

mod bench_support;

use bench_support::{requests, worker};

fn main() -> anyhow::Result<()> {
    let mut subjects = requests::subjects(&requests::Scale::FULL);
    worker::serve(&mut subjects, std::io::stdin().lock(), std::io::stdout().lock())
}
