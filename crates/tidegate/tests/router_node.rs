// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A flash crowd at a Service of a Kubernetes node. Both directions of it are seen at the uplink, by the address before
//! DNAT, and a limit there keeps its pods at their work. The daemon has the configuration and the capabilities of
//! packaging/kubernetes/node.yaml (needs root).
//!
//! ```text
//!  clients 192.0.2.254 ──┐                             ┌ cni0 10.244.1.1 ┬ 10.244.1.2  web, 25 requests/s
//!  health checks         ├ v1 ── eth0 192.0.2.1, ──────┤                 ├ 10.244.1.3  web, 25 requests/s
//!  a pod elsewhere       │       the node, with a      │                 └ 10.244.1.4  shop, as many as come
//!  a server outside ─────┘       daemon and DNAT       └ docker0 172.17.0.1 ─ 172.17.0.2, as many as come
//! ```

#![allow(clippy::unwrap_used, reason = "a test may")]

mod common;

use common::flash::{Runs, Scene, all_pass_from};
use common::space::Space;
use common::world::World;
use common::{ip, run, wait_for};
use std::collections::BTreeSet;
use std::process::{Child, Command, Stdio};
use tidegate_api::client::{Client, TIMEOUT_DEFAULT};
use tidegate_api::protocol::{Reply, Request};
use tidegate_model::router::{DestinationState, RouterState};
use tidegate_units::Nanos;

const NODE: &str = include_str!("../../../packaging/kubernetes/node.yaml");
const DOCKER_HOST: &str = include_str!("../../../packaging/docker.yaml");

/// What is published: NodePorts (of pods here, `externalTrafficPolicy` Cluster and Local; of a pod elsewhere), the address
/// of a load balancer, and a port of Docker's.
const WEB: &str = "192.0.2.1:30080";
const SHOP: &str = "192.0.2.1:30081";
const ELSEWHERE: &str = "192.0.2.1:30082";
const BALANCED: &str = "203.0.113.10:80";
const DOCKER: &str = "192.0.2.1:8080";
/// Inside the cluster.
const WEB_INSIDE: &str = "10.96.0.10:80";
const WEB_POD: &str = "10.244.1.2:8080";
/// What `services` of the file names: the daemon's own page, and where that is here.
const PAGE: &str = "127.0.0.1:7118";
const PAGE_HERE: &str = "127.0.0.1:9911";
/// Outside: one of `exempt.sources`, and a server.
const HEALTH_CHECKS: &str = "198.51.100.1";
const OUTSIDE: &str = "198.51.100.77:80";

/// As kube-proxy (mode nftables), a network plugin and Docker write it.
const RULES: &str = r#"
table ip kube-proxy {
    set nodeport-ips { type ipv4_addr; elements = { 192.0.2.1 }; }
    map service-ips {
        type ipv4_addr . inet_proto . inet_service : verdict
        elements = { 10.96.0.10 . tcp . 80 : goto service-web, 203.0.113.10 . tcp . 80 : goto external-shop }
    }
    map service-nodeports {
        type inet_proto . inet_service : verdict
        elements = {
            tcp . 30080 : goto external-web, tcp . 30081 : goto external-shop, tcp . 30082 : goto external-elsewhere
        }
    }
    chain mark-for-masquerade { meta mark set meta mark | 0x4000; }
    chain masquerading {
        meta mark & 0x4000 == 0 return
        meta mark set meta mark ^ 0x4000
        masquerade fully-random
    }
    chain endpoint-web-1 { ip saddr 10.244.1.2 jump mark-for-masquerade; meta l4proto tcp dnat to 10.244.1.2:8080; }
    chain endpoint-web-2 { ip saddr 10.244.1.3 jump mark-for-masquerade; meta l4proto tcp dnat to 10.244.1.3:8080; }
    chain endpoint-shop { ip saddr 10.244.1.4 jump mark-for-masquerade; meta l4proto tcp dnat to 10.244.1.4:8080; }
    chain endpoint-elsewhere { meta l4proto tcp dnat to 10.244.2.2:8080; }
    chain service-web {
        ip daddr 10.96.0.10 tcp dport 80 ip saddr != 10.244.0.0/16 jump mark-for-masquerade
        numgen random mod 2 vmap { 0 : goto endpoint-web-1, 1 : goto endpoint-web-2 }
    }
    chain external-web { jump mark-for-masquerade; goto service-web; }
    chain external-shop { goto endpoint-shop; }
    chain external-elsewhere { jump mark-for-masquerade; goto endpoint-elsewhere; }
    chain services {
        ip daddr . meta l4proto . th dport vmap @service-ips
        ip daddr @nodeport-ips meta l4proto . th dport vmap @service-nodeports
    }
    chain nat-prerouting { type nat hook prerouting priority dstnat; jump services; }
    chain nat-output { type nat hook output priority -100; jump services; }
    chain nat-postrouting { type nat hook postrouting priority srcnat; jump masquerading; }
}
table ip cni {
    chain nat-postrouting {
        type nat hook postrouting priority srcnat
        ip saddr 10.244.0.0/16 ip daddr != 10.244.0.0/16 masquerade
    }
}
table ip docker {
    chain published { iifname != "docker0" tcp dport 8080 dnat to 172.17.0.2:80; }
    chain nat-prerouting { type nat hook prerouting priority dstnat; fib daddr type local jump published; }
    chain nat-postrouting {
        type nat hook postrouting priority srcnat
        ip saddr 172.17.0.0/16 oifname != "docker0" masquerade
    }
}
"#;

/// The file of the ConfigMap, as it is.
fn as_packaged() -> String {
    let (_, rest) = NODE.split_once("\n  tidegate.yaml: |\n").unwrap();
    let (file, _) = rest.split_once("\n---\n").unwrap();
    file.lines().map(|line| format!("{}\n", line.strip_prefix("    ").unwrap())).collect()
}

/// The same with the address of the page of a daemon in a [`World`].
fn configuration() -> String {
    let file = as_packaged();
    assert_eq!(file.matches(PAGE).count(), 1);
    file.replace(PAGE, PAGE_HERE)
}

/// The same once its limits are enforced.
fn enforced() -> String {
    let (shadow, enforce) = ("limit: {mode: shadow}", "limit: {mode: enforce}");
    let file = configuration();
    assert_eq!(file.matches(shadow).count(), 1);
    file.replace(shadow, enforce)
}

/// The capabilities that the container gets, and no others.
fn capabilities() -> String {
    let (_, rest) = NODE.split_once(" add: [").unwrap();
    let (names, _) = rest.split_once(']').unwrap();
    names.split(", ").fold("-all".into(), |all, name| all + ",+" + &name.to_lowercase())
}

/// The daemon as in that container: with these capabilities, and without a look at the processes of the node.
fn contained(world: &World) -> Child {
    let outside = world.command(&configuration(), &[]);
    let mut arguments = outside.get_args();
    let log = std::fs::OpenOptions::new().append(true).create(true).open(world.file("log"));
    let mut command = Command::new(outside.get_program());
    command.arg(arguments.next().unwrap());
    command.args(["unshare", "--pid", "--fork", "--kill-child", "--mount-proc"]);
    command.args(["setpriv", "--no-new-privs", "--bounding-set", &capabilities()]);
    command.args(arguments).stdin(Stdio::null()).stdout(Stdio::null());
    command.stderr(log.unwrap()).spawn().unwrap()
}

/// The uplink, and all that is reached by it.
fn uplink(world: &World) -> Space {
    let (clients, node) = (Space::new(world, "c"), world.name());
    let name = &clients.0;
    ip(&format!("-n {node} link set v0 name eth0"));
    ip(&format!("-n {node} link set v1 netns {name}"));
    for (namespace, link, address) in [
        (node, "eth0", "192.0.2.1/24"),
        (name, "v1", "192.0.2.254/24"),
        (name, "lo", "198.51.100.1/32"),
        (name, "lo", "198.51.100.77/32"),
        (name, "lo", "10.244.2.2/32"),
    ] {
        ip(&format!("-n {namespace} address add {address} dev {link}"));
        ip(&format!("-n {namespace} link set {link} up"));
    }
    ip(&format!("-n {node} route add default via 192.0.2.254"));
    ip(&format!("-n {name} route add default via 192.0.2.1"));
    clients
}

/// A bridge of the node, and behind it a container for each of these addresses.
fn bridge(world: &World, (name, net): (&str, &str), hosts: &[u8]) -> Vec<Space> {
    let node = world.name();
    ip(&format!("-n {node} link add {name} type bridge"));
    ip(&format!("-n {node} address add {net}.1/24 dev {name}"));
    ip(&format!("-n {node} link set {name} up"));
    let container = |host: &u8| {
        let (port, space) = (format!("{name}p{host}"), Space::new(world, &format!("{name}{host}")));
        let inside = &space.0;
        ip(&format!("-n {node} link add {port} type veth peer name eth0 netns {inside}"));
        ip(&format!("-n {node} link set {port} master {name} up"));
        ip(&format!("-n {inside} address add {net}.{host}/24 dev eth0"));
        ip(&format!("-n {inside} link set eth0 up"));
        ip(&format!("-n {inside} route add default via {net}.1"));
        space
    };
    hosts.iter().map(container).collect()
}

/// The node with its servers, all of which are reached; no daemon yet.
fn scene(number: u32) -> Scene {
    let world = World::new(number);
    let clients = uplink(&world);
    let mut servers = bridge(&world, ("cni0", "10.244.1"), &[2, 3, 4]);
    servers.extend(bridge(&world, ("docker0", "172.17.0"), &[2]));
    let node = world.namespace();
    ip(&format!("netns exec {} sysctl -qw net.ipv4.ip_forward=1", world.name()));
    std::fs::write(world.file("nft"), RULES).unwrap();
    run("nsenter", &format!("--net={} nft -f {}", node.display(), world.file("nft").display()));
    let runs = [
        (servers[0].path(), WEB_POD, "1"),
        (servers[1].path(), "10.244.1.3:8080", "1"),
        (servers[2].path(), "10.244.1.4:8080", "64"),
        (servers[3].path(), "172.17.0.2:80", "64"),
        (clients.path(), "10.244.2.2:8080", "64"),
        (clients.path(), OUTSIDE, "64"),
    ];
    let runs = runs.map(|(namespace, at, workers)| Runs::server(&namespace, at, workers)).into();
    let scene = Scene { world, clients, servers, hot: WEB, runs };
    for at in [WEB, SHOP, ELSEWHERE, BALANCED, DOCKER] {
        wait_for(at, || scene.all_pass(at).then_some(()));
    }
    scene
}

/// Whether every SYN of forty of the node itself passes.
fn passes_from_node(scene: &Scene, at: &str) -> bool {
    all_pass_from(&scene.world.namespace(), None, at)
}

fn state(scene: &Scene) -> RouterState {
    let mut client = Client::connect(&scene.world.file("socket"), TIMEOUT_DEFAULT).unwrap();
    let Reply::Status { snapshot } = client.ask(&Request::Status {}).unwrap() else {
        panic!("no status");
    };
    snapshot.router.unwrap()
}

fn destination(scene: &Scene, at: &str) -> DestinationState {
    let all = state(scene).destinations;
    all.into_iter().find(|one| one.address == at).unwrap_or_else(|| panic!("{at} is not measured"))
}

/// Hooks are at the uplink while the servers are in containers: nobody says that they are at the wrong place.
fn is_at_the_right_place(scene: &Scene) {
    assert!(scene.world.get("/readyz").unwrap().contains(" 200 "));
    wait_for("no warning", || (!scene.world.status().contains("warning")).then_some(()));
    for told in [scene.world.check_running(), scene.world.log()] {
        for doubt in
            ["(warning)", "no hook", "nobody listens", "not ready", "is the port of", "past"]
        {
            assert!(!told.contains(doubt), "{doubt}: {told}");
        }
    }
}

/// Each by its address before DNAT, and nothing by that of a pod. What pods and the node connect to is none.
fn sees_what_is_published(scene: &Scene) {
    let known: BTreeSet<String> =
        state(scene).destinations.into_iter().map(|one| one.address).collect();
    let published = [WEB, SHOP, ELSEWHERE, BALANCED, DOCKER];
    assert_eq!(known, published.map(str::to_owned).into());
    let (least, most) = (Nanos::from_millis(40), Nanos::from_millis(300));
    for (at, completed) in [(WEB, 900), (SHOP, 300), (DOCKER, 300)] {
        let DestinationState { counts, last, .. } = destination(scene, at);
        assert!(counts.completed >= completed && counts.in_flight() < 20, "{at}: {counts:?}");
        let last = last.unwrap();
        let median = last.median.unwrap();
        assert!((least..most).contains(&median), "{at}: {median}");
        let by_size: f64 = last.sizes.iter().map(|size| size.completed).sum();
        assert!((by_size - last.completed).abs() <= 0.05 * last.completed + 1.0, "{at}: {last:?}");
        assert!(last.sizes.iter().any(|size| (least..most).contains(&size.median)), "{last:?}");
    }
}

/// While the crowd is refused: whoever else comes by the uplink, and all that does not.
fn nobody_else_notices(scene: &Scene) {
    for at in [SHOP, DOCKER, BALANCED, ELSEWHERE] {
        assert!(scene.all_pass(at), "{at}");
    }
    for at in [SHOP, DOCKER] {
        let good = scene.goodput(at);
        assert!(good > 3.0, "{at}: {good} of 10 a second");
    }
    let (clients, shop) = (scene.clients.path(), scene.servers[2].path());
    assert!(all_pass_from(&clients, Some(HEALTH_CHECKS), WEB));
    for at in [WEB, WEB_POD, OUTSIDE] {
        assert!(all_pass_from(&shop, None, at), "from a pod to {at}");
    }
    assert!(all_pass_from(&scene.servers[0].path(), None, OUTSIDE), "from a pod of the crowd's");
    for at in [WEB_INSIDE, WEB_POD] {
        assert!(passes_from_node(scene, at), "from the node to {at}");
    }
    for at in [SHOP, DOCKER, BALANCED, ELSEWHERE] {
        scene.assert_spared(at);
    }
}

#[test]
fn a_flash_crowd_at_a_service_of_a_node_is_told_and_limited_at_its_uplink() {
    let mut scene = scene(32);
    // Whether the user is there is no matter of the place.
    let (docker, _) = DOCKER_HOST.split_once("daemon:").unwrap();
    for file in [&as_packaged(), docker] {
        let told = scene.world.check(file);
        assert!(told.contains("is valid") && !told.contains("warning"), "{told}");
    }
    let daemon = contained(&scene.world);
    scene.world.adopt(daemon);
    scene.world.ready();
    for (at, rate) in [(WEB, "20"), (SHOP, "10"), (DOCKER, "10")] {
        scene.usual(at, rate);
    }
    assert!(scene.all_pass(ELSEWHERE) && scene.all_pass(BALANCED));
    assert!(passes_from_node(&scene, PAGE_HERE));
    scene.learn();
    is_at_the_right_place(&scene);
    sees_what_is_published(&scene);

    let crowd = scene.come(WEB, "100");
    scene.told("192.0.2.1:30080: flash crowd began: ");
    // The others have its address, so they are no neighbours.
    scene.shows("its server or the link: no other server tells which");
    scene.told("192.0.2.1:30080: new connections would be limited to ");
    wait_for("a collapse", || (scene.goodput(WEB) < 10.0).then_some(()));
    let waiting = || destination(&scene, WEB).counts.in_flight() > 50;
    wait_for("in flight", || waiting().then_some(()));
    wait_for("would refuse", || (scene.limited(WEB, "would-refuse") > 0.0).then_some(()));
    assert_eq!(scene.limited(WEB, "refused"), 0.0);

    scene.reload(&enforced());
    wait_for("pods at their work", || (scene.goodput(WEB) > 25.0).then_some(()));
    wait_for("refusals", || (scene.limited(WEB, "refused") > 100.0).then_some(()));
    wait_for("who is refused", || scene.refuses().then_some(()));
    nobody_else_notices(&scene);
    assert!(scene.refuses(), "still");

    drop(crowd);
    scene.told("192.0.2.1:30080: flash crowd ended after ");
    wait_for("no limit", || scene.all_pass(WEB).then_some(()));
    let told = scene.world.history();
    for at in [SHOP, DOCKER] {
        assert!(!told.contains(&format!("{at}: ")), "{told}");
    }
}

/// What a crash leaves behind needs no other capability.
#[test]
fn the_daemon_of_a_node_starts_again_after_a_crash() {
    let mut world = World::new(33);
    let _clients = uplink(&world);
    for _start in 0..2 {
        let daemon = contained(&world);
        world.adopt(daemon);
        // The one before may hold its locks for a moment after its page is gone: a supervisor tries again.
        wait_for("ready", || {
            if world.daemon().try_wait().unwrap().is_some() {
                let daemon = contained(&world);
                world.adopt(daemon);
            }
            world.get("/readyz").filter(|page| page.contains(" 200 "))
        });
        wait_for("no warning", || (!world.status().contains("warning")).then_some(()));
        let daemon = world.daemon();
        daemon.kill().unwrap();
        daemon.wait().unwrap();
        wait_for("it has ended", || world.get("/healthz").is_none().then_some(()));
    }
}
