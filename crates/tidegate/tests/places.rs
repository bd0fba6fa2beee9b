// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Where servers run: in containers behind a bridge with DNAT and a userland proxy, on macvlan, on links
//! that change. Each service is protected, or everybody is told that it is not, and where to attach
//! (needs root).
//!
//! ```text
//!  client             the daemon's namespace                              container
//!  v1 10.83.0.2 ───── v0 10.83.0.1:8080 ─ DNAT ─ b0 10.84.0.1 ─ p0 ────── e0 10.84.0.2:80
//!                     (a userland proxy listens there, too)
//! ```
#![allow(clippy::unwrap_used, reason = "helpers of tests, too")]

mod common;

use common::cgroup::Cgroup;
use common::space::{Space, client};
use common::world::World;
use common::{ip, run, wait_for};
use std::net::{SocketAddr, TcpStream};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::Duration;
use tidegate_sense::in_namespace;
use tidegate_units::{Clock, DayClock};

/// Connections that are made at once, far more than what is admitted.
const CONNECTIONS: usize = 40;

/// What is promised, in seconds.
const TOLD_MAX_S: f64 = 5.0;

/// Listens with the given address, port and backlog, and takes every connection; a container's proxy by its
/// name, where it has the options of one.
const SERVER: &str = r"
import socket, sys
if '-container-ip' in sys.argv: open('/proc/self/comm', 'w').write('docker-proxy')
s = socket.create_server((sys.argv[1], int(sys.argv[2])), backlog=int(sys.argv[3]))
held = []
while True: held.append(s.accept()[0])
";

/// Ends with drop.
struct Process(Child);

impl Process {
    fn python(namespace: &Path, program: &str, arguments: &[&str]) -> Self {
        let mut command = Command::new("nsenter");
        command.arg(format!("--net={}", namespace.display())).args(["python3", "-c", program]);
        Self(command.args(arguments).stdin(Stdio::null()).spawn().unwrap())
    }

    fn pid(&self) -> u32 {
        self.0.id()
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// One connection after the other; how many were taken.
fn connect(client: &Space, to: &str) -> usize {
    connect_within(client, to, Duration::from_millis(500))
}

fn connect_within(client: &Space, to: &str, patience: Duration) -> usize {
    let to: SocketAddr = to.parse().unwrap();
    let once = |_: &usize| {
        in_namespace(Some(&client.path()), || TcpStream::connect_timeout(&to, patience)).is_ok()
    };
    (0..CONNECTIONS).filter(once).count()
}

/// A container behind a bridge with DNAT, its cgroup, and the proxy of its engine.
struct Bridge {
    client: Space,
    container: Space,
    address: String,
    server: Process,
    proxy: Option<Process>,
    // Last: a group with a process in it cannot be removed.
    cgroup: Cgroup,
}

impl Bridge {
    fn new(world: &World, number: u32) -> Self {
        let client = client(world);
        let (container, host) = (Space::new(world, "k"), world.name());
        let name = &container.0;
        // Others that run at the same time have another one.
        let (outer, address) = (format!("10.84.{number}.1"), format!("10.84.{number}.2"));
        ip(&format!("-n {host} link add b0 type bridge"));
        ip(&format!("-n {host} link add p0 type veth peer name e0 netns {name}"));
        ip(&format!("-n {host} link set p0 master b0 up"));
        ip(&format!("-n {host} address add {outer}/24 dev b0"));
        ip(&format!("-n {host} link set b0 up"));
        ip(&format!("-n {name} address add {address}/24 dev e0"));
        ip(&format!("-n {name} link set e0 up"));
        ip(&format!("-n {name} route add default via {outer}"));
        ip(&format!("-n {} route add default via 10.83.0.1", client.0));
        let forward = || std::fs::write("/proc/sys/net/ipv4/ip_forward", "1");
        in_namespace(Some(&world.namespace()), forward).unwrap();
        let rules = world.file("nft");
        let text = format!(
            "table ip nat {{ chain pre {{ type nat hook prerouting priority -100; tcp dport 8080 dnat to \
             {address}:80; }}; }}\n"
        );
        std::fs::write(&rules, text).unwrap();
        run(
            "nsenter",
            &format!("--net={} nft -f {}", world.namespace().display(), rules.display()),
        );
        let cgroup = Cgroup::new("places", number);
        let server = Process::python(&container.path(), SERVER, &["0.0.0.0", "80", "77"]);
        cgroup.take(server.pid());
        let proxy = [
            "0.0.0.0",
            "8080",
            "9",
            "-proto",
            "tcp",
            "-host-ip",
            "0.0.0.0",
            "-host-port",
            "8080",
            "-container-ip",
            &address,
            "-container-port",
            "80",
        ];
        let proxy = Process::python(&world.namespace(), SERVER, &proxy);
        let bridge = Self { client, container, address, cgroup, server, proxy: Some(proxy) };
        wait_for("the server listens", || (connect(&bridge.client, OUTSIDE) > 0).then_some(()));
        let proxied = || TcpStream::connect("127.0.0.1:8080");
        wait_for("the proxy", || in_namespace(Some(&world.namespace()), proxied).ok());
        bridge
    }
}

const OUTSIDE: &str = "10.83.0.1:8080";
/// What the services admit: little, so that refusals show that they are protected.
const CONTROL: &str = "control: {name: fixed, rate: 1, burst: 5}";

fn log(world: &World) -> Stdio {
    std::fs::OpenOptions::new().append(true).create(true).open(world.file("log")).unwrap().into()
}

/// Runs the daemon and shows that it refuses what it shall.
fn protects(world: &mut World, intent: &str, bridge: &Bridge) {
    world.run_intent(intent, &[], log(world));
    world.ready();
    let taken = connect(&bridge.client, OUTSIDE);
    assert!((1..CONNECTIONS / 2).contains(&taken), "{taken} of {CONNECTIONS} were admitted");
    let half = CONNECTIONS as f64 / 2.0;
    wait_for("seen", || (world.metric("service_offered_syns_total") >= half).then_some(()));
    let page = world.get("/readyz").unwrap();
    assert!(page.contains(" 200 "), "{page}");
    // It tells whose listener is looked at.
    let queue = "tidegate_service_accept_queue_limit_connections{service=\"shop\"} 77";
    wait_for(queue, || world.get("/metrics").filter(|page| page.contains(queue)));
    assert!(!world.status().contains("nothing listens"), "{}", world.status());
}

#[test]
fn a_container_is_protected_from_the_uplink() {
    let mut world = World::new(20);
    let mut bridge = Bridge::new(&world, 20);
    let proxied =
        "interfaces: [{name: v0}]\nservices: {shop: {mode: enforce, listen: ['*:8080']}}\n";
    let told = world.check(proxied);
    let cgroup = bridge.cgroup.0.display().to_string();
    let target = format!("{}:80", bridge.address);
    for says in
        [format!("passes connections on to {target}"), format!("namespace: cgroup:{cgroup}")]
    {
        assert!(told.contains(&says), "{says}: {told}");
    }
    let intent = format!(
        "interfaces: [{{name: v0}}]\nservices:\n  shop: {{mode: enforce, listen: ['*:8080'], namespace: \
         'cgroup:{cgroup}', target: ['{target}'], {CONTROL}}}\n"
    );
    assert!(!world.check(&intent).contains("warning"), "{}", world.check(&intent));
    protects(&mut world, &intent, &bridge);
    // The container starts again in another namespace, which the daemon may not enter any more.
    let (again, place) = (Space::new(&world, "a"), "namespace cgroup:");
    assert!(!world.status().contains(place), "{}", world.status());
    let server = Process::python(&again.path(), SERVER, &["0.0.0.0", "80", "55"]);
    let begin = DayClock.now();
    bridge.cgroup.take(server.pid());
    bridge.server = server;
    wait_for("told", || world.status().contains(place).then_some(()));
    let page = wait_for("not ready", || world.get("/readyz").filter(|page| page.contains(" 503 ")));
    for told in [world.status(), world.check_running(), page] {
        for says in [place, "came after the start of the daemon", "`systemctl restart tidegate`"] {
            assert!(told.contains(says), "{says}: {told}");
        }
    }
    let took = world.seconds_since(begin, "came after the start of the daemon");
    assert!(took <= TOLD_MAX_S, "{took} s");
    // The hooks go on, whoever has its address now.
    let _server = Process::python(&bridge.container.path(), SERVER, &["0.0.0.0", "80", "77"]);
    let patience = Duration::from_millis(100);
    let taken = || Some(connect_within(&bridge.client, OUTSIDE, patience)).filter(|n| *n > 0);
    let taken = wait_for("the server listens", taken);
    assert!(taken < CONNECTIONS / 2, "{taken} of {CONNECTIONS} were admitted");
}

#[test]
fn a_container_is_protected_from_inside() {
    let mut world = World::new(21);
    let bridge = Bridge::new(&world, 21);
    let (path, pid) = (bridge.container.path().display().to_string(), bridge.server.pid());
    let _other = Process::python(&bridge.container.path(), SERVER, &["0.0.0.0", "81", "66"]);
    let intent = format!(
        "interfaces: [{{name: e0, namespace: 'pid:{pid}'}}]\nservices:\n  shop: {{mode: enforce, listen: \
         ['*:80'], namespace: {path}, {CONTROL}}}\n  other: {{mode: shadow, listen: ['*:81'], namespace: \
         'pid:{pid}'}}\nexempt: {{presets: [node]}}\n"
    );
    let told = world.check(&intent);
    assert!(told.contains("node exempts ") && told.contains("10.84.21.1"), "{told}");
    wait_for("both listen", || (!world.check(&intent).contains("warning")).then_some(()));
    protects(&mut world, &intent, &bridge);
    let queue = "tidegate_service_accept_queue_limit_connections{service=\"other\"} 66";
    wait_for(queue, || world.get("/metrics").filter(|page| page.contains(queue)));
    // The node itself, as its kubelet does, while others are refused.
    let probe = format!("{}:80", bridge.address).parse().unwrap();
    let node = world.namespace();
    let patience = Duration::from_millis(500);
    let probes = |_: &usize| {
        in_namespace(Some(&node), || TcpStream::connect_timeout(&probe, patience)).is_ok()
    };
    assert_eq!((0..CONNECTIONS).filter(probes).count(), CONNECTIONS);
    // The container ends, and its interface with it: the daemon, which gave up its privileges, says so.
    ip(&format!("-n {} link del e0", bridge.container.0));
    let page = wait_for("not ready", || world.get("/readyz").filter(|page| page.contains(" 503 ")));
    assert!(page.contains("e0"), "{page}");
}

/// In time, and with the interface where to attach instead.
fn is_told(world: &World, wanted: &str) {
    let page = wait_for("not ready", || {
        world.get("/readyz").filter(|page| page.contains(" 503 ") && page.contains(wanted))
    });
    assert!(page.contains("Attach to v0"), "{page}");
    assert!(world.status().contains(wanted), "{}", world.status());
    let took = world.seconds_between("gave up all capabilities", "subject=\"interfaces\"");
    assert!(took <= TOLD_MAX_S, "{took} s");
}

#[test]
fn on_the_port_of_a_bridge_nothing_is_protected_and_everybody_is_told() {
    let mut world = World::new(22);
    let bridge = Bridge::new(&world, 22);
    let wanted = "p0 is the port of the bridge b0 to a container or virtual machine";
    let intent = "interfaces: [{name: p0}]\nservices: {shop: {mode: enforce, listen: ['*:80']}}\n";
    let told = world.check(intent);
    assert!(told.contains(wanted) && told.contains("Attach to v0"), "{told}");
    assert!(told.contains("in another network namespace"), "{told}");
    world.run_intent(intent, &[], log(&world));
    is_told(&world, wanted);
    assert!(connect(&bridge.client, OUTSIDE) == CONNECTIONS);
}

/// Docker's bridge: with and without a userland proxy on the published port.
#[test]
fn on_a_bridge_to_containers_nothing_is_protected_and_everybody_is_told() {
    let mut world = World::new(26);
    let mut bridge = Bridge::new(&world, 26);
    let wanted = "b0 is a bridge to containers or virtual machines of this host";
    let intent =
        "interfaces: [{name: b0}]\nservices: {shop: {mode: enforce, listen: ['*:8080']}}\n";
    let told = world.check(intent);
    assert!(told.contains(wanted) && told.contains("Attach to v0"), "{told}");
    drop(bridge.proxy.take());
    let told = world.check(intent);
    assert!(told.contains(wanted) && told.contains("Attach to v0"), "{told}");
    let target = format!("`target: [\"{}:80\"]`", bridge.address);
    let cgroup = format!("`namespace: cgroup:{}`", bridge.cgroup.0.display());
    for says in ["behind a bridge of this host listens", &target, &cgroup] {
        assert!(told.contains(says), "{says}: {told}");
    }
    world.run_intent(intent, &[], log(&world));
    is_told(&world, wanted);
    let located = "services.shop.listen[0]: nobody listens here";
    assert!(world.log().contains(located), "{}", world.log());
    assert!(connect(&bridge.client, OUTSIDE) == CONNECTIONS);
    // What containers ask of a server of this host comes by the bridge.
    let _server = Process::python(&world.namespace(), SERVER, &["0.0.0.0", "8080", "77"]);
    wait_for("no reason", || (!world.check(intent).contains(wanted)).then_some(()));
}

/// A second uplink, by which the container is reached as well.
fn second_uplink(world: &World, bridge: &Bridge) {
    let (host, client) = (world.name(), &bridge.client.0);
    ip(&format!("-n {host} link add w0 type veth peer name w1 netns {client}"));
    for (namespace, link, address) in
        [(host, "w0", "10.85.0.1"), (client.as_str(), "w1", "10.85.0.2")]
    {
        ip(&format!("-n {namespace} address add {address}/24 dev {link}"));
        ip(&format!("-n {namespace} link set {link} up"));
    }
}

/// Without a userland proxy nobody listens here, and connections are opened where the container is. Beside it a
/// service of this host, to which nobody comes: that is no reason to doubt.
#[test]
fn on_the_wrong_uplink_of_a_container_everybody_is_told_until_the_first_syn() {
    let mut world = World::new(27);
    let mut bridge = Bridge::new(&world, 27);
    drop(bridge.proxy.take());
    second_uplink(&world, &bridge);
    let _idle = Process::python(&world.namespace(), SERVER, &["0.0.0.0", "8082", "77"]);
    let listens = || TcpStream::connect("127.0.0.1:8082");
    wait_for("the idle server", || in_namespace(Some(&world.namespace()), listens).ok());
    let intent = "interfaces: [{name: w0}]\nservices:\n  idle: {mode: enforce, listen: ['*:8082']}\n  shop: \
                  {mode: enforce, listen: ['*:8080']}\n";
    let wanted = "no hook has seen a SYN of shop yet";
    let target = format!("`target: [\"{}:80\"]`", bridge.address);
    world.run_intent(intent, &[], log(&world));
    let page = wait_for("not ready", || {
        world.get("/readyz").filter(|page| page.contains(" 503 ") && page.contains(wanted))
    });
    let hooks = "Hooks are on w0; other uplinks of this host: v0";
    assert!(page.contains(&target) && page.contains(hooks), "{page}");
    let says = |told: String| (told.contains(wanted) && told.contains(&target)).then_some(());
    wait_for("status", || says(world.status()));
    wait_for("check", || says(world.check_running()));
    wait_for("log", || says(world.log()));
    let took = world.seconds_between("gave up all capabilities", wanted);
    assert!(took <= TOLD_MAX_S, "{took} s");
    assert!(connect(&bridge.client, OUTSIDE) > 0);
    let page = world.get("/readyz").unwrap();
    assert!(page.contains(" 503 "), "nothing was seen of them: {page}");
    // The other uplink is as good a way: what comes by it is passed on, too.
    assert!(connect(&bridge.client, "10.85.0.1:8080") > 0);
    world.ready();
    wait_for("over", || (!world.status().contains(wanted)).then_some(()));
}

/// In the host's namespace, and moved into a container, where it has hooks of its own configured, too.
#[test]
fn a_macvlan_beside_its_card_is_evaluated_once() {
    let mut world = World::new(23);
    let (client, container) = (client(&world), Space::new(&world, "k"));
    let host = world.name().to_owned();
    ip(&format!("-n {host} link add link v0 name m0 type macvlan mode bridge"));
    ip(&format!("-n {host} link add link v0 name m1 type macvlan mode bridge"));
    ip(&format!("-n {host} link set m1 netns {}", container.0));
    for (namespace, link, address) in
        [(&host, "m0", "10.83.0.3"), (&container.0, "m1", "10.83.0.4")]
    {
        ip(&format!("-n {namespace} address add {address}/24 dev {link}"));
        ip(&format!("-n {namespace} link set {link} up"));
    }
    let _servers = [world.namespace(), container.path()]
        .map(|namespace| Process::python(&namespace, SERVER, &["0.0.0.0", "80", "77"]));
    let path = container.path().display().to_string();
    let all = format!(
        "interfaces: [{{name: m0}}, {{name: m1, namespace: {path}}}, {{name: v0}}]\nservices: {{shop: {{mode: \
         shadow, listen: ['*:80']}}}}\n"
    );
    let told = world.check(&all);
    for says in ["m0 is on top of v0".to_owned(), format!("m1 (in {path}) is on top of v0")] {
        assert!(told.contains(&says), "{says}: {told}");
    }
    world.run_intent(&all, &[], log(&world));
    world.ready();
    let mut connected = 0.0;
    for server in ["10.83.0.3:80", "10.83.0.4:80"] {
        let before = world.metric("service_offered_syns_total");
        wait_for("the server listens", || {
            connected += CONNECTIONS as f64;
            (connect(&client, server) == CONNECTIONS).then_some(())
        });
        let all = before + CONNECTIONS as f64;
        wait_for("they are counted", || {
            (world.metric("service_offered_syns_total") >= all).then_some(())
        });
    }
    // A copy of a SYN may be among them, a second look at each may not.
    let offered = world.metric("service_offered_syns_total");
    assert!(offered < 1.5 * connected, "{offered} of {connected}");
    // What has no hooks needs no privileges to be left out again.
    let file = std::fs::read_to_string(world.file("config")).unwrap();
    std::fs::write(world.file("config"), file.replace("mode: shadow", "mode: enforce")).unwrap();
    let reload = world.tidegate(&["reload"]);
    assert!(reload.status.success(), "{reload:?}");
}

/// Between a tun device and a socket that stands for the other end.
const TUN: &str = r"
import fcntl, os, select, socket, struct, sys
name, mine, other = sys.argv[1:]
tun = os.open('/dev/net/tun', os.O_RDWR)
fcntl.ioctl(tun, 0x400454ca, struct.pack('16sH22x', name.encode(), 0x1001))
end = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
end.bind(mine)
while True:
    for ready in select.select([tun, end], [], [])[0]:
        try:
            if ready is end: os.write(tun, end.recv(4096))
            else: end.sendto(os.read(tun, 4096), other)
        except OSError: pass
";

/// Packets without Ethernet header are evaluated, and answered.
#[test]
fn a_service_behind_a_tun_device_is_protected() {
    let mut world = World::new(25);
    let client = Space::new(&world, "c");
    let ends = ["t0", "t1"].map(|name| world.file(name).display().to_string());
    let tuns = [
        Process::python(&world.namespace(), TUN, &["t0", &ends[0], &ends[1]]),
        Process::python(&client.path(), TUN, &["t1", &ends[1], &ends[0]]),
    ];
    wait_for("both ends", || ends.iter().all(|end| Path::new(end).exists()).then_some(()));
    for (namespace, link, address) in
        [(world.name(), "t0", "10.83.0.1"), (&client.0, "t1", "10.83.0.2")]
    {
        ip(&format!("-n {namespace} address add {address}/24 dev {link}"));
        ip(&format!("-n {namespace} link set {link} up"));
    }
    let _server = Process::python(&world.namespace(), SERVER, &["0.0.0.0", "80", "77"]);
    wait_for("the server listens", || (connect(&client, "10.83.0.1:80") > 0).then_some(()));
    let with = |attach: &str| {
        format!(
            "interfaces: [{{name: t0, attach: {attach}}}]\nservices:\n  shop: {{mode: enforce, listen: \
             ['*:80'], policy: {{action: reject}}, {CONTROL}}}\n"
        )
    };
    let told = world.check(&with("auto"));
    assert!(told.contains("no Ethernet header") && told.contains("will attach tcx"), "{told}");
    world.run_intent(&with("auto"), &[], log(&world));
    world.ready();
    let to: SocketAddr = "10.83.0.1:80".parse().unwrap();
    let patience = Duration::from_secs(5);
    let (mut taken, mut reset) = (0, 0);
    for _ in 0..CONNECTIONS {
        match in_namespace(Some(&client.path()), || TcpStream::connect_timeout(&to, patience)) {
            Ok(_) => taken += 1,
            Err(error) => {
                assert_eq!(error.kind(), std::io::ErrorKind::ConnectionRefused);
                reset += 1;
            }
        }
    }
    assert!(taken > 0 && reset > CONNECTIONS / 2, "{taken} taken, {reset} reset");
    drop(tuns);
}

#[test]
fn a_link_that_goes_down_and_up_or_gets_another_mtu_stays_protected() {
    let mut world = World::new(24);
    let client = client(&world);
    let host = world.name().to_owned();
    let _server = Process::python(&world.namespace(), SERVER, &["0.0.0.0", "8000", "77"]);
    world.run(&[]);
    let seen = |world: &World, what: &str| {
        let before = world.metric("service_offered_syns_total");
        wait_for(what, || (connect(&client, "10.83.0.1:8000") == CONNECTIONS).then_some(()));
        wait_for(what, || {
            (world.metric("service_offered_syns_total") >= before + CONNECTIONS as f64)
                .then_some(())
        });
        let page = world.get("/readyz").unwrap();
        assert!(page.contains(" 200 "), "{what}: {page}");
    };
    seen(&world, "at first");
    ip(&format!("-n {host} link set v0 down"));
    ip(&format!("-n {host} link set v0 up"));
    seen(&world, "down and up");
    for mtu in [1280, 9000] {
        ip(&format!("-n {host} link set v0 mtu {mtu}"));
        ip(&format!("-n {} link set v1 mtu {mtu}", client.0));
        seen(&world, &format!("an MTU of {mtu}"));
    }
}
