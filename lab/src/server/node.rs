// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Node.js with nothing but its own modules: `node:http`, `node:https` or `node:http2`.

use super::{Cost, CostKind, Server, listens, tls};
use crate::error::{LabError, Result};
use crate::lab::{Lab, START_LIMIT};
use crate::load::Transport;
use crate::os;
use tidegate_units::Nanos;
use tidegate_workload::Shape;

/// The server's program; its options are a JSON text in its first argument.
const SERVER_JS: &str = include_str!("../../js/server.js");
/// Cost of a request unless told otherwise.
const COST: Nanos = Nanos::from_millis(2);

/// How Node is set up. What is not said is Node's default: keep-alive of 5 s, a queue of 511.
#[derive(Clone, Debug, PartialEq)]
pub struct NodeOptions {
    /// Port, on all addresses of both families (default 80).
    pub port: u16,
    /// Which module serves (default: `node:http`).
    pub transport: Transport,
    /// Cost of a request (default 2 ms of CPU time); constant. Requests for `/poll` wait for
    /// [`NodeOptions::poll`] instead.
    pub cost: Cost,
    /// How long a long poll stays open (default 60 s).
    pub poll: Nanos,
}

impl Default for NodeOptions {
    fn default() -> Self {
        let poll = Nanos::from_secs(60);
        Self { port: 80, transport: Transport::Clear, cost: Cost::busy(COST), poll }
    }
}

impl NodeOptions {
    fn json(&self, files: Option<&tls::Certificate>) -> Result<String> {
        if self.cost.shape != Shape::Constant {
            return Err(LabError::Plan("the cost of a request to Node is constant".into()));
        }
        let kind = match self.cost.kind {
            CostKind::Busy => "busy",
            CostKind::Wait => "wait",
        };
        let json = serde_json::json!({
            "port": self.port,
            "http2": self.transport == Transport::H2,
            "certificate": files.map(|f| os::text(&f.certificate)),
            "key": files.map(|f| os::text(&f.key)),
            "kind": kind,
            "cost_us": self.cost.mean.0 as f64 / 1e3,
            "poll_ms": self.poll.0 as f64 / 1e6,
        });
        Ok(json.to_string())
    }
}

pub(crate) fn start(lab: &Lab, options: &NodeOptions) -> Result<Server> {
    let program = os::text(&os::find_program("node")?);
    let dir = lab.private_dir("node")?;
    let files = match options.transport {
        Transport::Clear => None,
        Transport::Tls | Transport::H2 => Some(tls::make(&dir)?),
    };
    let file = dir.join("server.js");
    os::write(&file, SERVER_JS)?;
    let (file, json) = (os::text(&file), options.json(files.as_ref())?);
    let process = lab.start_on_server("node", &[&program, &file, &json])?;
    let (pid, log, port) = (process.pid(), process.log().to_path_buf(), options.port);
    os::wait_or_fail("Node to listen", START_LIMIT, Some(&log), || listens(pid, port))?;
    Ok(Server { transport: options.transport, ..Server::new(process, port) })
}
