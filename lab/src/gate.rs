// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The product as the gate of a proxy: no interfaces, no privileges, the configuration of
//! docs/gateways.md, and nothing said about the service.

use crate::error::{LabError, Result};
use crate::lab::{Lab, START_LIMIT};
use crate::load::Transport;
use crate::os;
use crate::product::{self, Product};
use crate::server::tls::Certificate;
use crate::server::{CADDY_REPORT, EdgeProxy, Server, listens, tls};
use serde_json::{Map, Value, json};
use std::os::unix::fs::chown;
use std::path::{Path, PathBuf};
use tidegate_units::Nanos;

/// Nobody: no user of a machine, and no capabilities.
pub(crate) const NOBODY: u32 = 65_534;

/// The two hosts of a cluster, and where the gate listens for the server's limits.
const SERVER: &str = "server";
const GATE: &str = "gate";
const PEERS: &str = "127.0.0.1:7416";

/// A running gate; killed by drop.
#[derive(Debug)]
pub struct Gate {
    /// The daemon.
    pub product: Product,
    /// Where the proxy asks.
    pub(crate) ask: PathBuf,
    /// Where it reports.
    pub(crate) report: PathBuf,
}

/// Who asks.
#[derive(Clone, Debug, PartialEq)]
pub enum GateProxy {
    /// A proxy that is started afterwards ([`Lab::start_edge`]).
    Edge(EdgeProxy),
    /// tidegate's own, in the same process.
    Own {
        /// Where it listens; no port below 1024, as nobody has no privileges.
        port: u16,
        /// Port of the server behind it.
        behind: u16,
        /// Its queue: how many wait, and for how long; none: nobody waits.
        queue: Option<(u32, Nanos)>,
        /// How clients speak; in TLS it offers both versions of HTTP.
        transport: Transport,
    },
}

impl GateProxy {
    /// tidegate's own proxy in front of a server.
    #[must_use]
    pub const fn own(
        port: u16,
        behind: &Server,
        queue: Option<(u32, Nanos)>,
        transport: Transport,
    ) -> Self {
        Self::Own { port, behind: behind.port, queue, transport }
    }

    /// The certificate of tidegate's own proxy, if it ends TLS.
    fn certificate(&self, dir: &Path) -> Result<Option<Certificate>> {
        let Self::Own { transport: Transport::Tls | Transport::H2, .. } = self else {
            return Ok(None);
        };
        let files = tls::make(dir)?;
        chown(&files.key, Some(NOBODY), None).map_err(LabError::io("give the gate its key"))?;
        Ok(Some(files))
    }
}

/// A gate as an operator's file says.
#[derive(Clone, Debug, PartialEq)]
pub struct GateOptions {
    /// Who asks.
    pub proxy: GateProxy,
    /// The services by name, as in the product's configuration file.
    pub services: Value,
    /// The routes to them.
    pub routes: Value,
    /// Other top-level keys (`cluster` …); an object, empty for none.
    pub others: Map<String, Value>,
}

pub(crate) fn start(lab: &Lab, program: &Path, proxy: &EdgeProxy) -> Result<Gate> {
    // The five minutes of docs/gateways.md, enforced.
    let options = GateOptions {
        proxy: GateProxy::Edge(proxy.clone()),
        services: json!({"shop": {"mode": "enforce"}}),
        routes: json!([{"service": "shop"}]),
        others: Map::new(),
    };
    start_with(lab, program, &options)
}

pub(crate) fn start_with(lab: &Lab, program: &Path, options: &GateOptions) -> Result<Gate> {
    let dir = lab.private_dir("gate")?;
    chown(&dir, Some(NOBODY), Some(NOBODY)).map_err(LabError::io("give the gate its directory"))?;
    let (ask, report) = (dir.join("edge.sock"), dir.join("edge.log"));
    let (socket, file) = (dir.join("control.sock"), dir.join("tidegate.yaml"));
    let certificate = options.proxy.certificate(&dir)?;
    let text = config(options, certificate.as_ref(), (&ask, &report), &socket)?;
    os::write(&file, text.to_string())?;
    let product = product::start_as(lab, (program, Some(NOBODY)), &file, &socket)?;
    let gate = Gate { product, ask, report };
    os::wait_or_fail("the gate to serve", START_LIMIT, Some(gate.product.process().log()), || {
        gate.serves()
    })?;
    if let GateProxy::Own { port, .. } = options.proxy {
        let (pid, log) = (gate.product.process().pid(), gate.product.process().log());
        os::wait_or_fail("tidegate's proxy to listen", START_LIMIT, Some(log), || {
            listens(pid, port)
        })?;
    }
    Ok(gate)
}

/// The section `cluster` of two daemons: the server's, which limits services of the gate's by the name
/// that they have in both, and the gate's, which takes that.
pub(crate) fn cluster(lab: &Lab, services: &[&str]) -> Result<(Value, Value)> {
    let dir = lab.private_dir("peers")?;
    tls::make_peers(&dir, &[(SERVER, 0), (GATE, NOBODY)])?;
    let file = |name: &str, end: &str| os::text(&dir.join(format!("{name}.{end}")));
    let own = |name: &str| {
        json!({
            "certificate": file(name, "pem"),
            "key": file(name, "key"),
            "ca_file": file("authority", "pem"),
        })
    };
    let identity = |name: &str| format!("spiffe://example.org/{name}");
    let (mut server, mut gate) = (own(SERVER), own(GATE));
    let scope = |service: &&str| json!({"service": service, "scope": service});
    let limits: Vec<Value> = services.iter().map(scope).collect();
    server["report_to"] = json!({GATE: {
        "address": PEERS, "identity": identity(GATE), "services": services, "limits": limits,
    }});
    gate["listen"] = json!(PEERS);
    gate["peers"] = json!({SERVER: {
        "identity": identity(SERVER), "services": services, "limits": services,
    }});
    Ok((server, gate))
}

/// What the file says.
fn config(
    options: &GateOptions,
    certificate: Option<&Certificate>,
    (ask, report): (&Path, &Path),
    socket: &Path,
) -> Result<Value> {
    let unix = |path: &Path| format!("unix:{}", path.display());
    let edge = match &options.proxy {
        GateProxy::Edge(proxy) => {
            let Some(adapter) = proxy.adapter() else {
                return Err(LabError::Plan(format!("{proxy:?} cannot ask")));
            };
            let mut edge = json!({"adapter": adapter, "listen": unix(ask)});
            match proxy {
                // It reports where it asks.
                EdgeProxy::Envoy { .. } => {}
                EdgeProxy::Caddy => edge["completions"] = json!(CADDY_REPORT),
                _ => edge["completions"] = json!(unix(report)),
            }
            edge
        }
        GateProxy::Own { port, behind, queue, .. } => {
            let mut edge = json!({
                "adapter": "proxy",
                "listen": format!("0.0.0.0:{port}"),
                "upstream": {"servers": [format!("127.0.0.1:{behind}")]},
            });
            if let Some(files) = certificate {
                edge["tls"] = json!({"certificate": files.certificate, "key": files.key});
            }
            if let Some((length, wait)) = queue {
                let wait = format!("{}ms", wait.0 / 1_000_000);
                edge["queue"] = json!({"length": length, "longest_wait": wait});
            }
            edge
        }
    };
    let mut whole = json!({
        "services": options.services,
        "gateways": {"edge": edge},
        "daemon": {"socket": socket, "http": "off"},
    });
    whole["gateways"]["edge"]["routes"] = options.routes.clone();
    for (key, value) in &options.others {
        whole[key] = value.clone();
    }
    Ok(whole)
}

impl Gate {
    /// Whether all its listeners are open.
    fn serves(&self) -> bool {
        let Ok(status) = self.product.status() else { return false };
        let gateways = status.pointer("/gateways/gateways").and_then(Value::as_array);
        let open = |gateway: &Value| gateway["problem"].as_str().is_none_or(str::is_empty);
        gateways.is_some_and(|all| !all.is_empty() && all.iter().all(open))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What an operator says is in the file; Envoy has one address, the own proxy none but its own.
    #[test]
    fn the_configuration_is_that_of_the_documentation() {
        let of = |proxy: GateProxy| {
            let options = GateOptions {
                proxy,
                services: json!({"shop": {"mode": "enforce"}}),
                routes: json!([{"service": "shop"}]),
                others: Map::new(),
            };
            let paths = (Path::new("/x/a"), Path::new("/x/b"));
            let files = Certificate { certificate: "/x/d".into(), key: "/x/e".into() };
            config(&options, Some(&files), paths, Path::new("/x/c"))
        };
        let nginx = of(GateProxy::Edge(EdgeProxy::Nginx)).unwrap();
        assert_eq!(nginx["services"], json!({"shop": {"mode": "enforce"}}));
        assert_eq!(nginx["gateways"]["edge"]["completions"], json!("unix:/x/b"));
        assert_eq!(nginx["gateways"]["edge"]["routes"], json!([{"service": "shop"}]));
        let envoy = of(GateProxy::Edge(EdgeProxy::Envoy { program: "/x".into() })).unwrap();
        assert!(envoy["gateways"]["edge"].get("completions").is_none());
        let caddy = of(GateProxy::Edge(EdgeProxy::Caddy)).unwrap();
        assert_eq!(caddy["gateways"]["edge"]["completions"], json!("127.0.0.1:9471"));
        let (queue, transport) = (Some((20, Nanos::from_millis(1_500))), Transport::H2);
        let own = of(GateProxy::Own { port: 8_000, behind: 8_080, queue, transport }).unwrap();
        let tls = json!({"certificate": "/x/d", "key": "/x/e"});
        assert_eq!(own["gateways"]["edge"]["tls"], tls);
        let wanted = json!({"length": 20, "longest_wait": "1500ms"});
        assert_eq!(own["gateways"]["edge"]["queue"], wanted);
        assert!(of(GateProxy::Edge(EdgeProxy::Failsafe { program: "/x".into() })).is_err());
    }
}
