// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The network of a lab: three namespaces in a row.
//!
//! ```text
//!  <id>-cl                     <id>-rt                     <id>-sv
//!  c0 10.1.0.2/24  ── veth ──  r0 10.1.0.1
//!     fd00:1::2/64             r0 fd00:1::1
//!                              r1 10.2.0.1    ── veth ──  s0 10.2.0.2/24
//!  lo 10.16.0.0/12 (AnyIP)     r1 fd00:2::1                  fd00:2::2/64
//!     fd00:16::/64
//! ```
//!
//! Addresses are the same in every lab, since no two labs share a namespace; only the names of the
//! namespaces differ. A client binds to any address of the AnyIP prefixes without further set-up.
//!
//! XDP on veth: a program on `s0` that answers (RST) by `bpf_redirect` to its own interface is
//! delivered only if the peer `r1` has GRO on (or an XDP program of its own), so GRO is on there by
//! default; a program that answers by `XDP_TX` needs an `XDP_PASS` stub on `r1` instead. An XDP
//! program also turns off the peer's TSO: with and without are compared with small answers only.

use crate::error::{LabError, Result};
use crate::os;
use crate::registry;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

/// The server's addresses.
pub const SERVER_V4: IpAddr = IpAddr::V4(Ipv4Addr::new(10, 2, 0, 2));
/// See [`SERVER_V4`].
pub const SERVER_V6: IpAddr = IpAddr::V6(Ipv6Addr::new(0xfd00, 2, 0, 0, 0, 0, 0, 2));
/// First address of the clients' prefix 10.16.0.0/12 (1,048,576 addresses).
pub const CLIENTS_V4: IpAddr = IpAddr::V4(Ipv4Addr::new(10, 16, 0, 0));
/// First address of the clients' prefix fd00:16::/64.
pub const CLIENTS_V6: IpAddr = IpAddr::V6(Ipv6Addr::new(0xfd00, 0x16, 0, 0, 0, 0, 0, 0));
/// The client's own address, by which the router reaches it.
pub(crate) const CLIENT_V4: &str = "10.1.0.2";
/// The server's interface: where the product attaches.
pub const SERVER_INTERFACE: &str = "s0";

/// One of the lab's hosts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Role {
    /// Where the load comes from.
    Client,
    /// Between the two.
    Router,
    /// Where servers, product and rivals run.
    Server,
}

impl Role {
    pub(crate) const ALL: [Self; 3] = [Self::Client, Self::Router, Self::Server];

    const fn suffix(self) -> &'static str {
        match self {
            Self::Client => registry::ROLES[0],
            Self::Router => registry::ROLES[1],
            Self::Server => registry::ROLES[2],
        }
    }

    /// The path by which `nsenter --net=` enters the namespace.
    pub(crate) fn path(self, id: &str) -> String {
        format!("/run/netns/{}", registry::namespace(id, self.suffix()))
    }
}

/// What may differ between networks. The defaults are those of the kernel where not said.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NetworkOptions {
    /// `tcp_syncookies` of the server: the kernel answers SYNs of a full queue by cookies (default on).
    pub syncookies: bool,
    /// `somaxconn` of the server (default 4096, the kernel's).
    pub somaxconn: u32,
    /// `tcp_max_syn_backlog` of the server (default 4096).
    pub syn_backlog: u32,
    /// GRO on the veth ends of client and router (default on, see the head of this module).
    pub gro: bool,
    /// TSO and GSO on all ends (default on); off where queues are measured in packets.
    pub segmentation: bool,
}

impl Default for NetworkOptions {
    fn default() -> Self {
        Self {
            syncookies: true,
            somaxconn: 4_096,
            syn_backlog: 4_096,
            gro: true,
            segmentation: true,
        }
    }
}

/// Makes the three namespaces and all that is in them.
pub(crate) fn create(id: &str, options: &NetworkOptions) -> Result<()> {
    {
        let _lock = registry::lock()?;
        let names = registry::ROLES.map(|r| registry::namespace(id, r));
        let add: String = names.iter().map(|n| format!("netns add {n}\n")).collect();
        os::run_with_input("ip", &["-batch", "-"], &add)?;
        let [cl, rt, sv] = &names;
        let links = format!(
            "link add c0 netns {cl} type veth peer name r0 netns {rt}\n\
             link add r1 netns {rt} type veth peer name s0 netns {sv}\n"
        );
        os::run_with_input("ip", &["-batch", "-"], &links)?;
    }
    for role in Role::ALL {
        sysctls(id, role, options)?;
        inside(id, role, &["ip", "-batch", "-"], addresses(role))?;
        for name in interfaces(role) {
            offloads(id, role, name, options)?;
        }
    }
    Ok(())
}

/// Runs a program in one of a lab's namespaces with text on its input.
pub(crate) fn inside(id: &str, role: Role, command: &[&str], input: &str) -> Result<String> {
    within(&role.path(id), command, input)
}

/// The same in the namespace that lies at `net`. Only the network namespace is entered: `ip netns exec`
/// would also remount /sys and hide the BPF file system.
pub(crate) fn within(net: &str, command: &[&str], input: &str) -> Result<String> {
    let net = format!("--net={net}");
    let args: Vec<&str> = std::iter::once(net.as_str()).chain(command.iter().copied()).collect();
    os::run_with_input("nsenter", &args, input)
}

const fn interfaces(role: Role) -> &'static [&'static str] {
    match role {
        Role::Client => &["c0"],
        Role::Router => &["r0", "r1"],
        Role::Server => &["s0"],
    }
}

/// What `ip -batch` does in one namespace. Duplicate address detection is off: it would keep IPv6
/// silent for the first seconds.
const fn addresses(role: Role) -> &'static str {
    match role {
        Role::Client => {
            "link set lo up\nlink set c0 up\n\
             addr add 10.1.0.2/24 dev c0\naddr add fd00:1::2/64 dev c0 nodad\n\
             route add default via 10.1.0.1\nroute add default via fd00:1::1\n\
             route add local 10.16.0.0/12 dev lo\nroute add local fd00:16::/64 dev lo\n"
        }
        Role::Router => {
            "link set lo up\nlink set r0 up\nlink set r1 up\n\
             addr add 10.1.0.1/24 dev r0\naddr add fd00:1::1/64 dev r0 nodad\n\
             addr add 10.2.0.1/24 dev r1\naddr add fd00:2::1/64 dev r1 nodad\n\
             route add 10.16.0.0/12 via 10.1.0.2\nroute add fd00:16::/64 via fd00:1::2\n"
        }
        Role::Server => {
            "link set lo up\nlink set s0 up\n\
             addr add 10.2.0.2/24 dev s0\naddr add fd00:2::2/64 dev s0 nodad\n\
             route add default via 10.2.0.1\nroute add default via fd00:2::1\n"
        }
    }
}

fn sysctls(id: &str, role: Role, options: &NetworkOptions) -> Result<()> {
    // A namespace may use only what its host allows: cubic, else reno, and never bbr, which would
    // hide losses that the experiments are about. Of datagrams systemd lets 512 wait, on each host that
    // it starts; the kernel alone 10.
    let mut script = String::from(
        "set -e\ncd /proc/sys/net\n\
         echo cubic 2>/dev/null >ipv4/tcp_congestion_control || echo reno >ipv4/tcp_congestion_control\n\
         [ ! -e unix/max_dgram_qlen ] || echo 512 >unix/max_dgram_qlen\n",
    );
    let mut set = |name: &str, value: &dyn std::fmt::Display| {
        script.push_str(&format!("echo '{value}' >{name}\n"));
    };
    match role {
        Role::Client => {
            set("ipv4/ip_local_port_range", &"1024 65535");
            set("ipv4/tcp_tw_reuse", &1);
            // For IPv4 the local route is enough to bind to any address of the prefix.
            set("ipv6/ip_nonlocal_bind", &1);
        }
        Role::Router => {
            set("ipv4/ip_forward", &1);
            set("ipv6/conf/all/forwarding", &1);
        }
        Role::Server => {
            set("ipv4/tcp_syncookies", &u8::from(options.syncookies));
            set("core/somaxconn", &options.somaxconn);
            set("ipv4/tcp_max_syn_backlog", &options.syn_backlog);
            set("ipv4/ip_local_port_range", &"10240 65535");
            set("ipv4/tcp_tw_reuse", &1);
        }
    }
    inside(id, role, &["sh"], &script).map(drop)
}

fn offloads(id: &str, role: Role, name: &str, options: &NetworkOptions) -> Result<()> {
    let state = |on: bool| if on { "on" } else { "off" };
    let segmentation = state(options.segmentation);
    let command = [
        "ethtool",
        "-K",
        name,
        "gro",
        state(options.gro && role != Role::Server),
        "tso",
        segmentation,
        "gso",
        segmentation,
    ];
    inside(id, role, &command, "").map(drop)
}

/// The programs without which no lab can be made.
pub(crate) fn check_programs() -> Result<()> {
    for name in ["ip", "nsenter", "taskset", "ethtool", "sh", "mount", "umount"] {
        os::find_program(name)?;
    }
    if rustix::process::geteuid().is_root() {
        return Ok(());
    }
    Err(LabError::Missing("root: namespaces, cgroups and mounts need it".into()))
}
