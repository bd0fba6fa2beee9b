// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Measures the lab itself: how many connections per second the generator makes on one CPU before
//! its lateness makes a run void, and the capacity of Apache with CGIs of 2 and 4 ms.
//!
//! `cargo run --release -p tidegate-lab --example measure` (needs root)

use std::process::ExitCode;
use tidegate_lab::{
    ApacheOptions, Arrive, Cost, Helper, Lab, LabOptions, LoadPlan, Mpm, NginxOptions, Result,
    helper,
};
use tidegate_units::Nanos;
use tidegate_workload::Profile;

/// Rates tried, in new connections per second.
const RATES: [f64; 6] = [2_000.0, 5_000.0, 8_000.0, 12_000.0, 16_000.0, 20_000.0];

fn main() -> ExitCode {
    let args: Vec<String> = std::env::args().skip(1).collect();
    if !args.is_empty() {
        return helper::main(&args);
    }
    match measure() {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("{error}");
            ExitCode::FAILURE
        }
    }
}

fn measure() -> Result<()> {
    let lab = Lab::new(LabOptions::new(Helper::this_program(&[])))?;
    let server = lab.start_nginx(&NginxOptions { connections: 8_192, ..Default::default() })?;
    println!("connections per second of one load process, against nginx with a static file");
    for rate in RATES {
        let arrive = Arrive::poisson(Profile::constant(Nanos::from_secs(3), rate));
        let plan = LoadPlan {
            streams: vec![server.stream("all", arrive)],
            timeout: Nanos::from_secs(2),
            shards: 1,
            ..LoadPlan::default()
        };
        let report = lab.run_load(&plan, &mut |_| {})?;
        let total = &report.streams[0].total;
        println!(
            "asked {rate:>6}: goodput {:>8.1}/s  lag p50 {:.3} p99 {:.3} ms  service p50 {:.3} p99 {:.3} ms  {}",
            total.goodput,
            report.lag.p50 * 1e3,
            report.lag.p99 * 1e3,
            total.service.p50 * 1e3,
            total.service.p99 * 1e3,
            if report.void.is_empty() { "valid".to_owned() } else { report.void.join("; ") },
        );
    }
    drop(server);
    for (mpm, ms) in [(Mpm::Prefork, 2), (Mpm::Prefork, 4), (Mpm::Event, 4)] {
        let cost = Cost::busy(Nanos::from_millis(ms));
        let server = lab.start_apache(&ApacheOptions::cgi(mpm, cost))?;
        let capacity = lab.capacity(&server, &Default::default())?;
        println!(
            "{mpm:?}, CGI of {ms} ms: C = {} ({} clients, windows within {:.1} %, probes {:?})",
            capacity.rate,
            capacity.clients,
            capacity.spread() * 100.0,
            capacity.probes.iter().map(|p| (p.clients, p.rate.round())).collect::<Vec<_>>(),
        );
    }
    Ok(())
}
