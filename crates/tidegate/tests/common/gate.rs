// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What tests of gateways share: a daemon without privileges, the examples of packaging/, an application.

#[path = "../../../gate/tests/port/mod.rs"]
mod port;

use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use tidegate_api::client::{Client, TIMEOUT_DEFAULT};
use tidegate_api::protocol::{Reply, Request};
use tidegate_model::snapshot::Snapshot;

/// Nobody: no user of a test machine, and no capabilities.
pub(crate) const NOBODY: u32 = 65_534;
/// Where `xtask setup` puts it.
pub(crate) const ENVOY: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../target/rivals/envoy");

pub(crate) fn free_port() -> SocketAddr {
    port::free_port()
}

/// An example of packaging/, in which each of these is something else.
pub(crate) fn example(file: &str, replace: &[(&str, String)]) -> String {
    let packaging = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../packaging");
    let mut text = fs::read_to_string(packaging.join(file)).unwrap();
    for (from, to) in replace {
        assert!(text.contains(from), "{file} has no {from}");
        text = text.replace(from, to);
    }
    text
}

/// The program, without privileges.
pub(crate) fn tidegate() -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_tidegate"));
    command.uid(NOBODY).env_remove("STATE_DIRECTORY").stdin(Stdio::null());
    command
}

/// Runs the daemon with this configuration; what it says goes to `log`.
pub(crate) fn run(config: &Path, log: &Path) -> Child {
    let log = fs::File::create(log).unwrap();
    let mut command = tidegate();
    command.args(["run", "--config"]).arg(config).stdout(Stdio::null()).stderr(log);
    command.spawn().unwrap()
}

/// What the daemon at this socket answers; `None`: nobody does.
pub(crate) fn ask(socket: &Path, request: &Request) -> Option<Reply> {
    Client::connect(socket, TIMEOUT_DEFAULT).ok()?.ask(request).ok()
}

pub(crate) fn status(socket: &Path) -> Option<Snapshot> {
    match ask(socket, &Request::Status {})? {
        Reply::Status { snapshot } => Some(*snapshot),
        other => panic!("{other:?}"),
    }
}

/// A server that calls `work` for each request, and says ok.
pub(crate) fn application(work: impl Fn() + Clone + Send + 'static) -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    std::thread::spawn(move || {
        while let Ok((stream, _)) = listener.accept() {
            let work = work.clone();
            std::thread::spawn(move || says_ok(stream, work));
        }
    });
    address
}

fn says_ok(mut stream: TcpStream, work: impl Fn()) {
    let mut reader = BufReader::new(stream.try_clone().unwrap());
    let mut line = String::new();
    while reader.read_line(&mut line).is_ok_and(|n| n > 0) {
        if line == "\r\n" {
            work();
            let response = b"HTTP/1.1 200 OK\r\nContent-Length: 3\r\n\r\nok\n";
            if stream.write_all(response).is_err() {
                return;
            }
        }
        line.clear();
    }
}
