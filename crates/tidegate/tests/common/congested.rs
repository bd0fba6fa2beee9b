// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A congested router between a client and a server that may limit it.
//!
//! ```text
//!   c ───────── r: a router, tidegate on v0 ────── tbf 2 Mbit/s ── s: a server, tidegate
//!   10.N.0.2    10.N.0.1            10.N.1.1 v1                    10.N.1.2:8000
//! ```
#![allow(clippy::unwrap_used, reason = "helpers of tests")]

use super::authority::Authority;
use super::star::{Daemon, Load, Star};
use rcgen::{KeyPair, PKCS_ED25519};
use socket2::{Domain, Socket, Type};
use std::collections::VecDeque;
use std::fs;
use std::net::{SocketAddr, TcpListener, UdpSocket};
use std::process::Command;
use std::time::Duration;
use tidegate_sense::in_namespace;
use tidegate_units::{Clock, MonotonicClock};

/// Connections per second that the server takes.
pub(crate) const TAKES: u64 = 20;
/// Connections per second that come. A link of 2 Mbit/s drops a third of them.
const OFFERED: u64 = 120;
/// Connections that the client keeps open at once.
const KEPT: usize = 200;
/// Datagrams of 1,000 bytes per second: 1.6 times what the link carries.
pub(crate) const DATAGRAMS: u64 = 400;
/// Most that a sender that was held up makes good at once.
const AT_ONCE: u64 = 40;

/// The namespaces, certificates, keys; all gone when it is dropped.
pub(crate) struct World {
    pub(crate) star: Star,
    net: u8,
    /// The server's address.
    pub(crate) target: String,
    /// Datagrams per second that the server says it takes.
    datagrams: Option<u64>,
    /// Whether both hosts mark packets, and the router is a border to the client.
    marks: bool,
    /// Whether the router reads a list of grants that were taken back.
    revokes: bool,
    pub(crate) listener: TcpListener,
}

impl World {
    /// With namespaces of this prefix, and addresses of this second byte.
    pub(crate) fn new(prefix: &str, net: u8, datagrams: Option<u64>) -> Self {
        let star = Star::new(prefix, net, "r", &["c", "s"]);
        Self::of(star, net, target(net), datagrams)
    }

    /// The service has an address of IPv6: `fd00:N:1::2`. Sessions are over IPv4.
    #[allow(dead_code, reason = "not every program of tests needs it")]
    pub(crate) fn ipv6(prefix: &str, net: u8) -> Self {
        let star = Star::new(prefix, net, "r", &["c", "s"]);
        star.inside("r", &["sh", "-c", "echo 1 >/proc/sys/net/ipv6/conf/all/forwarding"]);
        for (i, host) in ["c", "s"].into_iter().enumerate() {
            for (side, device, last) in [("r", format!("v{i}"), 1), (host, "v0".to_owned(), 2)] {
                let add = format!("ip addr add fd00:{net}:{i}::{last}/64 dev {device} nodad");
                star.inside(side, &["sh", "-c", &add]);
            }
            let way = format!("ip -6 route add default via fd00:{net}:{i}::1");
            star.inside(host, &["sh", "-c", &way]);
        }
        Self::of(star, net, format!("[fd00:{net}:1::2]:8000"), None)
    }

    fn of(star: Star, net: u8, target: String, datagrams: Option<u64>) -> Self {
        let shaped = "qdisc add dev v1 root tbf rate 2mbit burst 5kb limit 50kb";
        star.inside("r", &["sh", "-c", &format!("tc {shaped}")]);
        let bind = || TcpListener::bind(&target);
        let listener = in_namespace(Some(&star.namespace("s")), bind).unwrap();
        authorize(&star, (&["r", "s"], &target), datagrams.is_some());
        Self { star, net, target, datagrams, marks: false, revokes: false, listener }
    }

    pub(crate) fn marking(self) -> Self {
        Self { marks: true, ..self }
    }

    pub(crate) fn revoking(self) -> Self {
        Self { revokes: true, ..self }
    }

    fn start(&self, host: &str, interfaces: &str, service: &str, cluster: &str) -> Daemon {
        let border = self.marks && host == "r";
        let net = self.net;
        let option = if border {
            format!(", option: {{address: 10.{net}.1.1, one_in: 4}}")
        } else {
            String::new()
        };
        let marks = format!("in_band: {{router_bit: 1, server_bit: 2, mark: true{option}}}\n");
        let marks = if self.marks { marks } else { String::new() };
        let above = format!(
            "interfaces: [{{name: v0, attach: tcx, border: {border}}}{interfaces}]\n{marks}services:\n  shop: {service}\n"
        );
        self.star.start(host, &above, cluster, ".")
    }

    pub(crate) fn router(&self) -> Daemon {
        let target = &self.target;
        let mut cluster = limited_by(&self.star, target);
        if self.revokes {
            let list = format!("grants: {{revoked: {}, ", self.star.path("revoked").display());
            cluster = cluster.replace("grants: {", &list);
        }
        self.start("r", ", {name: v1, side: servers}", &looser(target), &cluster)
    }

    pub(crate) fn server(&self) -> Daemon {
        let (net, target) = (self.net, &self.target);
        let cluster = format!(
            "{}    r: {{address: \"10.{net}.1.1:7416\", identity: spiffe://example.org/r, services: [shop], \
             limits: [{{service: shop, scope: \"{target}\", when: congested}}]}}\n",
            limits(&self.star)
        );
        let takes = self.datagrams.map(|takes| format!("datagrams: {takes}, "));
        let service = format!(
            "{{mode: enforce, listen: [\"{target}\"], {}control: {{name: fixed, rate: {TAKES}}}}}",
            takes.unwrap_or_default()
        );
        self.start("s", "", &service, &cluster)
    }

    /// Datagrams of 1,000 bytes for a port of the server, more than the link carries.
    pub(crate) fn datagrams(&self, port: u16) -> Load {
        let net = self.net;
        datagrams(&self.star, format!("10.{net}.0.2:0"), format!("10.{net}.1.2:{port}"))
    }
}

/// Certificates for hosts; keys, and a grant for the server `s`: what it may limit for itself.
pub(crate) fn authorize(star: &Star, (hosts, target): (&[&str], &str), datagrams: bool) {
    let authority = Authority::new(&star.path("."));
    hosts.iter().for_each(|host| authority.sign(&star.path("."), host, host));
    for holder in ["operator", "holder"] {
        let key = KeyPair::generate_for(&PKCS_ED25519).unwrap();
        fs::write(star.path(&format!("{holder}.key")), key.serialize_pem()).unwrap();
        fs::write(star.path(&format!("{holder}.pub")), key.public_key_pem()).unwrap();
    }
    let mut grants = Command::new(env!("CARGO_BIN_EXE_tidegate"));
    grants.args(["grants", "issue", "--kind", "rate", "--waive-staging"]);
    if datagrams {
        grants.args(["--kind", "datagrams"]);
    }
    grants.args(["--holder", "spiffe://example.org/s", "--scope", target]);
    grants.arg("--operator-key").arg(star.path("operator.key"));
    let grant = grants.arg("--holder-key").arg(star.path("holder.pub")).output().unwrap();
    assert!(grant.status.success(), "{grant:?}");
    fs::write(star.path("grant"), grant.stdout).unwrap();
}

/// The section `cluster` of a router that `s` may limit while it is congested.
pub(crate) fn limited_by(star: &Star, target: &str) -> String {
    let [operator, grant] = ["operator.pub", "grant"].map(|file| star.path(file));
    format!(
        "  listen: 0.0.0.0:7416\n  grants: {{operator: {}, files: [{}]}}\n  peers:\n    \
         s: {{identity: spiffe://example.org/s, services: [shop], limits_when_congested: [\"{target}\"]}}\n",
        operator.display(),
        grant.display()
    )
}

/// The service on a router, which has no limit of its own.
pub(crate) fn looser(target: &str) -> String {
    format!("{{mode: enforce, listen: [\"{target}\"], control: {{min_rate: 5}}}}")
}

/// The section `cluster` of the server, up to the routers that it limits.
pub(crate) fn limits(star: &Star) -> String {
    let [key, grant] = ["holder.key", "grant"].map(|file| star.path(file));
    format!("  signing: {{key: {}, grant: {}}}\n  report_to:\n", key.display(), grant.display())
}

/// Datagrams of 1,000 bytes that the client sends.
pub(crate) fn datagrams(star: &Star, from: String, to: String) -> Load {
    let mut socket = None;
    load(star, DATAGRAMS, move || {
        let socket = socket.get_or_insert_with(|| UdpSocket::bind(&from).unwrap());
        let _ = socket.send_to(&[0; 1000], &to);
    })
}

/// Connections of the client, of which it waits for none.
pub(crate) fn connections(star: &Star, server: &str) -> Load {
    let (mut open, server) = (VecDeque::new(), server.parse::<SocketAddr>().unwrap());
    load(star, OFFERED, move || {
        let socket = Socket::new(Domain::for_address(server), Type::STREAM, None).unwrap();
        socket.set_nonblocking(true).unwrap();
        // In progress is as good as refused: the router counts.
        let _ = socket.connect(&server.into());
        open.push_back(socket);
        if open.len() > KEPT {
            open.pop_front();
        }
    })
}

/// The server's address.
pub(crate) fn target(net: u8) -> String {
    format!("10.{net}.1.2:8000")
}

/// What the client does so often a second, late or not.
pub(crate) fn load(star: &Star, per_second: u64, mut each: impl FnMut() + Send + 'static) -> Load {
    Load::start(star, "c", move |goes_on| {
        let (begin, mut sent) = (MonotonicClock.now(), 0);
        while goes_on() {
            let spent = MonotonicClock.now().since(begin).as_secs_f64();
            let due = (spent * per_second as f64) as u64;
            sent = sent.max(due.saturating_sub(AT_ONCE));
            for _ in sent..due {
                each();
            }
            sent = sent.max(due);
            std::thread::sleep(Duration::from_millis(5));
        }
        Ok(())
    })
}
