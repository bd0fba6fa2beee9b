// SPDX-License-Identifier: Apache-2.0 OR MIT
//! VLAN and IPVS, which not every kernel has: only `cargo xtask guest` builds and runs this, on one that
//! does (feature `guest`; needs root). A SYN is counted once and refused once, wherever the hooks are.
//!
//! ```text
//!  VLAN 7 on top of the pair                       IPVS: the address of the service is 10.83.0.1:80
//!  client               server                     client             director                real server
//!  v1 ───────────────── v0                         v1 10.83.0.2 ───── v0 10.83.0.1
//!  v1.7 10.85.0.2       v0.7 10.85.0.1:80                             p0 10.84.0.1 ────────── e0 10.84.0.2:80
//!                                                  w1 10.86.0.2 ─────────── DR: replies ───── w0 10.86.0.1
//! ```
#![allow(clippy::unwrap_used, reason = "helpers of tests, too")]

mod common;

use common::space::{Space, client};
use common::world::World;
use common::{ip, run, wait_for};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;
use tidegate_sense::in_namespace;

/// Connections that are made one after the other, far more than what is admitted.
const CONNECTIONS: usize = 40;
/// What is admitted: 1/s is the least that may be set.
const CONTROL: &str = "policy: {action: reject}, control: {name: fixed, rate: 1, burst: 5}";

/// A server that takes all; it ends with the test's process.
fn serve(namespace: &Path, port: u16) {
    let listener = in_namespace(Some(namespace), || TcpListener::bind(("0.0.0.0", port))).unwrap();
    std::thread::spawn(move || listener.incoming().collect::<Vec<_>>());
}

/// How a SYN is refused: by a RST that the client gets, or by silence, so that the client must give up before
/// it sends another one.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Refusal {
    Reset,
    Silence,
}

/// One connection after the other; how many were taken, and how many refused.
fn connect(client: &Space, to: &str, count: usize, refusal: Refusal) -> (usize, usize) {
    let to: SocketAddr = to.parse().unwrap();
    let (patience, kind) = match refusal {
        Refusal::Reset => (Duration::from_secs(10), std::io::ErrorKind::ConnectionRefused),
        Refusal::Silence => (Duration::from_millis(250), std::io::ErrorKind::TimedOut),
    };
    let mut taken = (0, 0);
    for _ in 0..count {
        match in_namespace(Some(&client.path()), || TcpStream::connect_timeout(&to, patience)) {
            Ok(_) => taken.0 += 1,
            Err(error) => {
                assert_eq!(error.kind(), kind, "{error}");
                taken.1 += 1;
            }
        }
    }
    taken
}

fn log(world: &World) -> Stdio {
    std::fs::OpenOptions::new().append(true).create(true).open(world.file("log")).unwrap().into()
}

/// Runs the daemon; each connection is one SYN, and most of them are refused.
fn each_is_counted_and_refused_once(
    world: &mut World,
    case: &str,
    intent: &str,
    (client, to, refusal): (&Space, &str, Refusal),
) {
    world.run_intent(intent, &[], log(world));
    world.ready();
    let (taken, refused) = connect(client, to, CONNECTIONS, refusal);
    assert_eq!(taken + refused, CONNECTIONS, "{case}");
    assert!(taken > 0 && refused > CONNECTIONS / 2, "{case}: {taken} taken, {refused} refused");
    let all = CONNECTIONS as f64;
    wait_for(case, || (world.metric("service_offered_syns_total") >= all).then_some(()));
    let offered = world.metric("service_offered_syns_total");
    assert!((offered - all).abs() < 0.5, "{case}: {offered} SYNs of {all} connections");
    if refusal == Refusal::Reset {
        // On a busy machine the lease may not have been renewed for a while.
        world.ready();
    }
    let mut daemon = world.replace_daemon();
    daemon.kill().unwrap();
    daemon.wait().unwrap();
    let pins = world.file("bpf/tidegate").display().to_string();
    let detach = Command::new("nsenter")
        .arg(format!("--net={}", world.namespace().display()))
        .args([env!("CARGO_BIN_EXE_tidegate"), "detach", "--pins", &pins])
        .output()
        .unwrap();
    assert!(detach.status.success(), "{case}: {}", String::from_utf8_lossy(&detach.stderr));
}

/// A client on a VLAN above v0, and a server that it reaches at 10.85.0.1:80.
fn vlan_client(world: &World) -> Space {
    let client = client(world);
    for (namespace, link, address) in
        [(world.name(), "v0", "10.85.0.1"), (&client.0, "v1", "10.85.0.2")]
    {
        ip(&format!("-n {namespace} link add link {link} name {link}.7 type vlan id 7"));
        ip(&format!("-n {namespace} address add {address}/24 dev {link}.7"));
        ip(&format!("-n {namespace} link set {link}.7 up"));
    }
    serve(&world.namespace(), 80);
    wait_for("the server", || {
        (connect(&client, "10.85.0.1:80", 1, Refusal::Reset).0 == 1).then_some(())
    });
    client
}

/// The hook on the card and on the VLAN above it, with the tag beside the frame (offloaded) and in it.
#[test]
fn a_vlan_is_evaluated_once_below_and_above() {
    let mut world = World::new(30);
    let client = vlan_client(&world);
    for tag in ["on", "off"] {
        run("nsenter", &format!("--net={} ethtool -K v1 txvlan {tag}", client.path().display()));
        for hooks in
            ["{name: v0, attach: tcx}", "{name: v0.7}", "{name: v0, attach: tcx}, {name: v0.7}"]
        {
            let intent = format!(
                "interfaces: [{hooks}]\nservices:\n  shop: {{mode: enforce, listen: ['*:80'], {CONTROL}}}\n"
            );
            if hooks.contains("}, {") {
                let told = world.check(&intent);
                assert!(told.contains("v0.7 is on top of v0"), "{told}");
            }
            let case = format!("{hooks}, tag offloaded: {tag}");
            each_is_counted_and_refused_once(
                &mut world,
                &case,
                &intent,
                (&client, "10.85.0.1:80", Refusal::Reset),
            );
        }
    }
}

/// XDP sees the frame as it came: without the tag where that was offloaded.
#[test]
fn a_vlan_is_evaluated_once_by_xdp() {
    let mut world = World::new(31);
    let client = vlan_client(&world);
    // Otherwise a RST from native XDP is lost on veth.
    run("nsenter", &format!("--net={} ethtool -K v1 gro on", client.path().display()));
    run("nsenter", &format!("--net={} ethtool -K v1 txvlan off", client.path().display()));
    let intent = format!(
        "interfaces: [{{name: v0, attach: xdp}}]\nservices:\n  shop: {{mode: enforce, listen: ['*:80'], \
         {CONTROL}}}\n"
    );
    each_is_counted_and_refused_once(
        &mut world,
        "xdp",
        &intent,
        (&client, "10.85.0.1:80", Refusal::Reset),
    );
}

/// A real server behind the director, with a way of its own to the client.
fn real_server(world: &World, client: &Space) -> Space {
    let server = Space::new(world, "r");
    let (name, host, far) = (&server.0, world.name(), &client.0);
    ip(&format!("-n {host} link add p0 type veth peer name e0 netns {name}"));
    ip(&format!("-n {name} link add w0 type veth peer name w1 netns {far}"));
    for (namespace, link, address) in [
        (host, "p0", "10.84.0.1"),
        (name, "e0", "10.84.0.2"),
        (name, "w0", "10.86.0.1"),
        (far, "w1", "10.86.0.2"),
    ] {
        ip(&format!("-n {namespace} address add {address}/24 dev {link}"));
        ip(&format!("-n {namespace} link set {link} up"));
    }
    let set = |space: &Path, name: &str, value: &str| {
        in_namespace(Some(space), || std::fs::write(format!("/proc/sys/net/ipv4/{name}"), value))
            .unwrap();
    };
    set(&world.namespace(), "ip_forward", "1");
    for space in [server.path(), client.path()] {
        set(&space, "conf/all/rp_filter", "0");
        set(&space, "conf/default/rp_filter", "0");
        for link in ["e0", "w0", "w1"] {
            let path = format!("/proc/sys/net/ipv4/conf/{link}/rp_filter");
            let _ = in_namespace(Some(&space), || std::fs::write(&path, "0"));
        }
    }
    serve(&server.path(), 80);
    server
}

/// The director's table of one service: `-m` (NAT) or `-g` (direct routing).
fn forward(world: &World, how: &str) {
    let ipvs = |arguments: &str| {
        run("nsenter", &format!("--net={} ipvsadm {arguments}", world.namespace().display()));
    };
    ipvs("-C");
    ipvs("-A -t 10.83.0.1:80 -s rr");
    ipvs(&format!("-a -t 10.83.0.1:80 -r 10.84.0.2:80 {how}"));
}

#[test]
fn behind_ipvs_the_director_and_the_real_server_are_protected() {
    let mut world = World::new(32);
    let client = client(&world);
    let server = real_server(&world, &client);
    let inside = server.path().display().to_string();
    for how in ["-m", "-g"] {
        forward(&world, how);
        let name = &server.0;
        if how == "-m" {
            ip(&format!("-n {name} route replace default via 10.84.0.1"));
        } else {
            // The server answers for the service's address, and its replies go past the director.
            ip(&format!("-n {name} address add 10.83.0.1/32 dev lo"));
            ip(&format!("-n {name} route replace 10.83.0.2/32 via 10.86.0.2"));
        }
        wait_for(how, || {
            (connect(&client, "10.83.0.1:80", 1, Refusal::Reset).0 == 1).then_some(())
        });
        for (hooks, listen) in [
            ("{name: v0}".to_owned(), "10.83.0.1:80"),
            (format!("{{name: e0, namespace: {inside}}}"), "*:80"),
        ] {
            let namespace =
                if listen == "*:80" { format!("namespace: {inside}, ") } else { String::new() };
            let intent = format!(
                "interfaces: [{hooks}]\nservices:\n  shop: {{mode: enforce, listen: ['{listen}'], {namespace}{CONTROL}}}\n"
            );
            // A RST of the hook goes back to who sent the SYN. By direct routing that is the director, which takes
            // no packets from its own address.
            let lost = how == "-g" && listen == "*:80";
            let refusal = if lost { Refusal::Silence } else { Refusal::Reset };
            let case = format!("ipvs {how}, {hooks}");
            each_is_counted_and_refused_once(
                &mut world,
                &case,
                &intent,
                (&client, "10.83.0.1:80", refusal),
            );
        }
    }
}
