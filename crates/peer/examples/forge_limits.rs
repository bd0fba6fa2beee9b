// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Forges limits at a receiver, and fails if one is taken:
//! `cargo run --release -p tidegate-peer --example forge_limits [HOW MANY] [OF THEM WRONG IN THE SIGNATURE ALONE]`.

#[path = "../tests/common/forge.rs"]
mod forge;

fn main() -> std::process::ExitCode {
    let mut numbers = std::env::args().skip(1).map_while(|word| word.parse::<u64>().ok());
    let (sent, only) = (numbers.next().unwrap_or(10_000_000), numbers.next().unwrap_or(100_000));
    let counts = forge::Forger::new(1).run(sent, only);
    println!("{counts:#?}");
    let failed = counts.taken > 0 || counts.signature_only < only;
    std::process::ExitCode::from(u8::from(failed))
}
