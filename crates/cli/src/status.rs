// SPDX-License-Identifier: Apache-2.0 OR MIT
//! `tidegate status`, and what `top --once` shares with it.

use crate::args::Remote;
use crate::control::UNEXPECTED;
use crate::format::{Format, duration, json, plain};
use anyhow::bail;
use std::fmt::Write as _;
use std::io::Write;
use tidegate_api::client::Client;
use tidegate_api::exit::Exit;
use tidegate_api::protocol::{Reply, Request};
use tidegate_model::snapshot::{LevelState, Restored, ServiceState, Snapshot};
use tidegate_telemetry::{
    buckets_table, bus_lines, flowspec_lines, in_band_lines, links_table, peers_table,
    remote_table, router_lines, rules_table, services_table, unevaluated_lines,
};
use tidegate_units::{Nanos, Share};

/// From this share of a CPU on the thread that a service works in is worth a line.
const BUSY_THREAD: f64 = 0.8;

pub(crate) fn status(remote: &Remote, format: Format, out: &mut dyn Write) -> anyhow::Result<Exit> {
    let snapshot = fetch(&mut remote.connect()?)?;
    match format {
        Format::Json => json("tidegate-status/1", &snapshot, out)?,
        Format::Table => out.write_all(text(&snapshot).as_bytes())?,
    }
    Ok(Exit::Ok)
}

/// The snapshot of this moment.
pub(crate) fn fetch(client: &mut Client) -> anyhow::Result<Box<Snapshot>> {
    match client.ask(&Request::Status {})? {
        Reply::Status { snapshot } => Ok(snapshot),
        _ => bail!(UNEXPECTED),
    }
}

/// One line about the whole daemon.
pub(crate) fn headline(snapshot: &Snapshot) -> String {
    let uptime = snapshot.now.since(snapshot.started).as_secs_f64();
    let hooks: Vec<String> = snapshot
        .interfaces
        .iter()
        .map(|i| {
            let layer = if i.attached.is_empty() { "not attached" } else { &i.attached };
            format!("{} {}", plain(&i.name), plain(layer))
        })
        .collect();
    format!(
        "tidegate {}  up {}  configuration {}  limits {}  {}",
        plain(&snapshot.version),
        span(uptime),
        snapshot.config_generation,
        snapshot.limits_generation,
        if hooks.is_empty() { "no interface".into() } else { hooks.join(", ") },
    )
}

/// What must not be overlooked: the kill switch and warnings.
pub(crate) fn alerts(snapshot: &Snapshot) -> Vec<String> {
    let left = snapshot.release_left.map(|left| format!(" for {} more", duration(left)));
    let left = left.unwrap_or_default();
    let released = snapshot.released.then(|| format!("RELEASED: everything passes{left}"));
    let modes = snapshot.services.iter().filter_map(|service| {
        let set = service.mode_set.as_ref()?;
        let left = set.left.map(|left| format!(" for {} more", duration(left)));
        let (name, mode, file) = (plain(&service.name), plain(&service.mode), plain(&set.file));
        let left = left.unwrap_or_default();
        let share = set.percent.map(|percent| format!(" for {percent} % of the sources"));
        let share = share.unwrap_or_default();
        let by = if set.guard { "by the daemon itself" } else { "by command" };
        Some(format!("{name}: {mode}{share} {by}{left}; the file says {file}"))
    });
    let warnings = snapshot.warnings.iter().map(|w| format!("warning: {}", plain(w)));
    released.into_iter().chain(modes).chain(warnings).collect()
}

/// The gateways, and what became of their reports; HAProxy's agents.
fn gateways(snapshot: &Snapshot, text: &mut String) {
    let Some(state) = &snapshot.gateways else { return };
    text.push('\n');
    for agent in &state.agents {
        let (service, listen) = (plain(&agent.service), plain(&agent.listen));
        let told = match (agent.problem.is_empty(), agent.maxconn) {
            (false, _) => "not served".to_owned(),
            (true, 0) => "no limit".to_owned(),
            (true, maxconn) => format!("maxconn {maxconn}"),
        };
        let _ = writeln!(text, "agent {service} (haproxy) at {listen}: {told}");
    }
    if state.gateways.is_empty() {
        return;
    }
    for gateway in &state.gateways {
        let served = if gateway.problem.is_empty() { "served" } else { "not served" };
        let (name, listen) = (plain(&gateway.name), plain(&gateway.listen));
        let _ =
            writeln!(text, "gateway {name} ({}) at {listen}: {served}", plain(&gateway.adapter));
        if let Some(tls) = gateway.tls.as_ref().filter(|tls| tls.handshakes_failed > 0) {
            let (failed, last) = (tls.handshakes_failed, plain(&tls.last));
            let _ = writeln!(text, "  {failed} TLS handshakes failed, the last: {last}");
        }
        if let Some(proxy) = &gateway.proxy {
            let _ = writeln!(
                text,
                "  {} connections, {} turned away, {} failed handshakes, {} requests malformed; servers: {} \
                 unreachable, {} broken, {} timed out, {} full",
                proxy.connections,
                proxy.turned_away,
                proxy.handshakes_failed,
                proxy.malformed,
                proxy.unreachable,
                proxy.broken,
                proxy.timed_out,
                proxy.full
            );
            if proxy.waiting + proxy.waited + proxy.queue_full > 0 {
                let _ = writeln!(
                    text,
                    "  queue: {} wait, {} were served, {} found no room, {} waited too long, {} left",
                    proxy.waiting,
                    proxy.waited,
                    proxy.queue_full,
                    proxy.waited_too_long,
                    proxy.left_queue
                );
            }
        }
    }
    let reports = &state.reports;
    let _ = writeln!(
        text,
        "reports: {} completed, {} late, {} unknown; {} requests untracked, {} messages misunderstood",
        reports.completed, reports.late, reports.unknown, reports.untracked, state.misunderstood
    );
}

/// The whole status for people.
pub(crate) fn text(snapshot: &Snapshot) -> String {
    let mut text = headline(snapshot) + "\n";
    for alert in alerts(snapshot) {
        let _ = writeln!(text, "{alert}");
    }
    let _ = write!(text, "\n{}", services_table(snapshot));
    for table in [buckets_table(snapshot, None), rules_table(snapshot)] {
        if !table.is_empty() {
            let _ = write!(text, "\n{table}");
        }
    }
    let hosts = [links_table(snapshot), peers_table(snapshot), remote_table(snapshot)];
    let router = [router_lines(snapshot), bus_lines(snapshot), in_band_lines(snapshot)];
    let lines = [flowspec_lines(snapshot)].into_iter().chain(router);
    for table in hosts.into_iter().chain(lines) {
        if !table.is_empty() {
            let _ = write!(text, "\n{table}");
        }
    }
    if let Some(cleared) = snapshot.cleared {
        let _ = writeln!(text, "\nborder: marks of {cleared} packets were cleared");
    }
    gateways(snapshot, &mut text);
    for (i, line) in unevaluated_lines(snapshot).iter().enumerate() {
        let _ = writeln!(text, "{}{line}", if i == 0 { "\n" } else { "" });
    }
    let reasons = snapshot.services.iter().filter(|s| !s.limits.why.text.is_empty());
    for (i, service) in reasons.enumerate() {
        let gap = if i == 0 { "\n" } else { "" };
        let _ =
            writeln!(text, "{gap}{}: {}", plain(&service.name), plain(&service.limits.why.text));
        bucket_reasons(service, &mut text);
    }
    for service in &snapshot.services {
        if let Some(thread) = busy_thread(service) {
            let percent = thread.get() * 100.0;
            let name = plain(&service.name);
            let _ =
                writeln!(text, "{name}: works in one thread, which uses {percent:.0} % of a CPU");
        }
        if let Some(level) = &service.level {
            let _ = writeln!(text, "{}: {}", plain(&service.name), level_line(level));
        }
        let buckets = service.requests.iter().flat_map(|requests| &requests.buckets);
        for bucket in buckets {
            let Some(level) = &bucket.level else { continue };
            let (service, bucket) = (plain(&service.name), plain(&bucket.name));
            let _ = writeln!(text, "{service}, {bucket}: {}", level_line(level));
        }
        if let Some(restored) = service.restored {
            let _ = writeln!(text, "{}: started with {}", plain(&service.name), kept(restored));
        }
    }
    if snapshot.services.iter().any(in_shadow) {
        text.push_str(
            "\nIn shadow mode nothing is refused; <= marks an upper bound of what would be.\n",
        );
    }
    text
}

/// The share of the thread that a service works in, where it is worth a line: nearer to its end than
/// the CPUs.
fn busy_thread(service: &ServiceState) -> Option<Share> {
    let resource = &service.signals.resource;
    let cpu = resource.cpu.map_or(0.0, |reading| reading.value.get());
    let thread = resource.busiest_thread?.value;
    (thread.get() >= BUSY_THREAD && thread.get() > cpu).then_some(thread)
}

/// The work that waits, and what is done with whom because of it.
fn level_line(level: &LevelState) -> String {
    let time = level.signal == "waiting-time";
    let value = match level.value {
        None => "not known".to_owned(),
        Some(us) if time => Nanos::from_micros(us).to_string(),
        Some(number) => number.to_string(),
    };
    let mut line = format!("level {value} ({})", plain(&level.signal));
    let mut from = 0;
    for rungs in level.rungs.chunk_by(|one, two| one == two) {
        let to = from + rungs.len() - 1;
        let priorities =
            if from == to { format!("priority {from}") } else { format!("priorities {from}-{to}") };
        let what = match rungs[0] {
            0 => "below the thresholds".to_owned(),
            LevelState::DISCARD.. => "discarded".to_owned(),
            severity => format!("throttled, severity {severity}"),
        };
        let _ = write!(line, "; {priorities} {what}");
        from = to + 1;
    }
    line
}

/// What a service took over from a process that has ended.
fn kept(restored: Restored) -> String {
    let what = match (restored.limits, restored.learned) {
        (true, true) => "the limits and the controller state",
        (true, false) => "the limits",
        (false, _) => "the controller state",
    };
    format!("{what} of the process before, {} old", restored.age)
}

/// Why each bucket has the limit that it has.
fn bucket_reasons(service: &ServiceState, text: &mut String) {
    let buckets = service.requests.iter().flat_map(|requests| &requests.buckets);
    for bucket in buckets.filter(|bucket| !bucket.limits.why.text.is_empty()) {
        let why = &bucket.limits.why.text;
        let _ = writeln!(text, "{}, {}: {}", plain(&service.name), plain(&bucket.name), plain(why));
    }
}

fn in_shadow(service: &ServiceState) -> bool {
    let rules = service.requests.as_ref().is_some_and(|requests| requests.mode == "shadow");
    service.mode == "shadow" || rules
}

/// A time for people: the two largest units.
fn span(seconds: f64) -> String {
    let s = seconds as u64;
    let units = [(86_400, "d"), (3600, "h"), (60, "m"), (1, "s")];
    let first = units.iter().position(|(unit, _)| s >= *unit).unwrap_or(units.len() - 1);
    let (big, name) = units[first];
    let below = units.get(first + 1).map(|(unit, name)| format!(" {}{name}", s % big / unit));
    format!("{}{name}{}", s / big, below.unwrap_or_default())
}

#[cfg(test)]
mod tests {
    use super::*;
    use tidegate_model::signals::Reading;

    #[test]
    fn a_level_says_what_becomes_of_whom() {
        let line = |signal: &str, value, rungs| {
            let signal = signal.to_owned();
            level_line(&LevelState { signal, value, rungs })
        };
        assert_eq!(
            line("in-flight", Some(173), [0, 0, 0, 1, 1, 2, 4, 4]),
            "level 173 (in-flight); priorities 0-2 below the thresholds; priorities 3-4 throttled, \
             severity 1; priority 5 throttled, severity 2; priorities 6-7 discarded"
        );
        let calm = "level 250.0 ms (waiting-time); priorities 0-7 below the thresholds";
        assert_eq!(line("waiting-time", Some(250_000), [0; 8]), calm);
        let unknown = "level not known (waiting-time); priorities 0-7 below the thresholds";
        assert_eq!(line("waiting-time", None, [0; 8]), unknown);
    }

    #[test]
    fn a_service_at_the_end_of_its_thread_says_so() {
        let shown = |cpu: f64, thread: Option<f64>| {
            let mut service = ServiceState { name: "node".into(), ..ServiceState::default() };
            let reading = |share| Reading::fresh(Share::new(share));
            service.signals.resource.cpu = Some(reading(cpu));
            service.signals.resource.busiest_thread = thread.map(reading);
            service.restored = Some(Restored { age: Nanos::SECOND, limits: false, learned: true });
            text(&Snapshot { services: vec![service], ..Snapshot::default() })
        };
        let line = "node: works in one thread, which uses 99 % of a CPU\n";
        assert!(shown(0.06, Some(0.99)).contains(line), "{}", shown(0.06, Some(0.99)));
        for (cpu, thread) in [(0.06, None), (0.06, Some(0.79)), (0.99, Some(0.95))] {
            assert!(!shown(cpu, thread).contains("works in"), "{cpu} {thread:?}");
        }
        let kept = "node: started with the controller state of the process before, 1.00 s old\n";
        assert!(shown(0.0, None).contains(kept), "{}", shown(0.0, None));
    }

    #[test]
    fn gateways_and_their_reports_are_shown() {
        use tidegate_model::snapshot::{
            AgentState, GatewayState, GatewaysState, ProxyCounts, ReportCounts, TlsCounts,
        };
        let gateway = GatewayState {
            name: "edge".into(),
            adapter: "nginx".into(),
            listen: "unix:/run/edge.sock".into(),
            problem: String::new(),
            untold: String::new(),
            tls: Some(TlsCounts { handshakes_failed: 2, last: "192.0.2.7: no certificate".into() }),
            proxy: Some(ProxyCounts {
                connections: 7,
                timed_out: 5,
                waited: 4,
                ..ProxyCounts::default()
            }),
        };
        let agent = |maxconn, problem: &str| AgentState {
            service: "shop".into(),
            listen: "127.0.0.1:7420".into(),
            maxconn,
            problem: problem.into(),
        };
        let state = GatewaysState {
            gateways: vec![gateway],
            agents: vec![agent(35, ""), agent(0, ""), agent(35, "address in use")],
            reports: ReportCounts { completed: 9, late: 2, unknown: 1, untracked: 0 },
            misunderstood: 3,
            ..GatewaysState::default()
        };
        let agents = GatewaysState { agents: state.agents.clone(), ..GatewaysState::default() };
        let shown = text(&Snapshot { gateways: Some(agents), ..Snapshot::default() });
        for told in ["maxconn 35", "no limit", "not served"] {
            let row = format!("agent shop (haproxy) at 127.0.0.1:7420: {told}\n");
            assert!(shown.contains(&row), "{shown}");
        }
        assert!(!shown.contains("completed"), "no gateway, no reports: {shown}");
        let shown = text(&Snapshot { gateways: Some(state), ..Snapshot::default() });
        assert!(shown.contains("gateway edge (nginx) at unix:/run/edge.sock: served\n"), "{shown}");
        let refused = "\n  2 TLS handshakes failed, the last: 192.0.2.7: no certificate\n";
        assert!(shown.contains(refused), "{shown}");
        assert!(shown.contains("\n  7 connections, 0 turned away"), "{shown}");
        assert!(shown.contains("  queue: 0 wait, 4 were served, 0 found no room"), "{shown}");
        assert!(shown.contains("0 broken, 5 timed out, 0 full\n"), "{shown}");
        assert!(
            shown.contains("9 completed, 2 late, 1 unknown; 0 requests untracked, 3 "),
            "{shown}"
        );
    }

    #[test]
    fn a_span_shows_its_two_largest_units() {
        let shown = [0.0, 59.9, 60.0, 3661.0, 90_000.0].map(span);
        assert_eq!(shown, ["0s", "59s", "1m 0s", "1h 1m", "1d 1h"]);
    }
}
