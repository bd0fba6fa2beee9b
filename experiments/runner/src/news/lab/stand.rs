// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What stands in one run: the graph of figure 8, the servers, the daemon of R0; and what is seen of them meanwhile.

use super::super::setting::{Bystanders, Control, Server as Kind, Setting};
use super::super::traces::Trace;
use crate::testbed;
use anyhow::{Context, Result};
use serde_json::{Value, json};
use std::path::Path;
use std::time::Duration;
use tidegate_lab::{
    Body, Bulk, Cost, Graph, GraphSpec, HostSpec, Lab, LinkSpec, Managed, PagesOptions, Product,
    RelayCounts, Server, ShapedCounts, Shaping, TinyOptions, Way,
};
use tidegate_units::{Clock, MonotonicClock, Nanos, Share};
use tidegate_workload::Shape;

/// Hosts, by number.
const R1: usize = 0;
const R0: usize = 1;
const S1: usize = 2;
const S2: usize = 3;
pub(super) const S3: usize = 4;
const HOSTS: [(&str, bool); 5] =
    [("r1", true), ("r0", true), ("s1", false), ("s2", false), ("s3", false)];
/// One-way delays of the links of clients, ms, those of the narrow link (5) included. The paper sets "different
/// propagation delays" and prints none: between the least and the most of the simulator.
pub(super) const DISTANCES_MS: [u64; 4] = [15, 35, 55, 85];
/// B1's link, and its delay, as in the simulator.
pub(super) const B1: usize = DISTANCES_MS.len();
const B1_MS: u64 = 25;
/// The link between R1 and R0.
const NARROW: usize = B1 + 1;
/// Out of R0, to the clients; and out of R1.
const DOWN: (usize, bool) = (NARROW, false);
const UP: (usize, bool) = (NARROW, true);

/// Sizes of responses, bytes, as in the simulator.
const SIZES: (f64, f64) = (200.0, 500_000.0);
/// Bytes that go into B1's bulk at once (section 5.6).
const CHUNK: usize = 8_192;
/// Connections that servers let wait.
const BACKLOG: i32 = 1_024;
/// Workers of S1 and S3, which never wait; of S2 limited by memory; and by its CPU.
const FAST_WORKERS: u32 = 512;
const MEMORY_WORKERS: u32 = 96;
const CPU_WORKERS: u32 = 256;
/// Requests whose pages fit in the memory of S2.
pub(super) const KNEE: u32 = 20;
/// What a request of S2 reads, and how often.
const PAGES_BYTES: u64 = 2 << 20;
const PAGES_ROUNDS: u32 = 12;
/// Memory of S2 beside pages: the program, its threads and connections.
const OWN_BYTES: u64 = 16 << 20;
/// Where its pages lie: on a disk, also where /tmp is none.
const DISK: &str = "/var/tmp";
/// Share of a CPU that S2 has where that limits it: the router needs some, too.
const CPU_SHARE: f64 = 0.5;

/// Between two looks.
const LOOK: Duration = Duration::from_millis(250);
/// The service that a daemon must have.
const OWN_PAGE: &str = "127.0.0.1:7118";
/// The service that is a limit by hand.
const BY_HAND: &str = "by-hand";
/// How R0's daemon explains a flash crowd.
const WHY_SERVER: &str = "only its server is slow";
const WHY_LINK: &str = "others are slow, too";

/// See the module; dropped in this order.
pub(super) struct Stand<'a> {
    daemon: Product,
    bulk: Vec<Managed>,
    pub(super) hot: Server,
    pub(super) quiet: Server,
    /// Which host the crowd's server is.
    pub(super) hot_host: usize,
    pub(super) graph: Graph<'a>,
}

/// What R0's daemon counted of a destination.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(super) struct Side {
    pub(super) syns: f64,
    pub(super) again: f64,
    pub(super) admitted: f64,
    pub(super) delivered: f64,
    pub(super) refused: f64,
    /// Mean rate of the fastest connections in the last seconds, bytes per second; 0: none.
    pub(super) fastest: f64,
}

/// A flash crowd, as R0's daemon says.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(super) struct CrowdLook {
    pub(super) limit: Option<f64>,
    pub(super) server: bool,
    pub(super) link: bool,
}

/// One look at R0.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(super) struct Look {
    /// On the machine's clock.
    pub(super) at_s: f64,
    pub(super) hot: Side,
    pub(super) quiet: Side,
    pub(super) crowd: Option<CrowdLook>,
    /// SYNs that came to a limit by hand, and those that it refused.
    pub(super) by_hand: (f64, f64),
    /// What went out of R0, and of R1.
    pub(super) down: ShapedCounts,
    pub(super) up: ShapedCounts,
    pub(super) relay: RelayCounts,
    /// CPU time of the daemon.
    pub(super) daemon_s: f64,
}

impl<'a> Stand<'a> {
    pub(super) fn start(lab: &'a Lab, program: &Path, setting: &Setting) -> Result<Self> {
        let graph = lab.graph(&graph_spec(setting)).context("the graph")?;
        let hot_host = if setting.server == Kind::Fast { S1 } else { S2 };
        let hot = graph.start_tiny(hot_host, &hot_options(setting)).context("the server")?;
        if setting.server == Kind::Cpu {
            hot.group().limit_cpu(Some(Share::new(CPU_SHARE)))?;
        }
        let quiet = graph.start_tiny(S3, &fast_options(setting, 2)).context("S3")?;
        let sections = sections(&graph, (hot_host, setting));
        let daemon = graph.start_product(program, R0, &sections).context("tidegate on R0")?;
        let bulk = match setting.bystanders {
            Bystanders::Bulk => {
                let rate = setting.bulk_kbit * 1e3;
                graph.bulk((B1, S3), &Bulk { bits_per_second: rate, chunk: CHUNK })?
            }
            Bystanders::None | Bystanders::Web => Vec::new(),
        };
        Ok(Self { daemon, bulk, hot, quiet, hot_host, graph })
    }

    fn look(&self) -> Result<Look> {
        let asked = MonotonicClock.now().as_secs_f64();
        let status = self.daemon.status()?;
        let at_s = f64::midpoint(asked, MonotonicClock.now().as_secs_f64());
        let hot = self.graph.target(self.hot_host).to_string();
        let quiet = self.graph.target(S3).ip().to_string();
        let daemon_s = self.daemon.process().group().cpu_used().unwrap_or_default();
        Ok(Look {
            at_s,
            hot: of(&status, |address| address == hot),
            quiet: of(&status, |address| address.starts_with(&format!("{quiet}:"))),
            crowd: crowd(&status, &hot),
            by_hand: by_hand(&status),
            down: self.graph.shaped(DOWN)?.counts()?,
            up: self.graph.shaped(UP)?.counts()?,
            relay: self.graph.relayed()?.unwrap_or_default(),
            daemon_s: daemon_s.as_secs_f64(),
        })
    }

    /// Runs something while looking.
    pub(super) fn looking<T>(&self, run: impl FnOnce() -> T) -> Result<(T, Vec<Look>)> {
        let (result, mut looks) = testbed::looking(LOOK, || self.look(), run)?;
        for place in 1..looks.len() {
            // Who is not busy may not be listed: then the counts are those of before.
            let before = looks[place - 1];
            looks[place].hot = looks[place].hot.after(before.hot);
            looks[place].quiet = looks[place].quiet.after(before.quiet);
        }
        Ok((result, looks))
    }

    /// Ends the daemon in good order.
    pub(super) fn end(self) -> Result<()> {
        drop(self.bulk);
        self.daemon.stop().context("tidegate does not end")
    }
}

impl Side {
    fn after(self, before: Self) -> Self {
        if self.syns < before.syns { Self { fastest: 0.0, ..before } } else { self }
    }
}

/// Figure 8.
fn graph_spec(setting: &Setting) -> GraphSpec {
    let bits_per_second = (setting.link_mbit * 1e6) as u64;
    let narrow = Some(Shaping { bits_per_second, queue: setting.queue });
    let door = |ms: u64| LinkSpec {
        way: Some(Way::of(Nanos::from_millis(ms))),
        ..LinkSpec::plain(None, R1)
    };
    let mut links: Vec<LinkSpec> = DISTANCES_MS.into_iter().chain([B1_MS]).map(door).collect();
    links.push(LinkSpec { up: narrow, down: narrow, ..LinkSpec::plain(Some(R1), R0) });
    links.extend([S1, S2, S3].map(|server| LinkSpec::plain(Some(R0), server)));
    let hosts = HOSTS.map(|(name, forwards)| HostSpec { name, forwards }).to_vec();
    GraphSpec { hosts, links }
}

fn body(setting: &Setting) -> Body {
    let shape = match setting.size_cv {
        cv if cv > 0.0 => Shape::Lognormal { cv },
        _ => Shape::Constant,
    };
    Body { mean: setting.size, shape, range: SIZES }
}

fn fast_options(setting: &Setting, seed: u64) -> TinyOptions {
    TinyOptions {
        workers: FAST_WORKERS,
        cost: Cost::wait(Nanos::ZERO),
        backlog: BACKLOG,
        seed,
        body: Some(body(setting)),
        ..TinyOptions::default()
    }
}

fn hot_options(setting: &Setting) -> TinyOptions {
    let fast = fast_options(setting, 1);
    match setting.server {
        Kind::Fast => fast,
        Kind::Memory | Kind::Pages => {
            let each = Nanos::from_secs_f64(f64::from(KNEE) / setting.capacity);
            let pages = PagesOptions {
                folder: DISK.into(),
                bytes: PAGES_BYTES,
                rounds: PAGES_ROUNDS,
                memory: OWN_BYTES + u64::from(KNEE) * PAGES_BYTES,
            };
            TinyOptions {
                workers: MEMORY_WORKERS,
                cost: Cost::wait(each),
                pages: Some(pages),
                ..fast
            }
        }
        Kind::Cpu => {
            let each = Nanos::from_secs_f64(CPU_SHARE / setting.capacity);
            TinyOptions { workers: CPU_WORKERS, cost: Cost::busy(each), ..fast }
        }
    }
}

/// Sections of R0's daemon: it measures all servers, and limits what the setting wants.
fn sections(graph: &Graph<'_>, (hot, setting): (usize, &Setting)) -> Value {
    let destinations: Vec<String> = [S1, S2, S3]
        .map(|server| {
            let [a, b, c, _] = graph.target(server).ip().octets();
            format!("{a}.{b}.{c}.0/24:*")
        })
        .to_vec();
    let mut router = json!({"destinations": destinations});
    let mut services = json!({"page": {"mode": "shadow", "listen": [OWN_PAGE]}});
    match setting.control {
        Control::NewsFast => router["limit"] = json!({"mode": "enforce"}),
        Control::Static => {
            let burst = (setting.rate * setting.burst_s).round().max(2.0) as u32;
            services[BY_HAND] = json!({
                "mode": "enforce",
                "listen": [graph.target(hot).to_string()],
                "policy": {"name": "fresh_first", "action": "drop"},
                "control": {"name": "fixed", "rate": setting.rate, "burst": burst},
            });
        }
        Control::None | Control::News | Control::NewsHsi => {}
    }
    json!({"services": services, "router": router})
}

fn list<'v>(value: &'v Value, place: &str) -> &'v [Value] {
    value.pointer(place).and_then(Value::as_array).map_or(&[], Vec::as_slice)
}

/// The destinations of an address, added up.
fn of(status: &Value, is: impl Fn(&str) -> bool) -> Side {
    let mut side = Side::default();
    let all = list(status, "/router/destinations").iter();
    for one in all.filter(|one| one["address"].as_str().is_some_and(&is)) {
        let count = |name: &str| one["counts"][name].as_f64().unwrap_or(0.0);
        side.syns += count("syns");
        side.again += count("syns_repeated");
        side.admitted += count("admitted");
        side.delivered += count("delivered_bytes");
        side.refused += count("refused");
        side.fastest = side.fastest.max(one["last"]["fastest"].as_f64().unwrap_or(0.0));
    }
    side
}

fn crowd(status: &Value, hot: &str) -> Option<CrowdLook> {
    let mut all = list(status, "/router/crowds").iter();
    let crowd = all.find(|crowd| crowd["destination"] == json!(hot))?;
    let why = crowd["why"].as_str().unwrap_or_default();
    let (server, link) = (why == WHY_SERVER, why.starts_with(WHY_LINK));
    Some(CrowdLook { limit: crowd["limit"].as_f64(), server, link })
}

/// SYNs that came to a limit by hand, and those that it refused.
fn by_hand(status: &Value) -> (f64, f64) {
    let (mut came, mut refused) = (0.0, 0.0);
    let own = |service: &&Value| service["name"] == json!(BY_HAND);
    for service in list(status, "/services").iter().filter(own) {
        for count in list(service, "/counts") {
            let number = count["count"].as_f64().unwrap_or(0.0);
            came += number;
            refused += if count["verdict"] == json!("admit") { 0.0 } else { number };
        }
    }
    (came, refused)
}

/// Whether the crowd is that of the paper.
pub(super) fn is_crowd(setting: &Setting) -> bool {
    Trace::numbered(setting.trace).is_ok_and(|trace| trace == Trace::Crowd)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_status_says_what_came_and_whether_there_is_a_crowd() {
        let counts = |syns: u64| json!({"syns": syns, "syns_repeated": 2, "admitted": 3, "delivered_bytes": 4, "refused": 5});
        let one = |address: &str, syns: u64| json!({"address": address, "counts": counts(syns), "last": {"fastest": 9.0}});
        let crowd_seen = json!({"destination": "10.64.6.2:80", "why": WHY_SERVER, "limit": 30.5});
        let hand = json!({"name": "by-hand", "counts": [
            {"verdict": "admit", "count": 5}, {"verdict": "drop", "count": 3},
        ]});
        let status = json!({
            "router": {
                "destinations": [one("10.64.6.2:80", 7), one("10.64.8.2:80", 1), one("10.64.8.2:81", 1)],
                "crowds": [crowd_seen],
            },
            "services": [{"name": "page", "counts": [{"verdict": "drop", "count": 9}]}, hand],
        });
        let seen = of(&status, |address| address == "10.64.6.2:80");
        assert_eq!((seen.syns, seen.again, seen.refused, seen.fastest), (7.0, 2.0, 5.0, 9.0));
        assert_eq!(of(&status, |address| address.starts_with("10.64.8.2:")).syns, 2.0);
        let found = crowd(&status, "10.64.6.2:80");
        assert_eq!(found, Some(CrowdLook { limit: Some(30.5), server: true, link: false }));
        assert_eq!(crowd(&status, "10.64.8.2:80"), None);
        assert_eq!(by_hand(&status), (8.0, 3.0));
        assert_eq!(of(&json!({}), |_| true), Side::default());
    }

    /// The narrow link lies between the routers, and nobody's packets are delayed there.
    #[test]
    fn the_graph_is_that_of_figure_8() {
        let spec = graph_spec(&Setting::default());
        let narrow = spec.links[NARROW];
        assert_eq!((narrow.near, narrow.far), (Some(R1), R0));
        let wanted = Shaping { bits_per_second: 2_000_000, queue: 50 };
        assert_eq!((narrow.up, narrow.down, narrow.way), (Some(wanted), Some(wanted), None));
        assert_eq!(spec.links.iter().filter(|link| link.way.is_some()).count(), 5);
        assert_eq!(spec.links[B1].near, None);
    }

    /// Together its pages do not fit; those of as many as the server is made for do.
    #[test]
    fn a_server_has_little_memory() {
        let setting = Setting { server: Kind::Memory, ..Setting::default() };
        let options = hot_options(&setting);
        let pages = options.pages.unwrap();
        assert!(pages.memory > u64::from(KNEE) * pages.bytes);
        assert!(pages.memory < u64::from(options.workers) * pages.bytes / 2);
        let each = options.cost.mean.as_secs_f64();
        assert!((f64::from(KNEE) / each - setting.capacity).abs() < 1e-6);
    }
}
