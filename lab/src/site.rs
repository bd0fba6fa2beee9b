// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Where servers stand beside the plain host: in containers, behind tunnels, beside foreign programs.
//!
//! ```text
//!  router        host (the server's namespace)                              container
//!  r1 ────────── s0 10.2.0.2      bridge: :8080 ─ DNAT ─ b0 10.3.0.1 ─ p0 ─ e0 10.3.0.2:80
//!                                 routed:                   10.3.0.1   p0 ─ e0 10.3.0.2:80
//!                                 macvlan:                         on s0 ── e0 10.2.0.3:80
//!  client: t1 ── t0 10.4.0.1:80   tun: without Ethernet header
//! ```

use crate::error::{LabError, Result};
use crate::lab::{Lab, START_LIMIT};
use crate::os;
use crate::process::Managed;
use crate::topology::{Role, SERVER_INTERFACE, SERVER_V4};
use serde::Deserialize;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::path::{Path, PathBuf};

/// The program between two tun devices.
const TUN: &str = include_str!("site/tun.py");
/// The program that attaches a foreign tcx program.
const FOREIGN: &str = include_str!("site/foreign.py");
/// What both say once it is done.
const READY: &str = "ready";
/// A listener in the place of Docker's userland proxy, which says on its command line where it leads to.
const PROXY: &str =
    "import socket, signal\ns = socket.create_server(('0.0.0.0', 8080), backlog=9)\nsignal.pause()";
/// The published port of the container behind the bridge.
const PUBLISHED: u16 = 8080;
/// Where servers listen.
const PORT: u16 = 80;
const CONTAINER: Ipv4Addr = Ipv4Addr::new(10, 3, 0, 2);
const MACVLAN: Ipv4Addr = Ipv4Addr::new(10, 2, 0, 3);
const BEHIND_TUN: Ipv4Addr = Ipv4Addr::new(10, 4, 0, 1);

/// Where a server stands, and by which way its clients come.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum SiteKind {
    /// On the host itself.
    Host,
    /// In a container behind a bridge, by DNAT of a published port; a userland proxy listens there, too.
    Bridge,
    /// In a container with an address of its own, to which the host routes.
    Routed,
    /// In a container with a macvlan on the host's interface.
    Macvlan,
    /// On the host, behind a tunnel whose packets have no Ethernet header.
    Tun,
}

/// A place where the servers that are started next stand; what was made for it ends by drop.
#[derive(Debug)]
pub struct Site {
    kind: SiteKind,
    container: Option<Managed>,
    _helpers: Vec<Managed>,
}

impl Site {
    /// Where clients find the server, which listens on port 80.
    #[must_use]
    pub const fn target(&self) -> SocketAddr {
        let address = match self.kind {
            SiteKind::Host => return SocketAddr::new(SERVER_V4, PORT),
            SiteKind::Bridge => return SocketAddr::new(SERVER_V4, PUBLISHED),
            SiteKind::Routed => CONTAINER,
            SiteKind::Macvlan => MACVLAN,
            SiteKind::Tun => BEHIND_TUN,
        };
        SocketAddr::new(IpAddr::V4(address), PORT)
    }

    /// Where the server listens where that is, if addresses are changed on the way.
    #[must_use]
    pub fn inner(&self) -> Option<SocketAddr> {
        let inner = SocketAddr::new(IpAddr::V4(CONTAINER), PORT);
        (self.kind == SiteKind::Bridge).then_some(inner)
    }

    /// The container's first process.
    #[must_use]
    pub fn container(&self) -> Option<u32> {
        self.container.as_ref().map(Managed::pid)
    }
}

/// What a foreign program says of every packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum ForeignVerdict {
    /// It passes, and no program behind sees it.
    Pass,
    /// The next program goes on.
    Next,
    /// It goes on by another link between the same two hosts.
    Redirect,
}

/// Somebody's tcx program at the head of the server's interface.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Foreign {
    /// At egress, not at ingress.
    #[serde(default)]
    pub egress: bool,
    /// What it says.
    pub verdict: ForeignVerdict,
}

/// Makes the place, and tells the lab that servers stand there.
pub(crate) fn make(lab: &Lab, kind: SiteKind) -> Result<Site> {
    let mut site = Site { kind, container: None, _helpers: Vec::new() };
    if matches!(kind, SiteKind::Bridge | SiteKind::Routed | SiteKind::Macvlan) {
        site.container = Some(container(lab)?);
    }
    let pid = site.container().unwrap_or_default();
    let path = format!("/proc/{pid}/ns/net");
    match kind {
        SiteKind::Host => return Ok(site),
        SiteKind::Bridge => {
            batch(
                lab,
                Role::Server,
                &[
                    "link add b0 type bridge",
                    &format!("link add p0 type veth peer name e0 netns {pid}"),
                    "link set p0 master b0 up",
                    "addr add 10.3.0.1/24 dev b0",
                    "link set b0 up",
                ],
            )?;
            inside(lab, &path, &["addr add 10.3.0.2/24 dev e0", "link set e0 up"])?;
            inside(lab, &path, &["route add default via 10.3.0.1"])?;
            forward(lab)?;
            publish(lab)?;
            site._helpers.push(proxy(lab)?);
        }
        SiteKind::Routed => {
            batch(
                lab,
                Role::Server,
                &[
                    &format!("link add p0 type veth peer name e0 netns {pid}"),
                    "addr add 10.3.0.1/24 dev p0",
                    "link set p0 up",
                ],
            )?;
            inside(lab, &path, &["addr add 10.3.0.2/24 dev e0", "link set e0 up"])?;
            inside(lab, &path, &["route add default via 10.3.0.1"])?;
            forward(lab)?;
            batch(lab, Role::Router, &["route add 10.3.0.0/24 via 10.2.0.2"])?;
        }
        SiteKind::Macvlan => {
            let add = format!(
                "link add link {SERVER_INTERFACE} name e0 netns {pid} type macvlan mode bridge"
            );
            batch(lab, Role::Server, &[&add])?;
            inside(lab, &path, &["addr add 10.2.0.3/24 dev e0", "link set e0 up"])?;
            inside(lab, &path, &["route add default via 10.2.0.1"])?;
        }
        SiteKind::Tun => {
            site._helpers.push(tun(lab)?);
            return Ok(site);
        }
    }
    lab.serve_in(Some(path));
    Ok(site)
}

fn batch(lab: &Lab, role: Role, lines: &[&str]) -> Result<()> {
    lab.run_in(role, &["ip", "-batch", "-"], &(lines.join("\n") + "\n")).map(drop)
}

/// The same in a container, whose loopback is up then.
fn inside(lab: &Lab, path: &str, lines: &[&str]) -> Result<()> {
    let enter = format!("--net={path}");
    let text = format!("link set lo up\n{}\n", lines.join("\n"));
    lab.run_in(Role::Server, &["nsenter", &enter, "ip", "-batch", "-"], &text).map(drop)
}

fn forward(lab: &Lab) -> Result<()> {
    lab.run_in(Role::Server, &["sh", "-c", "echo 1 >/proc/sys/net/ipv4/ip_forward"], "").map(drop)
}

/// A process in a network namespace of its own, which ends with it.
pub(crate) fn container(lab: &Lab) -> Result<Managed> {
    let command = ["unshare", "--net", "sleep", "infinity"];
    let process = lab.start_on_server("container", &command)?;
    let name = PathBuf::from(format!("/proc/{}/comm", process.pid()));
    os::wait_or_fail("a container", START_LIMIT, Some(process.log()), || {
        std::fs::read_to_string(&name).is_ok_and(|name| name.trim() == "sleep")
    })?;
    let path = format!("/proc/{}/ns/net", process.pid());
    // As on the lab's other hosts: bbr would hide losses.
    let control = "cd /proc/sys/net/ipv4; echo cubic 2>/dev/null >tcp_congestion_control || \
                   echo reno >tcp_congestion_control";
    let enter = format!("--net={path}");
    lab.run_in(Role::Server, &["nsenter", &enter, "sh", "-c", control], "")?;
    Ok(process)
}

/// The published port leads to the container.
fn publish(lab: &Lab) -> Result<()> {
    let rules = format!(
        "table ip places {{ chain pre {{ type nat hook prerouting priority -100; tcp dport {PUBLISHED} \
         dnat to {CONTAINER}:{PORT}; }}; }}\n"
    );
    lab.run_in(Role::Server, &["nft", "-f", "-"], &rules).map(drop)
}

fn proxy(lab: &Lab) -> Result<Managed> {
    let (published, port, inner) = (PUBLISHED.to_string(), PORT.to_string(), CONTAINER.to_string());
    let command = [
        "python3",
        "-c",
        PROXY,
        "-proto",
        "tcp",
        "-host-ip",
        "0.0.0.0",
        "-host-port",
        &published,
        "-container-ip",
        &inner,
        "-container-port",
        &port,
    ];
    lab.start_in(Role::Server, lab.load_cpu(), "proxy", &command)
}

/// Starts a helper and waits until it says that it is ready.
fn helper(lab: &Lab, name: &str, command: &[&str]) -> Result<Managed> {
    let mut process = lab.start_in(Role::Server, lab.load_cpu(), name, command)?;
    let log = process.log().to_path_buf();
    let says = |log: &Path| std::fs::read_to_string(log).is_ok_and(|text| text.contains(READY));
    let done = os::wait_until(START_LIMIT, || says(&log) || !process.running());
    if done && process.running() {
        return Ok(process);
    }
    Err(LabError::Missing(format!("{name}{}", os::log_tail(&log))))
}

fn tun(lab: &Lab) -> Result<Managed> {
    let ends = [Role::Server, Role::Client].map(|role| os::text(&lab.namespace(role)));
    let process = helper(lab, "tun", &["python3", "-c", TUN, &ends[0], "t0", &ends[1], "t1"])?;
    batch(
        lab,
        Role::Server,
        &["addr add 10.4.0.1/24 dev t0", "link set t0 up", "route add 10.16.0.0/12 dev t0"],
    )?;
    batch(lab, Role::Client, &["addr add 10.4.0.2/24 dev t1", "link set t1 up"])?;
    Ok(process)
}

/// Attaches a foreign program until it is dropped.
pub(crate) fn foreign(lab: &Lab, foreign: Foreign) -> Result<Managed> {
    let other = "w0";
    let verdict = match foreign.verdict {
        ForeignVerdict::Pass => "pass",
        ForeignVerdict::Next => "next",
        ForeignVerdict::Redirect => {
            second_link(lab, other)?;
            "redirect"
        }
    };
    let (side, on) = (if foreign.egress { "out" } else { "in" }, SERVER_INTERFACE);
    let other = if foreign.verdict == ForeignVerdict::Redirect { other } else { on };
    helper(lab, "foreign", &["python3", "-c", FOREIGN, on, side, verdict, other])
}

/// A second link between router and server, which takes what is addressed to the ends of the first.
fn second_link(lab: &Lab, name: &str) -> Result<()> {
    let address = |role, link: &str| -> Result<String> {
        let shown = lab.run_in(role, &["ip", "-o", "link", "show", link], "")?;
        let word = shown.split("link/ether ").nth(1).and_then(|rest| rest.split(' ').next());
        word.map(str::to_owned).ok_or_else(|| LabError::Missing(format!("address of {link}")))
    };
    let (ours, theirs) = (address(Role::Server, SERVER_INTERFACE)?, address(Role::Router, "r1")?);
    let router = os::text(&lab.namespace(Role::Router));
    batch(
        lab,
        Role::Server,
        &[
            &format!("link add {name} address {ours} type veth peer name w1 address {theirs}"),
            &format!("link set {name} up"),
            &format!("link set w1 netns {}", router.rsplit('/').next().unwrap_or_default()),
        ],
    )?;
    batch(lab, Role::Router, &["link set w1 up"])?;
    for (role, link) in [(Role::Server, name), (Role::Router, "w1")] {
        // Packets come by another interface than the route to their sender.
        let off =
            format!("cd /proc/sys/net/ipv4/conf; echo 0 >all/rp_filter; echo 0 >{link}/rp_filter");
        lab.run_in(role, &["sh", "-c", &off], "")?;
    }
    Ok(())
}
