// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The published mode of NetDraino on R2 and S0 (papers/netdraino.txt, section 4), in which marks and options of
//! packets lead to limits. **Unsafe**: whoever can send packets can make them. It is in the lab alone, as rules of
//! nftables and two small programs; nothing of the product takes part.

use super::{AGENTS, Road, RoadHost};
use crate::error::Result;
use crate::graph;
use crate::lab::START_LIMIT;
use crate::os;
use crate::process::Managed;
use crate::topology;
use serde::Deserialize;
use serde_json::{Value, json};
use std::path::Path;
use tidegate_units::Nanos;

const ROUTER: &str = include_str!("in_band_router.py");
const SERVER: &str = include_str!("in_band_server.py");
/// δ and the steps of the relaxation: those of the product, as the paper prints none.
const DELTA_S: u32 = 2;
const STEPS: u32 = 4;
/// The share of packets that get a router's mark. The paper prints none.
const MARK: f64 = 1.0 / 16.0;

/// What the published mode is told.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct InBandOptions {
    /// SYNs and datagrams per second that S0 takes.
    pub rates: (f64, f64),
    /// k.
    pub k: f64,
    /// Average queue of the narrow link above which R2 is congested.
    pub queue: f64,
    /// `p_a`.
    pub append: f64,
    /// Packets of a class that have passed a router, as estimated, before it gets a limit.
    pub samples: f64,
}

/// What has happened so far.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct InBandSeen {
    /// Whether R2's queue is long.
    pub congested: bool,
    /// The limit on SYNs at R2, and on datagrams.
    pub limit: Option<f64>,
    /// See above.
    pub datagram_limit: Option<f64>,
    /// What R2 has dropped of each.
    pub refused: f64,
    /// See above.
    pub refused_datagrams: f64,
    /// SYNs that S0 has dropped.
    pub server_refused: f64,
    /// Packets that got a router's mark.
    pub marked: f64,
    /// Bytes of options.
    pub option_bytes: f64,
    /// Limits that R2 has taken.
    pub limits: f64,
}

/// What R2 says.
#[derive(Deserialize)]
struct RouterLine {
    congested: bool,
    limits: Limits,
    option_bytes: f64,
    taken: f64,
    marked: f64,
    dropped_syn: f64,
    dropped_udp: f64,
}

#[derive(Deserialize)]
struct Limits {
    syn: Option<f64>,
    udp: Option<f64>,
}

/// What S0 says.
#[derive(Deserialize)]
struct ServerLine {
    dropped: f64,
}

/// The published mode, until it is dropped.
#[derive(Debug)]
pub struct InBand {
    router: Managed,
    server: Managed,
    /// After both.
    _rules: Rules,
}

/// What they have made in the namespaces of R2 and S0; gone by drop.
#[derive(Debug)]
struct Rules {
    router: String,
    server: String,
}

impl Drop for Rules {
    fn drop(&mut self) {
        // Gone with the namespaces otherwise. What did not begin has made nothing.
        let table = "delete table netdev nd\n";
        let _ = topology::within(&self.server, &["nft", "-f", "-"], table);
        let _ = topology::within(&self.router, &["nft", "-f", "-"], table);
        let _ = topology::within(&self.router, &["ip", "link", "del", "nd0"], "");
    }
}

impl InBand {
    /// What it has said last.
    #[must_use]
    pub fn seen(&self) -> InBandSeen {
        let dropped = last::<ServerLine>(self.server.log()).map_or(0.0, |line| line.dropped);
        let seen = last::<RouterLine>(self.router.log()).map(seen).unwrap_or_default();
        InBandSeen { server_refused: dropped, ..seen }
    }

    /// CPU time that R2's program has used, and S0's.
    #[must_use]
    pub fn cpu_used(&self) -> (Nanos, Nanos) {
        let used = |process: &Managed| process.group().cpu_used().unwrap_or_default();
        (used(&self.router), used(&self.server))
    }
}

fn seen(line: RouterLine) -> InBandSeen {
    InBandSeen {
        congested: line.congested,
        limit: line.limits.syn,
        datagram_limit: line.limits.udp,
        refused: line.dropped_syn,
        refused_datagrams: line.dropped_udp,
        server_refused: 0.0,
        marked: line.marked,
        option_bytes: line.option_bytes,
        limits: line.taken,
    }
}

/// The last whole line of a log that can be read.
fn last<T: for<'a> Deserialize<'a>>(log: &Path) -> Option<T> {
    let text = std::fs::read_to_string(log).ok()?;
    let whole = &text[..text.rfind('\n')?];
    whole.lines().rev().find_map(|line| serde_json::from_str(line).ok())
}

impl Road<'_> {
    /// Starts the published mode, until what it gives is dropped. Unsafe outside of an experiment: see the module.
    ///
    /// # Errors
    /// When a program does not begin, with what it says.
    pub fn in_band_unsafe(&self, options: &InBandOptions) -> Result<InBand> {
        let start = |host: RoadHost, name: &str, program: &str, told: Value| {
            let told = told.to_string();
            let words = ["python3", "-c", program, &told];
            self.lab.start_beside(self.net(host), name, &words)
        };
        let (router, server) = told(options);
        let in_band = InBand {
            router: start(RoadHost::R2, "in-band-router", ROUTER, router)?,
            server: start(RoadHost::S0, "in-band-server", SERVER, server)?,
            _rules: Rules { router: self.net(RoadHost::R2), server: self.net(RoadHost::S0) },
        };
        let said = |process: &Managed| last::<Value>(process.log()).is_some();
        for process in [&in_band.router, &in_band.server] {
            let what = "the published mode to begin";
            os::wait_or_fail(what, START_LIMIT, Some(process.log()), || said(process))?;
        }
        Ok(in_band)
    }
}

/// What the two programs are told.
fn told(options: &InBandOptions) -> (Value, Value) {
    let target = RoadHost::S0.target();
    let (server, port) = (target.ip().to_string(), target.port());
    let address = RoadHost::R2.address().to_string();
    let router = json!({
        "inward": ["l2", "l3"],
        "link": graph::name(super::NARROW),
        "address": address,
        "server": server,
        "port": port,
        "agents": AGENTS,
        "queue": options.queue,
        "append": options.append,
        "mark": MARK,
        "delta": DELTA_S,
        "steps": STEPS,
    });
    let server = json!({
        "device": "l5",
        "server": server,
        "port": port,
        "agents": AGENTS,
        "routers": [address],
        "rates": {"syn": options.rates.0, "udp": options.rates.1},
        "k": options.k,
        "samples": options.samples,
    });
    (router, server)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The last whole line counts, and a limit that there is not is none.
    #[test]
    fn what_the_programs_say_is_understood() {
        let file = std::env::temp_dir().join(format!("tg-in-band-{}", std::process::id()));
        let line = |limits: &str, marked: u32| {
            format!(
                "{{\"congested\": true, \"average\": 26.5, \"limits\": {limits}, \"options\": 2, \
                 \"option_bytes\": 24, \"no_room\": 0, \"taken\": 1, \"refused\": 0, \"marked\": {marked}, \
                 \"dropped_syn\": 7, \"dropped_udp\": 0}}"
            )
        };
        let text = format!("{}\n{}\n{{\"cong", line("{}", 3), line("{\"syn\": 99.5}", 4));
        std::fs::write(&file, text).unwrap();
        let found = last::<RouterLine>(&file).map(seen).unwrap();
        std::fs::remove_file(&file).unwrap();
        assert_eq!((found.limit, found.datagram_limit, found.marked), (Some(99.5), None, 4.0));
        assert_eq!((found.refused, found.limits, found.option_bytes), (7.0, 1.0, 24.0));
        assert_eq!(last::<RouterLine>(&file).map(seen), None);
    }

    #[test]
    fn both_know_each_other() {
        let options = InBandOptions {
            rates: (100.0, 50.0),
            k: 1.2,
            queue: 25.0,
            append: 0.125,
            samples: 200.0,
        };
        let (router, server) = told(&options);
        assert_eq!(server["routers"], json!([router["address"]]));
        assert_eq!(router["link"], json!("l4"));
        assert_eq!(
            (router["server"].as_str(), &router["agents"]),
            (Some("10.64.5.2"), &server["agents"])
        );
    }
}
