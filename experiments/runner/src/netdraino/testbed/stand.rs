// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What stands on the road in one run: two servers, the daemon of S0, those of routers, rules for datagrams, who
//! attacks; and what is seen of them meanwhile.

use super::host;
use super::setting::{Attack, Control, Setting};
use crate::testbed;
use anyhow::{Context, Result, ensure};
use serde_json::{Value, json};
use std::path::Path;
use std::time::Duration;
use tidegate_lab::{
    AttackCounts, Attacker, Bird, ControlCounts, ControlMeter, Cost, DatagramCounts, DatagramRule,
    InBand, InBandOptions, InBandSeen, MarkCounts, MarkMeter, Product, Pushback, Road, RoadHost,
    Server, ShapedCounts, TinyOptions,
};
use tidegate_units::{Clock, MonotonicClock, Nanos};

/// Connections that S0 serves or lets wait at once, and those that its kernel lets wait.
const S0_WORKERS: u32 = 256;
const BACKLOG: i32 = 128;
/// The same of S1, which is never short of them.
const S1_WORKERS: u32 = 512;
/// Between two looks.
const LOOK: Duration = Duration::from_millis(200);
/// How long the sessions of the daemons may take to come up.
const SESSIONS: Nanos = Nanos::from_secs(30);
/// How long rules of FlowSpec may stay after the server's daemon was killed: more than is claimed.
const GONE: Nanos = Nanos::from_secs(30);

/// See the module; dropped in this order.
pub(super) struct Stand {
    attacker: Option<Attacker>,
    in_band: Option<InBand>,
    /// S0's, which only counts where nothing protects.
    daemon: Product,
    routers: Vec<(RoadHost, Product)>,
    _bird: Option<Bird>,
    control: ControlMeter,
    marks: Option<MarkMeter>,
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
    /// Whether anybody but S0 limits S0.
    pub(super) foreign: bool,
    /// What its rule of FlowSpec has let pass.
    pub(super) passed: Option<f64>,
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
    /// Datagrams that came to S0 so far, where its hook counts them.
    pub(super) datagrams: Option<f64>,
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
    /// What limits have cost so far.
    pub(super) costs: Costs,
}

/// What limits cost.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(super) struct Costs {
    /// S0's sessions.
    pub(super) control: ControlCounts,
    /// Reports and limits that S0 has sent.
    pub(super) reports: u64,
    pub(super) limits: u64,
    /// CPU time of S0's daemon, and of the busiest router's.
    pub(super) server: Nanos,
    pub(super) router: Nanos,
    /// The published mode.
    pub(super) in_band: InBandSeen,
}

/// What became of an attack.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(super) struct Attacked {
    /// What the attacker says.
    pub(super) counts: AttackCounts,
    /// Limits of S1 that routers have taken.
    pub(super) limits: u64,
    /// What daemons have refused: messages, sessions and handshakes.
    pub(super) refused: u64,
    /// What came past the border.
    pub(super) marks: MarkCounts,
}

impl Stand {
    pub(super) fn start(road: &Road<'_>, program: &Path, setting: &Setting) -> Result<Self> {
        let (s0, s1) = servers(road, setting)?;
        let hosts = daemons(setting);
        let pushed = setting.control == Control::OutOfBand;
        let peers = pushed.then(|| host::pushback(road, program, setting)).transpose()?;
        let bird = (setting.control == Control::Flowspec).then(|| road.bird()).transpose()?;
        let mut routers = Vec::new();
        for host in hosts {
            let (services, sections) = host::router(setting, host, peers.as_ref());
            let started = road.start_product(program, host, (&services, &sections));
            routers.push((host, started.with_context(|| format!("tidegate on {}", host.name()))?));
        }
        // Where it stands in the place of a router, S0 finds it there.
        let attacker = attacker(road, setting, peers.as_ref()).context("the attacker")?;
        let (services, sections) = host::server(setting, peers.as_ref());
        let daemon = road.start_product(program, RoadHost::S0, (&services, &sections));
        let daemon = daemon.context("tidegate on S0")?;
        let rules = rules(road, setting)?;
        let control = road.count_control()?;
        let marks = (setting.attack == Attack::Marks).then(|| road.see_marks()).transpose()?;
        let wanted = setting.unsafe_marks_make_limits;
        let in_band = wanted.then(|| road.in_band_unsafe(&published(setting))).transpose()?;
        let stand =
            Self { attacker, in_band, daemon, routers, _bird: bird, control, marks, rules, s0, s1 };
        if pushed {
            stand.sessions()?;
        }
        if setting.control == Control::Flowspec {
            stand.speaks()?;
        }
        Ok(stand)
    }

    /// Waits until S0 has a session with each router.
    fn sessions(&self) -> Result<()> {
        let end = MonotonicClock.now() + SESSIONS;
        let names: Vec<&str> = self.routers.iter().map(|(host, _)| host.name()).collect();
        loop {
            let status = self.daemon.status()?;
            let peers = list(&status, "/peers");
            let ours = |peer: &&Value| peer["name"].as_str().is_some_and(|n| names.contains(&n));
            let up = peers.iter().filter(ours).filter(|peer| peer["up"] == json!(true)).count();
            if up >= names.len() {
                return Ok(());
            }
            let problems: Vec<&Value> = peers.iter().map(|peer| &peer["problem"]).collect();
            ensure!(MonotonicClock.now() < end, "{up} sessions are up: {problems:?}");
            std::thread::sleep(LOOK);
        }
    }

    /// Waits until S0's speaker runs, and R2 hears the router that is not ours.
    fn speaks(&self) -> Result<()> {
        let end = MonotonicClock.now() + SESSIONS;
        loop {
            let server = self.daemon.status()?;
            let router = self.routers.first().map(|(_, daemon)| daemon.status()).transpose()?;
            let heard = router.as_ref().and_then(|status| status.pointer("/flowspec/import/heard"));
            // Of ExaBGP it is not known whether a session is up.
            let speaks = server.pointer("/flowspec/up") == Some(&json!(true))
                && server.pointer("/flowspec/peers/0/up") != Some(&json!(false));
            if speaks && heard == Some(&json!(true)) {
                return Ok(());
            }
            let seen =
                (server.pointer("/flowspec"), router.as_ref().and_then(|r| r.get("flowspec")));
            ensure!(MonotonicClock.now() < end, "BGP does not come up: {seen:?}");
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
        let (arrived, mut refused) = counts(&status);
        let mut routers = Vec::new();
        for (_, daemon) in &self.routers {
            routers.push(of_router(&daemon.status()?));
        }
        if let Some(seen) = self.in_band.as_ref().map(InBand::seen) {
            refused = seen.server_refused;
            routers.push(of_published(&seen));
        }
        let datagrams =
            status.pointer("/services/0/totals/datagrams/offered").and_then(Value::as_f64);
        let at_s = f64::midpoint(asked, answered);
        Ok(Look { at_s, arrived, refused, datagrams, routers })
    }

    /// Runs something while looking.
    pub(super) fn looking<T>(&self, run: impl FnOnce() -> T) -> Result<(T, Vec<Look>)> {
        testbed::looking(LOOK, || self.look(), run)
    }

    pub(super) fn mark(&self, road: &Road<'_>) -> Result<Mark> {
        let narrow = road.narrow()?.counts()?;
        let datagrams = self.rules.first().map(DatagramRule::counts).transpose()?;
        let at_s = MonotonicClock.now().as_secs_f64();
        let datagrams = datagrams.unwrap_or_default();
        Ok(Mark { at_s, narrow, datagrams, costs: self.costs()? })
    }

    fn costs(&self) -> Result<Costs> {
        let status = self.daemon.status()?;
        let peers = list(&status, "/peers");
        let sum = |name: &str| peers.iter().filter_map(|peer| peer[name].as_u64()).sum();
        let used = |daemon: &Product| daemon.process().group().cpu_used().unwrap_or_default();
        let (mut server, mut router) = (used(&self.daemon), Nanos::ZERO);
        for (_, daemon) in &self.routers {
            router = router.max(used(daemon));
        }
        if let Some(in_band) = &self.in_band {
            let of = in_band.cpu_used();
            (router, server) = (of.0, server + of.1);
        }
        Ok(Costs {
            control: self.control.counts()?,
            reports: sum("reports"),
            limits: sum("limits"),
            server,
            router,
            in_band: self.in_band.as_ref().map(InBand::seen).unwrap_or_default(),
        })
    }

    /// What the attack has come to; `None` without one.
    pub(super) fn attacked(&self) -> Result<Option<Attacked>> {
        let Some(attacker) = &self.attacker else { return Ok(None) };
        let counts = attacker.counts();
        let marks = self.marks.as_ref().map(MarkMeter::counts).transpose()?.unwrap_or_default();
        let mut seen =
            Attacked { counts, marks, limits: 0, refused: refused(&self.daemon.status()?) };
        for (_, daemon) in &self.routers {
            let status = daemon.status()?;
            let own = list(&status, "/peers").iter().filter(|peer| peer["name"] == json!("s1"));
            seen.limits += own.filter_map(|peer| peer["limits"].as_u64()).sum::<u64>();
            seen.refused += refused(&status);
        }
        Ok(Some(seen))
    }

    /// Ends the daemons: in good order, but kills S0's where its route has to go; how long that took.
    pub(super) fn end(
        self,
        (road, program): (&Road<'_>, &Path),
        setting: &Setting,
    ) -> Result<Option<Nanos>> {
        let routers = self.routers.into_iter().map(|(_, daemon)| daemon);
        let mut routers: Vec<Product> = routers.collect();
        let mut gone = None;
        if let (Control::Flowspec, Some(router)) = (setting.control, routers.first_mut()) {
            let config = self.daemon.config().to_path_buf();
            gone = killed(self.daemon, router)?;
            // The next daemon has pins of its own.
            road.detach(program, RoadHost::S0, &config)?;
        } else {
            self.daemon.stop().context("tidegate on S0 does not end")?;
        }
        routers.into_iter().try_for_each(Product::stop).context("tidegate does not end")?;
        Ok(gone)
    }
}

/// Kills S0's daemon and waits until R2 has no rule any more; `None`: it had none.
fn killed(daemon: Product, router: &Product) -> Result<Option<Nanos>> {
    let rules = || Ok::<_, anyhow::Error>(list(&router.status()?, "/flowspec/import/rules").len());
    let there = rules()? > 0;
    let begun = MonotonicClock.now();
    daemon.kill9()?;
    while rules()? > 0 && MonotonicClock.now() < begun + GONE {
        std::thread::sleep(LOOK / 4);
    }
    Ok(there.then(|| MonotonicClock.now() - begun))
}

fn servers(road: &Road<'_>, setting: &Setting) -> Result<(Server, Server)> {
    let each = Nanos::from_secs_f64(1.0 / setting.s0_serves);
    let (workers, backlog, cost) = (S0_WORKERS, BACKLOG, Cost::wait(each));
    let serial = TinyOptions { workers, backlog, cost, serial: true, ..TinyOptions::default() };
    let s0 = road.start_tiny(RoadHost::S0, &serial).context("S0")?;
    let cost = Cost::wait(Nanos::ZERO);
    let quick = TinyOptions { workers: S1_WORKERS, backlog: 4_096, cost, ..TinyOptions::default() };
    Ok((s0, road.start_tiny(RoadHost::S1, &quick).context("S1")?))
}

fn attacker(
    road: &Road<'_>,
    setting: &Setting,
    peers: Option<&Pushback>,
) -> Result<Option<Attacker>> {
    let Some(peers) = peers else { return Ok(None) };
    match (setting.attack, setting.attack.kind()) {
        (Attack::Marks, _) => Ok(Some(road.forge_marks()?)),
        (attack, Some(kind)) => {
            let place = attack.place().unwrap_or(RoadHost::S1);
            Ok(Some(road.attack(kind, place, peers)?))
        }
        _ => Ok(None),
    }
}

fn published(setting: &Setting) -> InBandOptions {
    InBandOptions {
        rates: (setting.s0_rate, setting.s0_datagrams),
        k: super::setting::K,
        queue: setting.th,
        append: setting.append,
        samples: setting.samples,
    }
}

/// The routers that have a daemon.
fn daemons(setting: &Setting) -> Vec<RoadHost> {
    match setting.control {
        Control::None | Control::ServerOnly | Control::InBand => Vec::new(),
        Control::Flowspec => vec![RoadHost::R2],
        Control::Naive | Control::OutOfBand => {
            let stands = |host: &RoadHost| Some(*host) != setting.attack.place();
            host::within(setting).into_iter().filter(stands).collect()
        }
    }
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

/// What a daemon has refused of peers.
fn refused(status: &Value) -> u64 {
    let all = list(status, "/peers").iter().filter_map(|peer| peer["refused"].as_array());
    all.flatten().filter_map(|count| count["count"].as_u64()).sum()
}

fn of_router(status: &Value) -> RouterLook {
    let from =
        || list(status, "/services/0/remote").iter().filter(|limit| limit["role"] == json!("from"));
    let limit = |unit: &Value| {
        from().filter(|limit| limit["unit"] == *unit).find_map(|limit| limit["rate"].as_f64())
    };
    let other = |limit: &Value| limit["peer"] != json!(RoadHost::S0.name());
    let refused_datagrams = status.pointer("/services/0/totals/datagrams/refused");
    let congested = list(status, "/links").iter().any(|link| link["congested"] == json!(true));
    let (_, refused) = counts(status);
    let rule = list(status, "/flowspec/import/rules").first();
    let of_rule = |name: &str| rule.and_then(|rule| rule[name].as_f64());
    let passed = of_rule("packets").zip(of_rule("refused")).map(|(all, refused)| all - refused);
    RouterLook {
        // Of connections it says nothing of its unit.
        limit: limit(&Value::Null).or_else(|| of_rule("packets_rate")),
        datagram_limit: limit(&json!("datagrams")),
        refused: refused + of_rule("refused").unwrap_or(0.0),
        refused_datagrams: refused_datagrams.and_then(Value::as_f64).unwrap_or(0.0),
        congested,
        foreign: from().any(other),
        passed,
    }
}

fn of_published(seen: &InBandSeen) -> RouterLook {
    RouterLook {
        limit: seen.limit,
        datagram_limit: seen.datagram_limit,
        refused: seen.refused,
        refused_datagrams: seen.refused_datagrams,
        congested: seen.congested,
        ..RouterLook::default()
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
        assert_eq!(daemons(&of(Control::Flowspec)), [RoadHost::R2]);
        let attack = Attack::Liar;
        let attacked = Setting { attack, neighbour: true, ..of(Control::OutOfBand) };
        assert_eq!(daemons(&attacked), [RoadHost::R0, RoadHost::R1, RoadHost::R2]);
    }

    /// What shadow would have refused has passed.
    #[test]
    fn a_status_says_what_came_and_what_was_refused() {
        let count = |verdict: &str, shadow: bool, count: u64| json!({"verdict": verdict, "shadow": shadow, "count": count});
        let counts_seen =
            json!([count("admit", false, 5), count("drop", false, 3), count("drop", true, 2)]);
        let remote = json!([
            {"peer": "s0", "role": "from", "rate": null},
            {"peer": "s0", "role": "from", "rate": 80.5},
            {"peer": "s0", "role": "from", "rate": 50, "unit": "datagrams"},
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
            ..RouterLook::default()
        };
        assert_eq!(of_router(&status), wanted);
        assert_eq!(of_router(&json!({})), RouterLook::default());
    }

    /// A limit on S0 that S0 has not given; and a rule of FlowSpec.
    #[test]
    fn a_router_says_whose_its_limits_are() {
        let limit = |peer: &str| json!({"peer": peer, "role": "from", "rate": 1});
        let foreign =
            |peer: &str| of_router(&json!({"services": [{"remote": [limit(peer)]}]})).foreign;
        assert!(foreign("s1") && !foreign("s0"));
        let rule = json!({"packets": 900, "refused": 600, "packets_rate": 120.0});
        let look = of_router(&json!({"flowspec": {"import": {"rules": [rule]}}}));
        assert_eq!((look.limit, look.passed, look.refused), (Some(120.0), Some(300.0), 600.0));
        let count = |count: u64| json!({"reason": "stale", "count": count});
        let peers = json!([{"refused": [count(3), count(4)]}, {"refused": []}]);
        assert_eq!(refused(&json!({"peers": peers})), 7);
    }
}
