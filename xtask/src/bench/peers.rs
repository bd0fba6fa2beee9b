// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Other simulators with the same model, as workers: SimPy in a virtual environment below
//! `target`, and C++ on the distribution's ns-3. One that is not to be had is said and left out:
//! its claims are then reported as not measured.

use std::path::PathBuf;

use anyhow::{Context, Result};

use super::worker::{Remote, connect};
use crate::process;

/// Pinned: a comparison names what it compared with.
const SIMPY: &str = "simpy==4.1.1";
const SOURCES: &str = "xtask/src/bench/peers";
const BUILT: &str = "target/rivals";

/// The subjects of all peers that can be had here.
pub(super) fn start() -> Vec<Remote> {
    let mut subjects = Vec::new();
    for (name, peer) in [("SimPy", simpy()), ("ns-3", ns3())] {
        match peer {
            Ok(peer) => subjects.extend(peer),
            Err(why) => eprintln!("bench simulator: without {name}: {why:#}"),
        }
    }
    subjects
}

fn simpy() -> Result<Vec<Remote>> {
    let venv = process::root().join(BUILT).join("simpy");
    let python = venv.join("bin/python");
    let there = process::fact(&python.to_string_lossy(), &["-c", "import simpy; print(1)"]);
    if there.is_none() {
        process::run(process::command("python3").args(["-m", "venv"]).arg(&venv))
            .context("a virtual environment needs the package python3-venv")?;
        let pip = ["-m", "pip", "install", "--quiet", "--disable-pip-version-check", SIMPY];
        process::run(process::command(&python).args(pip))?;
    }
    connect(process::command(&python).arg(source("simpy_model.py")))
}

fn ns3() -> Result<Vec<Remote>> {
    let program = process::root().join(BUILT).join("ns3_model");
    std::fs::create_dir_all(process::root().join(BUILT))?;
    let build = ["-std=c++17", "-O2", "-DNDEBUG", "-o"];
    process::run(
        process::command("g++").args(build).arg(&program).arg(source("ns3.cc")).arg("-lns3-core"),
    )
    .context("it needs the packages g++ and libns3-dev (`cargo xtask setup --rivals`)")?;
    connect(&mut process::command(&program))
}

/// Where the reference numbers of ns-3 are kept.
const REFERENCE: &str = "sim/tests/net/ns3.csv";

/// Makes the numbers of ns-3 anew that the simulator's network is held against.
pub(crate) fn reference() -> Result<()> {
    let program = process::root().join(BUILT).join("ns3_net");
    std::fs::create_dir_all(process::root().join(BUILT))?;
    let modules =
        ["applications", "point-to-point", "traffic-control", "internet", "network", "core"];
    let build = ["-std=c++17", "-O2", "-DNDEBUG", "-o"];
    process::run(
        process::command("g++")
            .args(build)
            .arg(&program)
            .arg(source("ns3_net.cc"))
            .args(modules.map(|module| format!("-lns3-{module}"))),
    )
    .context("it needs the packages g++ and libns3-dev (`cargo xtask setup --rivals`)")?;
    let version = process::fact("dpkg-query", &["-W", "-f", "${Version}", "libns3-dev"]);
    let version = version.context("the version of libns3-dev")?;
    println!("reference: some minutes of ns-3 {version}");
    let rows = process::output(&mut process::command(&program))?;
    let head = format!("# ns-3 {version}, by {SOURCES}/ns3_net.cc: cargo xtask reference\n");
    std::fs::write(process::root().join(REFERENCE), format!("{head}{}\n", rows.trim_end()))
        .with_context(|| format!("writing {REFERENCE}"))?;
    println!("reference: {REFERENCE} written");
    Ok(())
}

fn source(file: &str) -> PathBuf {
    process::root().join(SOURCES).join(file)
}
