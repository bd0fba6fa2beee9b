// SPDX-License-Identifier: Apache-2.0 OR MIT

use super::*;
use crate::controllers;
use std::net::TcpListener;
use std::time::Duration;
use tidegate_config::{Registry, parse};

fn config(services: &str) -> Config {
    whole(&format!("interfaces: [{{name: w0}}]\nservices: {{{services}}}\n"))
}

fn whole(text: &str) -> Config {
    let registry = Registry::new(["fresh_first"], controllers::NAMES);
    parse(text, &registry).unwrap_or_else(|error| panic!("{error}"))
}

/// Ports at which nobody listens on any machine.
const SHOP: &str = "shop: {mode: enforce, listen: ['*:1']}";
const API: &str = "api: {mode: enforce, listen: ['*:2']}";

fn container() -> Elsewhere {
    Elsewhere {
        pid: 1,
        name: "web".into(),
        namespace: "pid:1".into(),
        address: [192, 0, 2, 7].into(),
        port: 80,
        interfaces: Vec::new(),
    }
}

/// After a start at which all of them were away.
fn away(config: &Config) -> Away {
    let uplinks = ["v0", "w0"].map(str::to_owned).to_vec();
    let there = vec![container()];
    let found = Found { there, uplinks, remedy: "web listens".into(), ..Found::default() };
    let mut away = Away { found: Arc::new(found), ..Away::default() };
    away.follow(config);
    away.services.iter_mut().for_each(|service| service.away = true);
    away
}

/// What is said in a second, with so many SYNs of each service.
fn doubt(away: &mut Away, second: u64, offered: &[Option<u64>]) -> String {
    doubt_beside(away, second, offered, (0, false))
}

fn doubt_beside(
    away: &mut Away,
    second: u64,
    offered: &[Option<u64>],
    (exempt, released): (u64, bool),
) -> String {
    let offered = |service: usize| offered[service];
    // Threads that look are begun only where a test waits for them.
    away.looked = away.looked.map(|_| Nanos::from_secs(second));
    away.look(Nanos::from_secs(second), &Counted { offered: &offered, exempt, released });
    away.doubt().unwrap_or_default()
}

/// Of each service by itself: that others are reached says nothing of its way.
#[test]
fn a_service_is_told_until_its_first_syn() {
    let mut away = away(&config(&format!("{SHOP}, {API}")));
    let mut doubt = |second, offered: [Option<u64>; 2]| doubt(&mut away, second, &offered);
    assert_eq!(doubt(10, [Some(0), Some(0)]), "");
    assert_eq!(doubt(12, [Some(0), Some(0)]), "");
    let told = doubt(13, [Some(0), Some(0)]);
    for says in [
        "a SYN of shop, api yet, and no server",
        "web listens. Hooks are on w0; other uplinks of this host: v0",
    ] {
        assert!(told.contains(says), "{says}: {told}");
    }
    let told = doubt(14, [None, None]);
    assert!(told.contains("a SYN of shop, api yet"), "what is not known changes nothing: {told}");
    let told = doubt(15, [Some(1), Some(0)]);
    assert!(told.contains("a SYN of api yet"), "{told}");
    let told = doubt(16, [Some(0), Some(0)]);
    assert!(told.contains("a SYN of api yet"), "a total that begins anew: {told}");
    assert_eq!(doubt(17, [Some(0), Some(1)]), "");
    assert_eq!(doubt(3600, [Some(0), Some(0)]), "");
}

/// That is before privileges are given up, and a thread would keep them.
#[test]
fn at_the_first_look_no_thread_is_begun() {
    let mut away = away(&config(SHOP));
    let counted = Counted { offered: &|_| Some(0), exempt: 0, released: false };
    away.look(Nanos::from_secs(1000), &counted);
    assert!(!away.aside.is_busy());
    away.look(Nanos::from_secs(1004), &counted);
    assert!(!away.aside.is_busy());
    away.look(Nanos::from_secs(1005), &counted);
    assert!(away.aside.is_busy());
}

/// Then no SYN is counted.
#[test]
fn while_everything_is_released_no_time_passes() {
    let mut away = away(&config(SHOP));
    let mut doubt = |second, released| doubt_beside(&mut away, second, &[Some(0)], (0, released));
    assert_eq!(doubt(10, true), "");
    assert_eq!(doubt(20, true), "");
    assert_eq!(doubt(21, false), "");
    assert!(!doubt(24, false).is_empty());
    assert_eq!(doubt(25, true), "");
}

/// A balancer whose checks are exempt sends no client to a host that is not ready. An exempt port (ssh) says nothing.
#[test]
fn exempt_syns_make_it_a_warning_only() {
    for (exempt, grave) in [("", true), ("exempt: {sources: [192.0.2.0/24]}\n", false)] {
        let config = whole(&format!("interfaces: [{{name: w0}}]\nservices: {{{SHOP}}}\n{exempt}"));
        let mut away = away(&config);
        let mut told = |second, exempt| {
            !doubt_beside(&mut away, second, &[Some(0)], (exempt, false)).is_empty()
        };
        assert!(!told(10, 7));
        assert!(told(13, 7), "those of before");
        assert!(away.is_grave());
        assert!(!doubt_beside(&mut away, 14, &[Some(0)], (8, false)).is_empty());
        assert_eq!(away.is_grave(), grave, "{exempt}");
    }
}

/// Waits for what is looked at aside.
fn answered(away: &mut Away, mut second: u64, services: usize) -> String {
    let offered = vec![Some(0); services];
    second += 5;
    away.looked = away.looked.map(|_| Nanos::ZERO);
    let look = |away: &mut Away, second| {
        let offered = |service: usize| offered[service];
        let counted = Counted { offered: &offered, exempt: 0, released: false };
        away.look(Nanos::from_secs(second), &counted);
    };
    look(away, second);
    for _ in 0..10_000 {
        if !away.aside.is_busy() {
            return away.doubt().unwrap_or_default();
        }
        std::thread::sleep(Duration::from_millis(1));
        look(away, second);
    }
    panic!("no answer within 10 s")
}

/// Whatever is made of a file: where a SYN was seen it was, and where none was there was none.
#[test]
fn a_reload_forgets_no_doubt_and_makes_none() {
    let of = |services: &[&str]| config(&services.join(", "));
    let renamed = "store: {mode: enforce, listen: ['*:2']}";
    let more = "shop: {mode: enforce, listen: ['*:1', '*:3']}";
    let mut away = away(&of(&[SHOP, API]));
    assert_eq!(doubt(&mut away, 10, &[Some(1), Some(0)]), "");
    assert!(doubt(&mut away, 13, &[Some(1), Some(0)]).contains("of api yet"));
    away.follow(&of(&[API, SHOP]));
    assert!(doubt(&mut away, 14, &[Some(0), Some(0)]).contains("of api yet"), "at another place");
    away.follow(&of(&[renamed, &SHOP.replace("shop", "market")]));
    assert!(doubt(&mut away, 15, &[Some(0), Some(0)]).contains("of store yet"), "other names");
    away.follow(&of(&[API, more]));
    assert!(answered(&mut away, 20, 2).contains("of api yet"));
    let told = doubt(&mut away, 29, &[Some(0), Some(0)]);
    assert!(told.contains("of api, shop yet"), "a port that is new: {told}");
    assert!(doubt(&mut away, 30, &[Some(0), Some(1)]).contains("of api yet"));
    away.follow(&of(&[SHOP]));
    assert_eq!(answered(&mut away, 35, 1), "", "one of its ports");
    away.follow(&of(&[API, SHOP]));
    assert_eq!(doubt(&mut away, 41, &[Some(0), Some(0)]), "", "not looked at yet");
    answered(&mut away, 41, 2);
    assert!(doubt(&mut away, 54, &[Some(0), Some(0)]).contains("of api yet"), "away and back");
}

/// Else a balancer that asks for nothing but /readyz would never send the first client.
#[test]
fn after_ten_minutes_it_is_a_warning_only() {
    let mut away = away(&config(SHOP));
    doubt(&mut away, 10, &[Some(0)]);
    for (second, grave) in [(13, true), (609, true), (610, false), (9999, false)] {
        assert!(!doubt(&mut away, second, &[Some(0)]).is_empty());
        assert_eq!(away.is_grave(), grave, "{second}");
    }
}

/// As it is with a server that is started later, unless it was known as a proxy while that could be seen.
#[test]
fn once_somebody_listens_here_it_is_over() {
    let server = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = server.local_addr().unwrap().port();
    let mut away = away(&config(&format!("shop: {{mode: enforce, listen: ['127.0.0.1:{port}']}}")));
    doubt(&mut away, 10, &[Some(0)]);
    assert!(!doubt(&mut away, 13, &[Some(0)]).is_empty());
    let mut listed = Vec::new();
    SockDiag::open(None).unwrap().list(&mut listed).unwrap();
    let inode = listed.iter().find(|listener| listener.port == port).unwrap().inode;
    Arc::get_mut(&mut away.found).unwrap().proxies.insert(inode);
    assert!(!answered(&mut away, 13, 1).is_empty(), "a proxy");
    // The thread that looked has gone by then, or goes.
    let mut tries = 0..10_000;
    while Arc::strong_count(&away.found) > 1 {
        assert!(tries.next().is_some(), "it does not go within 10 s");
        std::thread::sleep(Duration::from_millis(1));
    }
    Arc::get_mut(&mut away.found).unwrap().proxies.clear();
    assert_eq!(answered(&mut away, 20, 1), "");
    drop(server);
    assert_eq!(answered(&mut away, 60, 1), "", "a server that ends is told in another way");
}

/// Root's show what they hold to nobody without privileges: what was found at the start holds.
#[test]
fn a_proxy_that_was_there_at_the_start_is_no_server() {
    let listens = ["*:8080".parse().unwrap()];
    let listener = |inode| Listener {
        address: [0, 0, 0, 0].into(),
        port: 8080,
        v6_only: false,
        queue: 0,
        limit: 128,
        inode,
        cgroup_id: None,
    };
    assert!(!is_served(&listens, &[listener(11)], &[11].into()));
    assert!(is_served(&listens, &[listener(11), listener(12)], &[11].into()));
    assert!(!is_served(&listens, &[], &[].into()));
}

/// Whose SYNs need not pass the hooks here.
#[test]
fn only_who_should_be_served_here_is_a_candidate() {
    let names =
        |config: &Config| candidates(config).into_iter().map(|of| of.name).collect::<Vec<_>>();
    let of = |service: &str| names(&config(&format!("{SHOP}, {service}")));
    assert_eq!(of(API), ["shop", "api"]);
    assert_eq!(of("api: {mode: enforce, listen: ['*:2'], namespace: 'pid:1'}"), ["shop"]);
    assert_eq!(of("page: {mode: shadow, listen: ['127.0.0.1:7118']}"), ["shop"]);
    let inside = "interfaces: [{name: w0}, {name: e0, namespace: 'pid:1'}]";
    assert_eq!(names(&whole(&format!("{inside}\nservices: {{{SHOP}}}\n"))), [""; 0]);
    let routed = format!(
        "interfaces: [{{name: w0}}]\nservices: {{{SHOP}, {API}}}\ngateways: {{edge: {{adapter: envoy, listen: \
         '127.0.0.1:9000', routes: [{{service: shop}}]}}}}\n"
    );
    assert_eq!(names(&whole(&routed)), ["api"]);
}

#[test]
fn what_leads_elsewhere_is_no_reason_to_doubt() {
    for (listen, may) in [
        ("*:8080", true),
        ("0.0.0.0:8080", true),
        ("127.0.0.1:8080", true),
        ("192.0.2.7:80", true),
        ("192.0.2.8:80", false),
    ] {
        assert_eq!(may_lead_to(&[listen.parse().unwrap()], &[container()]), may, "{listen}");
    }
}
