// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A daemon whose interface is made anew (needs root): nothing is protected any more, and whoever
//! asks is told so. A router's measurement comes back with it.
#![allow(clippy::unwrap_used, reason = "helpers of tests, too")]

mod common;

use common::gate::status;
use common::world::World;
use common::{ip, wait_for};
use std::fs::{File, read_to_string, write};
use std::io::{self, Read, Write};
use std::net::{TcpListener, TcpStream};
use tidegate_model::router::RouterState;
use tidegate_sense::in_namespace;
use tidegate_units::{Clock, DayClock};

/// What is promised, in seconds.
const TOLD_MAX_S: f64 = 5.0;

#[test]
fn a_daemon_without_its_hooks_is_not_ready_and_refuses_to_call_a_reload_done() {
    let mut world = World::new(0);
    world.run(&[]);
    let config = world.file("config");
    let reload = || world.tidegate(&["reload", "-c", config.to_str().unwrap()]);
    assert!(reload().status.success());
    let attached = || {
        let page = world.get("/metrics").unwrap();
        let line = page.lines().find(|line| line.starts_with("tidegate_dataplane_attached{"));
        line.unwrap().to_owned()
    };
    assert!(attached().ends_with("layer=\"tcx\"} 1"), "{}", attached());

    let plug_another = || ip(&format!("-n {} link add v0 type bridge", world.name()));
    let begin = DayClock.now();
    ip(&format!("-n {} link del v0", world.name()));
    plug_another();
    let page = wait_for("not ready", || world.get("/readyz").filter(|page| page.contains(" 503 ")));
    assert!(page.contains("interface v0 is not attached"), "{page}");
    assert!(attached().ends_with(" 0"), "{}", attached());
    let took = world.seconds_since(begin, "interface v0: hooks are lost");
    assert!(took <= TOLD_MAX_S, "{took} s: {}", world.log());
    // the look may have come while there was no interface at all
    wait_for("the new one", || world.status().contains("was made anew").then_some(()));
    let refused = reload();
    let text = String::from_utf8_lossy(&refused.stderr).into_owned();
    assert!(!refused.status.success() && text.contains("start it anew"), "{text}");
    let status = world.status();
    let warning =
        "hooks: interface v0: tcx (in) is not there any more: the interface was made anew";
    assert!(status.contains(warning) && status.contains("gave up its privileges"), "{status}");
    let check = world.check_running();
    for says in ["interface v0 is not attached", warning, "gave up its privileges"] {
        assert!(check.contains(says), "{says}: {check}");
    }

    // The programs that are loaded fit an interface of the kind that it was.
    ip(&format!("-n {} link del v0", world.name()));
    world.plug();
    world.ready();
    wait_for("no warning", || (!world.status().contains("hooks: ")).then_some(()));
    let log = world.log();
    for line in ["interface v0: hooks are lost", "interface v0: hooks are attached again"] {
        assert!(log.contains(line), "{log}");
        assert!(world.history().contains(line), "{}", world.history());
    }
}

#[test]
fn a_daemon_that_keeps_its_privileges_puts_its_hooks_on_again() {
    let mut world = World::new(1);
    world.run(&["--keep-privileges"]);
    let ready = |word: &'static str| {
        wait_for(word, || world.get("/readyz").filter(|page| page.contains(word)));
    };
    ip(&format!("-n {} link del v0", world.name()));
    ready(" 503 ");
    assert!(world.status().contains("the interface is gone"), "{}", world.status());
    world.plug();
    ready(" 200 ");
    wait_for("no warning", || (!world.status().contains("hooks: ")).then_some(()));
}

/// A router of whose interfaces one has traffic, and the other is made anew.
const ROUTER: &str = "interfaces: [{name: lo, attach: tcx}, {name: v0}]\n\
    services:\n  shop: {mode: shadow, listen: [\"*:8000\"]}\n";
const SECTION: &str = "router: {destinations: [\"127.0.0.0/24:8000\"], connections: 1024}\n";

/// One connection with one exchange, of a byte in each direction.
fn exchange(server: &TcpListener) -> io::Result<()> {
    let mut client = TcpStream::connect(server.local_addr()?)?;
    let (mut serving, _) = server.accept()?;
    for stream in [&mut client, &mut serving] {
        stream.write_all(b"x")?;
    }
    serving.read_exact(&mut [0])?;
    client.read_exact(&mut [0])
}

#[test]
fn a_router_is_measured_until_a_reload_without_the_section() {
    let mut world = World::new(2);
    let intent = format!("{ROUTER}{SECTION}");
    world.run_intent(&intent, &[], File::create(world.file("log")).unwrap().into());
    world.ready();
    let server = in_namespace(Some(&world.namespace()), || TcpListener::bind("127.0.0.1:8000"));
    let server = server.unwrap();
    let router = || -> Option<RouterState> { status(&world.file("socket"))?.router };
    let measured = wait_for("figures of an interval", || {
        in_namespace(Some(&world.namespace()), || exchange(&server)).unwrap();
        router().filter(|r| r.destinations.first().is_some_and(|d| d.last.is_some()))
    });
    assert_eq!((&*measured.problem, measured.known), ("", 1));
    let destination = &measured.destinations[0];
    let (counts, last) = (destination.counts, destination.last.as_ref().unwrap());
    assert_eq!(destination.address, "127.0.0.1:8000");
    assert!(last.completed > 0.0 && last.median.is_some(), "{last:?}");
    assert!(counts.completed >= 10 && counts.admitted >= counts.completed, "{counts:?}");
    // A byte each; the last one may have been under way.
    assert!(counts.begun.abs_diff(counts.sent_bytes) <= 1 && counts.again_bytes == 0, "{counts:?}");
    assert!(world.status().contains("127.0.0.1:8000"), "{}", world.status());
    assert!(world.get("/metrics").unwrap().contains("tidegate_router_exchanges_total{"));

    ip(&format!("-n {} link del v0", world.name()));
    wait_for("it is told", || router().filter(|r| r.problem.contains("interface v0")));
    let begin = DayClock.now();
    world.plug();
    wait_for("it measures again", || router().filter(|r| r.problem.is_empty()));
    let took = world.seconds_since(begin, "interface v0: hooks are attached again");
    assert!(took <= TOLD_MAX_S, "{took} s: {}", world.log());

    let config = world.file("config");
    let text = read_to_string(&config).unwrap();
    let reload = |text: String| {
        write(&config, text).unwrap();
        let output = world.tidegate(&["reload", "-c", config.to_str().unwrap()]);
        String::from_utf8(output.stderr).unwrap()
    };
    let refused = reload(text.replace("1024", "2048"));
    assert!(refused.contains("by a restart only"), "{refused}");
    assert_eq!(reload(text.replace(SECTION, "")), "");
    wait_for("nothing is measured", || router().is_none().then_some(()));
    let refused = reload(text);
    assert!(refused.contains("by a restart only"), "{refused}");
}
