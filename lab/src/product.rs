// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The product under test, as a process: started beside the server, asked over its control socket,
//! ended by a signal or without one.

use crate::error::{LabError, Result};
use crate::lab::{Lab, START_LIMIT};
use crate::os;
use crate::process::Managed;
use crate::topology::SERVER_INTERFACE;
use rustix::process::Signal;
use serde_json::{Value, json};
use std::path::{Path, PathBuf};
use std::time::Duration;
use tidegate_api::client::Client;
use tidegate_api::protocol::{Reply, Request};
use tidegate_units::Nanos;

/// How long one question to the daemon may take.
const ASK_LIMIT: Duration = Duration::from_secs(5);
/// How long the daemon may take to end after SIGTERM.
const STOP_LIMIT: Nanos = Nanos::from_secs(10);

/// A configuration for the product in a lab, as JSON (which is YAML, too).
///
/// It names what belongs to the lab: the server's interface, a private directory of pins, a private
/// control socket. Everything of the product that is not said is its default.
#[derive(Clone, Debug, PartialEq)]
pub struct ProductConfig {
    /// The services by name, as in the product's configuration file.
    pub services: Value,
    /// How to attach: `auto`, `xdp`, `xdp-generic` or `tcx`.
    pub attach: String,
    /// Other top-level keys (`exempt`, `replies` …); an object.
    pub others: Value,
}

impl ProductConfig {
    /// One enforced service with the product's defaults, on these listen addresses. At native XDP:
    /// `auto` takes tcx on veth, because it cannot know that the peer has GRO on, as in the lab.
    #[must_use]
    pub fn one(name: &str, listen: &[String]) -> Self {
        let services = json!({name: {"mode": "enforce", "listen": listen}});
        Self { services, attach: "xdp".to_owned(), others: json!({}) }
    }

    fn text(&self, lab: &Lab, socket: &Path) -> String {
        let mut whole = json!({
            "interfaces": [{"name": SERVER_INTERFACE, "attach": self.attach}],
            "services": self.services,
            "daemon": {"socket": socket, "http": "127.0.0.1:7118", "pins": lab.pins()},
        });
        let (Some(map), Some(others)) = (whole.as_object_mut(), self.others.as_object()) else {
            return whole.to_string();
        };
        for (key, value) in others {
            match (map.get_mut(key).and_then(Value::as_object_mut), value.as_object()) {
                // `daemon` may be completed; what the lab says of it stays.
                (Some(own), Some(more)) => {
                    for (k, v) in more {
                        own.entry(k).or_insert_with(|| v.clone());
                    }
                }
                _ => drop(map.insert(key.clone(), value.clone())),
            }
        }
        whole.to_string()
    }
}

/// A running daemon; killed by drop.
#[derive(Debug)]
pub struct Product {
    process: Managed,
    socket: PathBuf,
    config: PathBuf,
}

/// Starts `program run --config FILE` in the server's namespace and waits until it answers. Beside
/// a running one it takes over: both live in the same lab and use the same pins and socket.
pub(crate) fn start(lab: &Lab, program: &Path, config: &ProductConfig) -> Result<Product> {
    let socket = lab.dir().join("control.sock");
    let file = lab.private_dir("product")?.join("tidegate.yaml");
    os::write(&file, config.text(lab, &socket))?;
    start_with(lab, program, &file, &socket)
}

/// Starts the product with a configuration file that is there already.
pub(crate) fn start_with(lab: &Lab, program: &Path, file: &Path, socket: &Path) -> Result<Product> {
    start_as(lab, (program, None), file, socket)
}

/// The same as another user, without capabilities.
pub(crate) fn start_as(
    lab: &Lab,
    (program, user): (&Path, Option<u32>),
    file: &Path,
    socket: &Path,
) -> Result<Product> {
    let mut command = Vec::new();
    if let Some(id) = user {
        let ids = [format!("--reuid={id}"), format!("--regid={id}")];
        command.push(os::text(&os::find_program("setpriv")?));
        command.extend(ids);
        command.extend(["--clear-groups", "--no-new-privs"].map(str::to_owned));
    }
    command.extend(run(program, file));
    let words: Vec<&str> = command.iter().map(String::as_str).collect();
    ready(lab.start_product_process(&words)?, file, socket)
}

/// The product in another namespace than the server's.
pub(crate) fn start_in(
    lab: &Lab,
    net: String,
    program: &Path,
    (file, socket): (&Path, &Path),
) -> Result<Product> {
    let command = run(program, file);
    let words: Vec<&str> = command.iter().map(String::as_str).collect();
    ready(lab.start_product_process_in(net, &words)?, file, socket)
}

fn run(program: &Path, file: &Path) -> [String; 4] {
    [os::text(program), "run".into(), "--config".into(), os::text(file)]
}

/// Waits until it answers.
fn ready(process: Managed, file: &Path, socket: &Path) -> Result<Product> {
    let mut product = Product { process, socket: socket.to_path_buf(), config: file.to_path_buf() };
    let log = product.process.log().to_path_buf();
    // A taken-over daemon answers on the same socket until its successor is ready: the pid tells.
    let ready = os::wait_until(START_LIMIT, || product.answers() || !product.process.running());
    if ready && product.process.running() {
        return Ok(product);
    }
    let status = product.process.status().map_or("still starting".into(), |s| s.to_string());
    Err(LabError::Product(format!("not ready ({status}){}", os::log_tail(&log))))
}

impl Product {
    fn ask(&self, request: &Request) -> Result<Reply> {
        let client = Client::connect(&self.socket, ASK_LIMIT);
        let reply = client.and_then(|mut c| c.ask(request));
        reply.map_err(|e| LabError::Product(e.to_string()))
    }

    /// Whether this very process answers on the control socket.
    fn answers(&self) -> bool {
        matches!(self.ask(&Request::Ping {}), Ok(Reply::Pong { pid, .. }) if pid == self.process.pid())
    }

    /// The daemon's process.
    #[must_use]
    pub const fn process(&self) -> &Managed {
        &self.process
    }

    /// Its control socket.
    #[must_use]
    pub fn socket(&self) -> &Path {
        &self.socket
    }

    /// Its configuration file: to change it before a reload.
    #[must_use]
    pub fn config(&self) -> &Path {
        &self.config
    }

    /// Its snapshot, as `tidegate status -o json` shows it.
    ///
    /// # Errors
    /// When the daemon does not answer.
    pub fn status(&self) -> Result<Value> {
        match self.ask(&Request::Status {})? {
            Reply::Status { snapshot } => {
                serde_json::to_value(*snapshot).map_err(|e| LabError::Product(e.to_string()))
            }
            other => Err(LabError::Product(format!("status was answered by {other:?}"))),
        }
    }

    /// The kill switch: on lets everything pass.
    ///
    /// # Errors
    /// When the daemon does not do it.
    pub fn release(&self, on: bool) -> Result<()> {
        self.ask(&Request::Release { on, lasts: None }).map(drop)
    }

    /// Stops the daemon's process in its tracks (SIGSTOP), or lets it go on (SIGCONT).
    ///
    /// # Errors
    /// When the kernel refuses.
    pub fn pause(&self, on: bool) -> Result<()> {
        let signal = if on { Signal::STOP } else { Signal::CONT };
        self.process.signal_now(signal)
    }

    /// Ends the daemon by SIGTERM and waits for it.
    ///
    /// # Errors
    /// When it does not end in time.
    pub fn stop(mut self) -> Result<()> {
        self.process.stop(Signal::TERM, STOP_LIMIT)
    }

    /// Kills the daemon without a word.
    ///
    /// # Errors
    /// When the kernel refuses, or the process outlives it.
    pub fn kill9(mut self) -> Result<()> {
        self.process.stop(Signal::KILL, STOP_LIMIT)
    }

    /// The same, and what is known of it stays, so that another can be started in its place.
    ///
    /// # Errors
    /// When the kernel refuses, or the process outlives it.
    pub fn crash(&mut self) -> Result<()> {
        self.process.stop(Signal::KILL, STOP_LIMIT)
    }

    /// Ends the daemon as a supervisor does that is about to start it again (SIGUSR2): what is
    /// attached stays.
    ///
    /// # Errors
    /// When it does not end in time.
    pub fn end_for_restart(&mut self) -> Result<()> {
        self.process.stop(Signal::USR2, STOP_LIMIT)
    }

    /// Waits for the daemon to end by itself, as after a take-over.
    ///
    /// # Errors
    /// When it still runs after `limit`.
    pub fn wait_end(mut self, limit: Nanos) -> Result<()> {
        let log = self.process.log().to_path_buf();
        os::wait_or_fail("the daemon to end", limit, Some(&log), || !self.process.running())
    }
}
