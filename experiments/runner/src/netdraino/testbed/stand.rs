// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What stands on the road in one run: two servers, the daemon of S0, those of routers, rules for datagrams; and
//! what is seen of them meanwhile.

use super::setting::{Control, Setting};
use crate::testbed;
use anyhow::{Context, Result, ensure};
use serde_json::{Value, json};
use std::path::Path;
use std::time::Duration;
use tidegate_lab::{
    Cost, DatagramCounts, DatagramRule, Product, Road, RoadHost, Server, ShapedCounts, TinyOptions,
};
use tidegate_units::{Clock, MonotonicClock, Nanos};

/// The service of S0, on S0 and on routers.
const SERVICE: &str = "s0";
/// A rate that no load reaches: a router's own limit must be looser than S0's.
const FREE: f64 = 100_000.0;
/// Connections that S0 serves or lets wait at once, and those that its kernel lets wait.
const S0_WORKERS: u32 = 256;
const BACKLOG: i32 = 128;
/// The same of S1, which is never short of them.
const S1_WORKERS: u32 = 512;
/// Between two looks.
const LOOK: Duration = Duration::from_millis(200);
/// How long the sessions of the daemons may take to come up.
const SESSIONS: Nanos = Nanos::from_secs(15);

/// See the module; dropped in this order.
pub(super) struct Stand {
    /// S0's, which only counts where nothing protects.
    daemon: Product,
    routers: Vec<(RoadHost, Product)>,
    /// At S0, then at routers; none without datagrams.
    rules: Vec<DatagramRule>,
    pub(super) s0: Server,
    pub(super) s1: Server,
}

/// What a router said of its limit.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(super) struct RouterLook {
    /// S0's limit, if one is in force.
    pub(super) limit: Option<f64>,
    /// The same on datagrams.
    pub(super) datagram_limit: Option<f64>,
    /// SYNs refused so far, and datagrams.
    pub(super) refused: f64,
    pub(super) refused_datagrams: f64,
    /// Whether its way to the servers is congested.
    pub(super) congested: bool,
}

/// One look at all daemons.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct Look {
    /// On the machine's clock.
    pub(super) at_s: f64,
    /// SYNs that came to S0 so far.
    pub(super) arrived: f64,
    /// Those of them that its hook refused.
    pub(super) refused: f64,
    /// In the order of the daemons.
    pub(super) routers: Vec<RouterLook>,
}

/// What was counted at an end of the measured part.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(super) struct Mark {
    /// On the machine's clock: the look may have been late.
    pub(super) at_s: f64,
    pub(super) narrow: ShapedCounts,
    /// Datagrams at S0.
    pub(super) datagrams: DatagramCounts,
}

impl Stand {
    pub(super) fn start(road: &Road<'_>, program: &Path, setting: &Setting) -> Result<Self> {
        let each = Nanos::from_secs_f64(1.0 / setting.s0_serves);
        let (workers, backlog, cost) = (S0_WORKERS, BACKLOG, Cost::wait(each));
        let serial = TinyOptions { workers, backlog, cost, serial: true, ..TinyOptions::default() };
        let s0 = road.start_tiny(RoadHost::S0, &serial).context("S0")?;
        let cost = Cost::wait(Nanos::ZERO);
        let quick =
            TinyOptions { workers: S1_WORKERS, backlog: 4_096, cost, ..TinyOptions::default() };
        let s1 = road.start_tiny(RoadHost::S1, &quick).context("S1")?;
        let hosts = daemons(setting);
        let pushed = setting.control == Control::OutOfBand;
        let pushback = pushed.then(|| road.pushback(program, SERVICE, &hosts)).transpose()?;
        let mut routers = Vec::new();
        for host in hosts {
            let rate = if pushed { FREE } else { setting.s0_rate };
            let sections = pushback.iter().flat_map(|pushback| &pushback.routers);
            let cluster =
                sections.into_iter().find(|(of, _)| *of == host).map(|(_, section)| section);
            let services = services("enforce", rate, None);
            let started = road.start_product(program, host, (&services, cluster));
            routers.push((host, started.with_context(|| format!("tidegate on {}", host.name()))?));
        }
        let mode = if setting.control == Control::None { "shadow" } else { "enforce" };
        let cluster = pushback.as_ref().map(|pushback| &pushback.server);
        let takes = (pushed && setting.udp_mbit > 0.0).then_some(setting.s0_datagrams);
        let services = services(mode, setting.s0_rate, takes);
        let daemon = road.start_product(program, RoadHost::S0, (&services, cluster));
        let daemon = daemon.context("tidegate on S0")?;
        let rules = rules(road, setting)?;
        let stand = Self { daemon, routers, rules, s0, s1 };
        if pushed {
            stand.sessions()?;
        }
        Ok(stand)
    }

    /// Waits until S0 has a session with each router.
    fn sessions(&self) -> Result<()> {
        let end = MonotonicClock.now() + SESSIONS;
        loop {
            let status = self.daemon.status()?;
            let peers = list(&status, "/peers");
            let up = peers.iter().filter(|peer| peer["up"] == json!(true)).count();
            if up >= self.routers.len() {
                return Ok(());
            }
            let problems: Vec<&Value> = peers.iter().map(|peer| &peer["problem"]).collect();
            ensure!(MonotonicClock.now() < end, "{up} sessions are up: {problems:?}");
            std::thread::sleep(LOOK);
        }
    }

    /// Routers whose rule is there whatever happens.
    pub(super) fn fixed_rules(&self, setting: &Setting) -> usize {
        if setting.control == Control::Naive { self.routers.len() } else { 0 }
    }

    fn look(&self) -> Result<Look> {
        let asked = MonotonicClock.now().as_secs_f64();
        let status = self.daemon.status()?;
        let answered = MonotonicClock.now().as_secs_f64();
        let (arrived, refused) = counts(&status);
        let mut routers = Vec::new();
        for (_, daemon) in &self.routers {
            routers.push(of_router(&daemon.status()?));
        }
        Ok(Look { at_s: f64::midpoint(asked, answered), arrived, refused, routers })
    }

    /// Runs something while looking.
    pub(super) fn looking<T>(&self, run: impl FnOnce() -> T) -> Result<(T, Vec<Look>)> {
        testbed::looking(LOOK, || self.look(), run)
    }

    pub(super) fn mark(&self, road: &Road<'_>) -> Result<Mark> {
        let narrow = road.narrow()?.counts()?;
        let datagrams = self.rules.first().map(DatagramRule::counts).transpose()?;
        let at_s = MonotonicClock.now().as_secs_f64();
        Ok(Mark { at_s, narrow, datagrams: datagrams.unwrap_or_default() })
    }

    /// Ends the daemons in good order.
    pub(super) fn end(self) -> Result<()> {
        let routers = self.routers.into_iter().map(|(_, daemon)| daemon);
        std::iter::once(self.daemon)
            .chain(routers)
            .try_for_each(Product::stop)
            .context("tidegate does not end")
    }
}

/// The routers that have a daemon.
fn daemons(setting: &Setting) -> Vec<RoadHost> {
    match setting.control {
        Control::None | Control::ServerOnly => Vec::new(),
        Control::Naive | Control::OutOfBand => {
            let within = |host: &RoadHost| f64::from(host.hops()) <= setting.hops;
            RoadHost::ROUTERS.into_iter().filter(within).collect()
        }
    }
}

/// The section `services`: silent drops, as the paper's. S0 says how many datagrams it takes where it may limit
/// routers.
fn services(mode: &str, rate: f64, datagrams: Option<f64>) -> Value {
    let mut service = json!({
        "mode": mode,
        "listen": [RoadHost::S0.target().to_string()],
        "policy": {"name": "token_bucket", "action": "drop"},
        "control": {"name": "fixed", "rate": rate},
    });
    if let Some(datagrams) = datagrams {
        service["datagrams"] = json!(datagrams);
    }
    json!({SERVICE: service})
}

/// Rules of nftables for datagrams: S0's own limit, and with `naive` also at routers.
fn rules(road: &Road<'_>, setting: &Setting) -> Result<Vec<DatagramRule>> {
    if setting.udp_mbit <= 0.0 {
        return Ok(Vec::new());
    }
    let rate = setting.s0_datagrams as u32;
    let own = (setting.control != Control::None).then_some(rate);
    let mut rules = vec![road.limit_datagrams(RoadHost::S0, own)?];
    if setting.control == Control::Naive {
        for host in daemons(setting) {
            rules.push(road.limit_datagrams(host, Some(rate))?);
        }
    }
    Ok(rules)
}

fn list<'a>(status: &'a Value, place: &str) -> &'a [Value] {
    status.pointer(place).and_then(Value::as_array).map_or(&[], Vec::as_slice)
}

/// SYNs of the service that came, and those that were refused.
fn counts(status: &Value) -> (f64, f64) {
    let (mut arrived, mut refused) = (0.0, 0.0);
    for count in list(status, "/services/0/counts") {
        let number = count["count"].as_f64().unwrap_or(0.0);
        arrived += number;
        let executed = count["verdict"] != json!("admit") && count["shadow"] != json!(true);
        refused += if executed { number } else { 0.0 };
    }
    (arrived, refused)
}

fn of_router(status: &Value) -> RouterLook {
    let limit = |unit: &Value| {
        let limits = list(status, "/services/0/remote").iter();
        let mut own =
            limits.filter(|limit| limit["role"] == json!("from") && limit["unit"] == *unit);
        own.find_map(|limit| limit["rate"].as_f64())
    };
    let refused_datagrams = status.pointer("/services/0/totals/datagrams/refused");
    let congested = list(status, "/links").iter().any(|link| link["congested"] == json!(true));
    let (_, refused) = counts(status);
    RouterLook {
        // Of connections it says nothing of its unit.
        limit: limit(&Value::Null),
        datagram_limit: limit(&json!("datagrams")),
        refused,
        refused_datagrams: refused_datagrams.and_then(Value::as_f64).unwrap_or(0.0),
        congested,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(control: Control) -> Setting {
        Setting { control, ..Setting::default() }
    }

    #[test]
    fn daemons_stand_within_the_hops() {
        assert!(daemons(&of(Control::ServerOnly)).is_empty());
        assert_eq!(daemons(&of(Control::Naive)), RoadHost::ROUTERS);
        let near = Setting { hops: 2.0, ..of(Control::OutOfBand) };
        assert_eq!(daemons(&near), [RoadHost::R2, RoadHost::R3]);
    }

    /// What shadow would have refused has passed.
    #[test]
    fn a_status_says_what_came_and_what_was_refused() {
        let count = |verdict: &str, shadow: bool, count: u64| json!({"verdict": verdict, "shadow": shadow, "count": count});
        let counts_seen =
            json!([count("admit", false, 5), count("drop", false, 3), count("drop", true, 2)]);
        let remote = json!([
            {"role": "from", "rate": null},
            {"role": "from", "rate": 80.5},
            {"role": "from", "rate": 50, "unit": "datagrams"},
        ]);
        let totals = json!({"datagrams": {"refused": 7}});
        let status = json!({
            "services": [{"counts": counts_seen, "remote": remote, "totals": totals}],
            "links": [{"congested": false}, {"congested": true}],
        });
        assert_eq!(counts(&status), (10.0, 3.0));
        let wanted = RouterLook {
            limit: Some(80.5),
            datagram_limit: Some(50.0),
            refused: 3.0,
            refused_datagrams: 7.0,
            congested: true,
        };
        assert_eq!(of_router(&status), wanted);
        assert_eq!(of_router(&json!({})), RouterLook::default());
    }
}
