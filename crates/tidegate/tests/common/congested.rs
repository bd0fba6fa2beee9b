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
use std::fs;
use std::net::{TcpListener, UdpSocket};
use std::process::Command;
use std::time::Duration;
use tidegate_sense::in_namespace;
use tidegate_units::{Clock, MonotonicClock};

/// Connections per second that the server takes.
pub(crate) const TAKES: u64 = 20;
/// Datagrams of 1,000 bytes per second: 1.6 times what the link carries.
pub(crate) const DATAGRAMS: u64 = 400;
/// Most that a sender that was held up makes good at once.
const AT_ONCE: u64 = 40;

/// The namespaces, certificates, keys; all gone when it is dropped.
pub(crate) struct World {
    pub(crate) star: Star,
    net: u8,
    /// Datagrams per second that the server says it takes.
    datagrams: Option<u64>,
    _listener: TcpListener,
}

impl World {
    /// With namespaces of this prefix, and addresses of this second byte.
    pub(crate) fn new(prefix: &str, net: u8, datagrams: Option<u64>) -> Self {
        let star = Star::new(prefix, net, "r", &["c", "s"]);
        let target = target(net);
        let shaped = "qdisc add dev v1 root tbf rate 2mbit burst 5kb limit 50kb";
        star.inside("r", &["sh", "-c", &format!("tc {shaped}")]);
        let bind = || TcpListener::bind(&target);
        let listener = in_namespace(Some(&star.namespace("s")), bind).unwrap();
        let authority = Authority::new(&star.path("."));
        ["r", "s"].iter().for_each(|host| authority.sign(&star.path("."), host, host));
        for holder in ["operator", "holder"] {
            let key = KeyPair::generate_for(&PKCS_ED25519).unwrap();
            fs::write(star.path(&format!("{holder}.key")), key.serialize_pem()).unwrap();
            fs::write(star.path(&format!("{holder}.pub")), key.public_key_pem()).unwrap();
        }
        let mut grants = Command::new(env!("CARGO_BIN_EXE_tidegate"));
        grants.args(["grants", "issue", "--kind", "rate", "--waive-staging"]);
        if datagrams.is_some() {
            grants.args(["--kind", "datagrams"]);
        }
        grants.args(["--holder", "spiffe://example.org/s", "--scope", &target]);
        grants.arg("--operator-key").arg(star.path("operator.key"));
        let grant = grants.arg("--holder-key").arg(star.path("holder.pub")).output().unwrap();
        assert!(grant.status.success(), "{grant:?}");
        fs::write(star.path("grant"), grant.stdout).unwrap();
        Self { star, net, datagrams, _listener: listener }
    }

    fn start(&self, host: &str, interfaces: &str, service: &str, cluster: &str) -> Daemon {
        let above = format!(
            "interfaces: [{{name: v0, attach: tcx}}{interfaces}]\nservices:\n  shop: {service}\n"
        );
        self.star.start(host, &above, cluster, ".")
    }

    pub(crate) fn router(&self) -> Daemon {
        let target = target(self.net);
        let [operator, grant] = ["operator.pub", "grant"].map(|file| self.star.path(file));
        let cluster = format!(
            "  listen: 0.0.0.0:7416\n  grants: {{operator: {}, files: [{}]}}\n  peers:\n    \
             s: {{identity: spiffe://example.org/s, services: [shop], limits_when_congested: [\"{target}\"]}}\n",
            operator.display(),
            grant.display()
        );
        let service =
            format!("{{mode: enforce, listen: [\"{target}\"], control: {{min_rate: 5}}}}");
        self.start("r", ", {name: v1, side: servers}", &service, &cluster)
    }

    pub(crate) fn server(&self) -> Daemon {
        let (net, target) = (self.net, target(self.net));
        let [key, grant] = ["holder.key", "grant"].map(|file| self.star.path(file));
        let cluster = format!(
            "  signing: {{key: {}, grant: {}}}\n  report_to:\n    r: {{address: \"10.{net}.1.1:7416\", \
             identity: spiffe://example.org/r, services: [shop], \
             limits: [{{service: shop, scope: \"{target}\", when: congested}}]}}\n",
            key.display(),
            grant.display()
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
        let (mut socket, net) = (None, self.net);
        load(&self.star, DATAGRAMS, move || {
            let bind = || UdpSocket::bind(format!("10.{net}.0.2:0")).unwrap();
            let socket = socket.get_or_insert_with(bind);
            let _ = socket.send_to(&[0; 1000], format!("10.{net}.1.2:{port}"));
        })
    }
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
