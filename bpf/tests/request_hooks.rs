// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The hooks of request rules on an interface: they come and go with the rules, keep their place
//! behind the hook of SYNs, outlive a process, and leave others alone.

#![allow(clippy::unwrap_used, reason = "a test may")]

mod netns;

use netns::{AttachMode, BpfFs, Net, links, plan, within};
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::path::Path;
use std::time::Duration;
use tidegate_bpf::testing::plans;
use tidegate_bpf::testing::tcx_programs;
use tidegate_bpf::{BucketParams, Dataplane, Error, Hook, Plan};
use tidegate_config::{
    Attach, InterfaceConfig, RequestsConfig, RuleAction, RuleConfig, RuleRefusal, ServiceConfig,
};
use tidegate_model::totals::Totals;
use tidegate_policy::Action;
use tidegate_units::Rate;

const SERVER: &str = "10.77.0.1:80";

fn rule(path: &str) -> RuleConfig {
    RuleConfig {
        action: Some(RuleAction::Refuse(RuleRefusal::Reset)),
        ..plans::rule(path, Some("pages"))
    }
}

fn rules(paths: &[&str]) -> Option<RequestsConfig> {
    Some(plans::requests(&["pages"], paths.iter().map(|path| rule(path)).collect()))
}

fn plan_with(net: &Net, mode: AttachMode, paths: &[&str]) -> Plan {
    let mut plan = plan(vec![net.interface(mode)], Action::Drop);
    plan.config.services[0].requests = rules(paths);
    plan
}

fn without(plan: &Plan) -> Plan {
    let mut plan = plan.clone();
    plan.config.services[0].requests = None;
    plan
}

/// Names and ids of the pinned links.
fn ids(pins: &Path) -> Vec<String> {
    let id = |(name, text): (String, String)| {
        let tail = name.splitn(3, '_').nth(2).unwrap();
        format!("{tail} {}", text.split(':').next().unwrap_or_default())
    };
    let mut ids: Vec<String> = links(pins).into_iter().map(id).collect();
    ids.sort();
    ids
}

fn names(links: &[String]) -> Vec<&str> {
    links.iter().map(|link| link.split(' ').next().unwrap()).collect()
}

/// A connection whose server echoes, from the client's namespace; it must work all the time.
struct Echo {
    client: TcpStream,
    server: TcpStream,
}

impl Echo {
    fn new(net: &Net) -> Self {
        let address: SocketAddr = SERVER.parse().unwrap();
        let listener = within(&net.server, || TcpListener::bind(address).unwrap());
        let client = within(&net.client, || {
            TcpStream::connect_timeout(&address, Duration::from_secs(2)).unwrap()
        });
        let server = listener.accept().unwrap().0;
        for stream in [&client, &server] {
            stream.set_read_timeout(Some(Duration::from_secs(2))).unwrap();
        }
        Self { client, server }
    }

    fn works(&mut self) {
        self.says(b"hello");
    }

    fn says(&mut self, text: &[u8]) {
        let mut buffer = vec![0; text.len()];
        self.client.write_all(text).unwrap();
        self.server.read_exact(&mut buffer).unwrap();
        self.server.write_all(&buffer).unwrap();
        self.client.read_exact(&mut buffer).unwrap();
        assert_eq!(buffer, text);
    }
}

/// Waits until so many connections are followed; the table is looked at every second.
fn follows(dataplane: &mut Dataplane, connections: u64) {
    netns::wait_for("so many are followed", || {
        dataplane.heartbeat().unwrap();
        dataplane.followed().connections == connections
    });
}

/// Runs `work` in a thread without any privilege, as a daemon after its start.
fn unprivileged<T: Send>(work: impl FnOnce() -> T + Send) -> T {
    use rustix::thread::{CapabilitySet, CapabilitySets, set_capabilities};
    std::thread::scope(|scope| {
        let thread = scope.spawn(|| {
            let none = CapabilitySets {
                effective: CapabilitySet::empty(),
                permitted: CapabilitySet::empty(),
                inheritable: CapabilitySet::empty(),
            };
            set_capabilities(None, none).unwrap();
            work()
        });
        thread.join().unwrap()
    })
}

#[test]
fn a_daemon_without_privileges_changes_rules_and_limits() {
    let net = Net::new();
    let plan = plan_with(&net, AttachMode::Tcx, &["/a"]);
    let mut dataplane = Dataplane::start(&plan).unwrap();
    let mut more = plan.clone();
    more.config.services[0].requests = rules(&["/a", "/b"]);
    unprivileged(|| {
        dataplane.apply(&more).unwrap();
        let rate = Some(Rate::per_second(10.0));
        let limit = BucketParams::tokens((0, 0), rate, 5, [0; 3]).unwrap();
        dataplane.set_limits(&[], &[limit], 9).unwrap();
        dataplane.set_shadow(0, true).unwrap();
        dataplane.heartbeat().unwrap();
        assert_eq!(dataplane.rule_counts().unwrap().len(), 2);
        dataplane.request_reasons().unwrap();
        dataplane.totals(0).unwrap();
    });
    let mut echo = Echo::new(&net);
    echo.says(b"GET /b HTTP/1.1\r\nHost: a.example\r\n\r\n");
    assert_eq!(dataplane.rule_counts().unwrap()[1].admitted, 1);
}

#[test]
fn hooks_of_request_rules_come_and_go_with_the_rules_and_the_others_stay() {
    let (net, fs) = (Net::new(), BpfFs::new());
    let mut with = plan_with(&net, AttachMode::Xdp, &["/a"]);
    with.settings.pins = Some(fs.pins());
    let without = without(&with);
    let mut dataplane = Dataplane::start(&without).unwrap();
    let before = ids(&fs.pins());
    assert_eq!(names(&before), ["tcx_out", "xdp_in"]);
    assert_eq!(dataplane.hooks()[0].requests, None);
    assert!(dataplane.needs_attach(&with) && !dataplane.needs_attach(&without));
    let mut echo = Echo::new(&net);
    for _ in 0..3 {
        dataplane.apply(&with).unwrap();
        echo.works();
        let now = ids(&fs.pins());
        assert_eq!(names(&now), ["tcx_out", "tcx_request_in", "tcx_request_out", "xdp_in"]);
        assert!(before.iter().all(|link| now.contains(link)), "{now:?}");
        assert_eq!(dataplane.hooks()[0].requests, Some(Hook::Tcx));
        let mut more = with.clone();
        more.config.services[0].requests = rules(&["/a", "/b"]);
        assert!(!dataplane.needs_attach(&more), "other rules need no other programs");
        dataplane.apply(&more).unwrap();
        assert_eq!(ids(&fs.pins()), now);
        echo.works();
        dataplane.apply(&without).unwrap();
        echo.works();
        assert_eq!(ids(&fs.pins()), before);
        assert_eq!(dataplane.hooks()[0].requests, None);
    }
    dataplane.detach();
    assert!(!fs.pins().exists(), "no pins left");
}

#[test]
fn after_a_plan_that_cannot_be_attached_going_back_needs_no_programs_and_rules_evaluate() {
    for mode in [AttachMode::Tcx, AttachMode::Xdp] {
        let (net, fs) = (Net::new(), BpfFs::new());
        let mut plan = plan_with(&net, mode, &["/a"]);
        plan.settings.pins = Some(fs.pins());
        let mut dataplane = Dataplane::start(&plan).unwrap();
        let before = links(&fs.pins());
        let mut wrong = plan.clone();
        wrong.config.services[0].listen[0].port = 81;
        wrong.config.interfaces[0].trust_dscp = true;
        wrong
            .config
            .interfaces
            .push(InterfaceConfig { name: "nosuch0".into(), ..net.interface(mode).config });
        for _ in 0..2 {
            let error = dataplane.apply(&wrong).unwrap_err().to_string();
            assert!(error.contains("nosuch0"), "{error}");
            assert!(dataplane.needs_attach(&wrong) && !dataplane.needs_attach(&plan));
        }
        unprivileged(|| dataplane.apply(&plan)).unwrap();
        assert_eq!(links(&fs.pins()), before, "the same links with the same programs");
        // On a busy machine the lease of the start may be over.
        dataplane.heartbeat().unwrap();
        let mut echo = Echo::new(&net);
        echo.says(b"GET /a HTTP/1.1\r\nHost: a.example\r\n\r\n");
        assert_eq!(dataplane.rule_counts().unwrap()[0].admitted, 1);
        dataplane.detach();
    }
}

#[test]
fn a_new_process_adopts_hooks_rules_and_limits() {
    let (net, fs) = (Net::new(), BpfFs::new());
    let mut plan = plan_with(&net, AttachMode::Tcx, &["/a", "/b"]);
    plan.settings.pins = Some(fs.pins());
    let mut first = Dataplane::start(&plan).unwrap();
    let rate = Some(Rate::per_second(10.0));
    let limit = BucketParams::tokens((0, 0), rate, 5, [0; 3]).unwrap();
    first.set_limits(&[], &[limit], 41).unwrap();
    let before = ids(&fs.pins());
    assert_eq!(before.len(), 4);
    let mut echo = Echo::new(&net);
    echo.says(b"GET /b HTTP/1.1\r\nHost: a.example\r\n\r\n");
    let counts = first.rule_counts().unwrap();
    assert_eq!((counts[0].admitted, counts[1].admitted), (0, 1), "{:?}", first.request_reasons());
    // Beside the first, which still runs: no packet passes without a hook.
    let mut second = Dataplane::start(&plan).unwrap();
    echo.works();
    drop(first);
    echo.works();
    assert_eq!(ids(&fs.pins()), before, "the same links, updated");
    assert_eq!(second.rule_counts().unwrap(), counts);
    let buckets = second.totals(0).unwrap().buckets;
    assert_eq!((buckets.len(), buckets[0].offered.iter().sum::<u64>()), (1, 1));
    second.heartbeat().unwrap();
    assert_eq!(second.followed().connections, 1);
    drop(second);
    // Its index goes to a service without rules; those of another one keep the hooks where they are.
    let mut renamed = without(&plan);
    renamed.config.services[0].name = "store".into();
    let beside = ServiceConfig { requests: rules(&["/"]), ..plans::service("beside", &["*:81"]) };
    renamed.config.services.push(beside);
    let mut other = Dataplane::start(&renamed).unwrap();
    other.heartbeat().unwrap();
    assert_eq!(other.followed().connections, 0, "the index has changed hands");
    echo.works();
    drop(other);
    let mut other = Dataplane::start(&plan).unwrap();
    let mut echo = Echo::new(&net);
    follows(&mut other, 1);
    drop(other);
    // A process whose plan has no rules any more takes their hooks off.
    let third = Dataplane::start(&without(&plan)).unwrap();
    assert_eq!(names(&ids(&fs.pins())), ["tcx_in", "tcx_out"]);
    assert!(third.rule_counts().unwrap().is_empty());
    echo.works();
    drop(third);
    // Nobody follows what it said meanwhile.
    let mut fourth = Dataplane::start(&plan).unwrap();
    fourth.heartbeat().unwrap();
    assert_eq!(fourth.followed().connections, 0);
    echo.works();
    fourth.detach();
    assert!(!fs.pins().exists(), "no pins left");
}

/// The plan of a successor that gives up had taken the port away: what connections said there meanwhile,
/// nobody followed.
#[test]
fn a_take_over_that_is_given_up_leaves_no_connection_half_followed() {
    let (net, fs) = (Net::new(), BpfFs::new());
    let mut plan = plan_with(&net, AttachMode::Tcx, &["/a"]);
    plan.settings.pins = Some(fs.pins());
    let mut first = Dataplane::start(&plan).unwrap();
    let mut echo = Echo::new(&net);
    follows(&mut first, 1);
    let mut moved = plan.clone();
    moved.config.services[0].listen[0].port = 81;
    let second = Dataplane::begin(&moved).unwrap();
    echo.works();
    drop(second);
    assert_eq!(first.reassert(), [""; 0]);
    first.apply(&plan).unwrap();
    assert_eq!(first.followed().connections, 0, "it passes");
    echo.works();
    // What begins from here on is followed.
    let mut anew = Echo::new(&net);
    follows(&mut first, 1);
    anew.says(b"GET /a HTTP/1.1\r\nHost: a.example\r\n\r\n");
    assert_eq!(first.rule_counts().unwrap()[0].admitted, 1);
    first.detach();
}

#[test]
fn requests_are_evaluated_behind_syns_also_where_they_were_there_first() {
    let net = Net::new();
    let plan = plan_with(&net, AttachMode::Xdp, &["/"]);
    let mut dataplane = Dataplane::start(&plan).unwrap();
    let at = |place: usize| tcx_programs(&plan.interfaces()[0]).unwrap()[place].clone();
    assert_eq!(at(0), ["tg_request_in"], "SYNs are evaluated at XDP");
    assert_eq!(at(1), ["tg_egress", "tg_request_out"]);
    let mut moved = plan.clone();
    moved.config.interfaces[0].attach = Attach::Tcx;
    dataplane.apply(&moved).unwrap();
    assert_eq!(at(0), ["tg_ingress", "tg_request_in"]);
    assert_eq!(at(1), ["tg_egress", "tg_request_out"]);
    dataplane.apply(&plan).unwrap();
    assert_eq!(at(0), ["tg_request_in"]);
    drop(dataplane);
    assert_eq!((at(0), at(1)), (vec![], vec![]), "without pins all ends with the process");
}

#[test]
fn clsact_has_a_place_for_each_and_a_foreign_filter_is_never_replaced() {
    let net = Net::new();
    let plan = plan_with(&net, AttachMode::Clsact, &["/"]);
    let mut dataplane = Dataplane::start(&plan).unwrap();
    for (name, place) in [("tg_ingress", 29799), ("tg_request_in", 29800)] {
        let shown = net.filters();
        let line =
            shown.lines().find(|line| line.contains(name)).unwrap_or_else(|| panic!("{shown}"));
        assert!(line.contains(&format!("pref {place} ")), "{line}");
    }
    let mut echo = Echo::new(&net);
    dataplane.apply(&without(&plan)).unwrap();
    echo.works();
    assert!(!net.filters().contains("request") && net.filters().contains("tg_egress"));
    dataplane.apply(&plan).unwrap();
    echo.works();
    assert!(net.filters().contains("tg_request_out"));
    drop(dataplane);
    assert_eq!(net.filters(), "");

    let directory = tempfile::tempdir().unwrap();
    let object = netns::foreign_object(directory.path());
    net.server_sh(&format!(
        "tc filter add dev s0 ingress pref 29800 handle 0x7467 bpf direct-action obj {} sec xdp",
        object.display()
    ));
    let mut dataplane = Dataplane::start(&without(&plan)).unwrap();
    let text = match dataplane.apply(&plan) {
        Err(error @ Error::ForeignFilter { .. }) => error.to_string(),
        other => panic!("{other:?}"),
    };
    assert!(text.contains("stranger") && text.contains("29800"), "{text}");
    assert!(net.filters().contains("stranger") && !net.filters().contains("request"));
    drop(dataplane);
    let refused = Dataplane::start(&plan);
    assert!(matches!(refused, Err(Error::ForeignFilter { .. })), "{refused:?}");
    assert!(net.filters().contains("stranger") && !net.filters().contains("tg_"));
}

#[test]
fn rules_that_break_a_bound_change_nothing() {
    let net = Net::new();
    let plan = plan_with(&net, AttachMode::Tcx, &["/a"]);
    let mut dataplane = Dataplane::start(&plan).unwrap();
    let mut broken = plan_with(&net, AttachMode::Tcx, &["/a", "/b"]);
    broken.config.services[0].requests.as_mut().unwrap().response_body = "x".repeat(524);
    let error = dataplane.apply(&broken).unwrap_err().to_string();
    assert!(error.contains("services.shop.requests.response_body: found 524 bytes"), "{error}");
    assert_eq!(dataplane.rule_counts().unwrap().len(), 1);
    assert_eq!(dataplane.hooks()[0].requests, Some(Hook::Tcx));
}
