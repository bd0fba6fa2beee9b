// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Runs single points of `product/traffic`: for tuning, not for judging.
//!
//! `cargo run --release -p tidegate-experiments --example traffic_cell -- --server apache-prefork
//! --transport tls --requests 5 --think 0 --arm reject --loads 0.9,2,3,10` (needs root).
//!
//! `--program FILE` is the product (target/release/tidegate), `--arm none,reject` runs several arms,
//! `--seconds`, `--before-s` and `--after-s` are lengths, `--capacity C` spares the measurement,
//! `--streams N` sends so many requests at once in HTTP/2, `--course yes` prints each second, `--log DIR` keeps the daemon's logs.

use anyhow::{Context, Result, bail};
use serde::Deserialize;
use std::collections::BTreeMap;
use std::path::PathBuf;
use std::process::ExitCode;
use tidegate_experiments::results::Row;
use tidegate_experiments::survival::Watch;
use tidegate_experiments::traffic::{Cell, Lengths, Run, Seen, Stage, StageOptions};
use tidegate_lab::{Helper, Progress, helper};

/// What the p99 of a recovery is compared with until `none` at 0.9 has run, in seconds.
const NORMAL_P99: f64 = 0.25;
/// The columns: metric, head, factor.
const COLUMNS: [(&str, &str, f64); 9] = [
    ("p50", "p50 ms", 1e3),
    ("p99", "p99 ms", 1e3),
    ("p99_perceived", "p99' ms", 1e3),
    ("refused", "refused%", 100.0),
    ("failed", "failed%", 100.0),
    ("alarms", "alarms", 1.0),
    ("server_cpu", "srv cpu", 1.0),
    ("generator_cpu", "gen cpu", 1.0),
    ("connections", "conns", 1.0),
];

struct Quiet;

impl Watch for Quiet {
    fn step(&mut self, what: &str) {
        eprintln!("{what}");
    }
    fn second(&mut self, _: &Progress) {}
}

fn main() -> ExitCode {
    let args: Vec<String> = std::env::args().skip(1).collect();
    if let Some((first, rest)) = args.split_first()
        && first == "lab-helper"
    {
        return helper::main(rest);
    }
    match run(&args) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("{error:#}");
            ExitCode::FAILURE
        }
    }
}

/// A word as serde reads it.
fn word<T: for<'a> Deserialize<'a>>(text: &str) -> Result<T> {
    serde_json::from_value(text.into()).with_context(|| format!("{text:?}"))
}

fn parse(args: &[String]) -> Result<BTreeMap<&str, &str>> {
    let pairs = args.chunks(2).map(|pair| match pair {
        [name, value] if name.starts_with("--") => Ok((&name[2..], value.as_str())),
        other => bail!("expected --NAME VALUE, got {other:?}"),
    });
    pairs.collect()
}

fn run(args: &[String]) -> Result<()> {
    let args = parse(args)?;
    let get = |name: &str, otherwise: &'static str| args.get(name).copied().unwrap_or(otherwise);
    let number = |name: &str, otherwise: &'static str| -> Result<f64> {
        get(name, otherwise).parse().with_context(|| name.to_owned())
    };
    let cell = Cell {
        server: word(get("server", "apache-prefork"))?,
        transport: word(get("transport", "clear"))?,
        requests: number("requests", "1")? as u32,
        think: number("think", "0")?,
        streams: number("streams", "1")? as u32,
    };
    if !cell.exists() {
        bail!("there is no such traffic: {}", cell.name());
    }
    let lengths = Lengths {
        before: 0.5,
        before_s: number("before-s", "6")?,
        load_s: number("seconds", "14")?,
        after: 0.5,
        after_s: number("after-s", "8")?,
    };
    let options = StageOptions {
        experiment: "product/traffic".into(),
        program: PathBuf::from(get("program", "target/release/tidegate")),
        helper: Helper::this_program(&["lab-helper"]),
        seed: number("seed", "1")? as u64,
        busy_ms: number("busy-ms", "2")?,
    };
    let mut quiet = Quiet;
    let mut stage = Stage::new(options, &mut quiet)?;
    let capacity = match args.get("capacity") {
        Some(known) => known.parse()?,
        None => stage.capacity(&cell, 0)?.rate.get(),
    };
    println!("{}: C = {capacity:.1} exchanges/s", cell.name());
    head();
    let mut normal_p99 = NORMAL_P99;
    for load in get("loads", "0.9,2,3,10").split(',') {
        let load: f64 = load.parse().context("loads")?;
        for arm in get("arm", "reject").split(',') {
            let seen = stage.run(&Run { cell: &cell, arm, load, capacity, lengths, normal_p99 })?;
            if arm == "none" && load < 1.0 {
                normal_p99 = seen.p99;
            }
            line(arm, load, &seen);
            if args.contains_key("course") {
                course(&seen.course);
            }
            if let Some(dir) = args.get("log") {
                let name = format!("{}-{arm}-{load}.log", cell.name());
                std::fs::create_dir_all(dir)?;
                std::fs::write(PathBuf::from(dir).join(name), &seen.log)?;
            }
        }
    }
    Ok(())
}

fn head() {
    print!("{:>7} {:>5} {:>9} {:>9}", "arm", "load", "goodput/C", "offer/C");
    COLUMNS.iter().for_each(|(_, head, _)| print!(" {head:>8}"));
    println!(" {:>8} {:>8}", "recov s", "rec99 s");
}

fn line(arm: &str, load: f64, seen: &Seen) {
    let value = |metric: &str| {
        seen.rows.iter().find(|row| row.metric == metric).map_or(f64::NAN, |row| row.value)
    };
    let capacity = value("capacity");
    let (goodput, offered) = (value("goodput") / capacity, value("offered") / capacity);
    print!("{arm:>7} {load:>5} {goodput:>9.3} {offered:>9.2}");
    for (metric, _, factor) in COLUMNS {
        print!(" {:>8.2}", value(metric) * factor);
    }
    println!(" {:>8.1} {:>8.1}", value("recovery"), value("recovery_p99"));
    seen.void.iter().for_each(|why| println!("        void: {why}"));
}

/// Second by second: offered, goodput, refused, p99.
fn course(rows: &[Row]) {
    let mut seconds: Vec<f64> = rows.iter().map(|row| row.x).collect();
    seconds.dedup();
    for second in seconds {
        let value = |metric: &str| {
            let found = rows.iter().find(|row| row.metric == metric && row.x >= second);
            found.map_or(f64::NAN, |row| row.value)
        };
        println!(
            "        {second:>4} s: offered {:>6.0} good {:>6.0} refused {:>6.0} p99 {:>7.1} ms",
            value("offered"),
            value("goodput"),
            value("refused"),
            value("p99") * 1e3,
        );
    }
}
