// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Worker of `cargo xtask bench packets`: nanoseconds per packet on each path through the XDP hook,
//! random keys over full tables and hot keys, by test runs over a ring of different packets.

mod bench_support;

use bench_support::{packets, tables::Scale, worker};

fn main() -> anyhow::Result<()> {
    let mut subjects = packets::subjects(&Scale::FULL)?;
    worker::serve(&mut subjects, std::io::stdin().lock(), std::io::stdout().lock())
}
