// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Measures the lab itself: how many connections per second the generator makes on one CPU before
//! its lateness makes a run void, in cleartext and as sessions in TLS 1.3 and HTTP/2, and the
//! capacity of Apache with CGIs of 2 and 4 ms.
//!
//! `cargo run --release -p tidegate-lab --example measure` (needs root)

use std::process::ExitCode;
use tidegate_lab::{
    ApacheOptions, Arrive, Cost, Helper, Lab, LabOptions, LoadPlan, LoadReport, Mpm, NginxOptions,
    Result, Stream, Transport, helper,
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

/// The same in sessions per second: each is a full handshake of TLS.
const SESSIONS: [f64; 4] = [250.0, 500.0, 1_000.0, 1_500.0];

fn measure() -> Result<()> {
    let lab = Lab::new(LabOptions::new(Helper::this_program(&[])))?;
    let nginx = |transport| {
        let options = NginxOptions { connections: 8_192, transport, ..Default::default() };
        lab.start_nginx(&options)
    };
    let arrive = |rate| Arrive::poisson(Profile::constant(Nanos::from_secs(3), rate));
    println!("connections per second of one load process, against nginx with a static file");
    let server = nginx(Transport::Clear)?;
    for rate in RATES {
        print(rate, &load(&lab, server.stream("all", arrive(rate)))?);
    }
    drop(server);
    for transport in [Transport::Tls, Transport::H2] {
        println!("sessions of two requests per second, {transport:?}");
        let server = nginx(transport)?;
        for rate in SESSIONS {
            let stream = server.sessions("all", arrive(rate), 2, Nanos::ZERO);
            print(rate, &load(&lab, stream)?);
        }
    }
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

fn load(lab: &Lab, stream: Stream) -> Result<LoadReport> {
    let plan = LoadPlan {
        streams: vec![stream],
        timeout: Nanos::from_secs(2),
        shards: 1,
        ..LoadPlan::default()
    };
    lab.run_load(&plan, &mut |_| {})
}

fn print(rate: f64, report: &LoadReport) {
    let total = &report.streams[0].total;
    println!(
        "asked {rate:>6}: goodput {:>8.1}/s  lag p50 {:.3} p99 {:.3} ms  service p50 {:.3} p99 {:.3} ms  CPU {:.2}  {}",
        total.goodput,
        report.lag.p50 * 1e3,
        report.lag.p99 * 1e3,
        total.service.p50 * 1e3,
        total.service.p99 * 1e3,
        report.cpu_peak(),
        if report.void.is_empty() { "valid".to_owned() } else { report.void.join("; ") },
    );
}
