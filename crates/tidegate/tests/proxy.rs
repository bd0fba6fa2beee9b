// SPDX-License-Identifier: Apache-2.0 OR MIT
//! tidegate as the proxy itself, with the configuration of packaging/, the real curl and a daemon without
//! privileges. Only loopback is used.
//!
//! ```text
//!   curl ─TLS, HTTP/2─► tidegate ─HTTP/1.1─► application
//! ```
#![allow(clippy::unwrap_used, reason = "helpers of tests, too")]

mod common;

use common::gate::{self, application, example, free_port};
use common::wait_for;
use rustix::process::{Pid, Signal, kill_process};
use std::fs;
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::os::unix::fs::PermissionsExt;
use std::process::{Child, Command};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use tidegate_api::protocol::{Reply, Request};
use tidegate_model::snapshot::Snapshot;

struct World {
    dir: tempfile::TempDir,
    daemons: Vec<Child>,
    front: SocketAddr,
}

impl World {
    /// With this `control` of the service.
    fn new(control: &str) -> Self {
        let dir = tempfile::tempdir().unwrap();
        fs::set_permissions(dir.path(), fs::Permissions::from_mode(0o777)).unwrap();
        let front = free_port();
        let path = |file: &str| dir.path().join(file).display().to_string();
        let made = rcgen::generate_simple_self_signed(["shop.example".to_owned()]).unwrap();
        fs::write(path("shop.pem"), made.cert.pem()).unwrap();
        fs::write(path("shop.key"), made.signing_key.serialize_pem()).unwrap();
        let text = example(
            "proxy.yaml",
            &[
                ("mode: shadow", format!("mode: enforce\n    control: {control}")),
                ("0.0.0.0:443", front.to_string()),
                ("/etc/tidegate/shop.pem", path("shop.pem")),
                ("/etc/tidegate/shop.key", path("shop.key")),
                ("127.0.0.1:8080", application(|| ()).to_string()),
            ],
        );
        let daemon = format!("daemon: {{socket: {}, http: off}}\n", path("control.sock"));
        fs::write(dir.path().join("proxy.yaml"), text + &daemon).unwrap();
        let mut world = Self { dir, daemons: Vec::new(), front };
        world.start();
        world
    }

    /// One daemon more.
    fn start(&mut self) {
        let log = self.dir.path().join(format!("log{}", self.daemons.len()));
        self.daemons.push(gate::run(&self.dir.path().join("proxy.yaml"), &log));
        let pid = self.daemons.last().unwrap().id();
        wait_for("the proxy is served", || {
            let Reply::Pong { pid: of, .. } = self.ask(&Request::Ping {})? else { return None };
            let gateways = self.status()?.gateways?.gateways;
            (of == pid && gateways.iter().all(|gateway| gateway.problem.is_empty())).then_some(())
        });
    }

    fn ask(&self, request: &Request) -> Option<Reply> {
        gate::ask(&self.dir.path().join("control.sock"), request)
    }

    fn status(&self) -> Option<Snapshot> {
        gate::status(&self.dir.path().join("control.sock"))
    }

    /// The head of the response and its body, in HTTP/2; what curl says where there is none.
    fn curl(&self) -> Result<String, String> {
        let port = self.front.port();
        let output = Command::new("curl")
            .args([
                "--silent",
                "--show-error",
                "--include",
                "--http2",
                "--max-time",
                "20",
                "--cacert",
            ])
            .arg(self.dir.path().join("shop.pem"))
            .args([
                "--resolve",
                &format!("shop.example:{port}:127.0.0.1"),
                &format!("https://shop.example:{port}/"),
            ])
            .output()
            .unwrap();
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        if output.status.success() {
            Ok(text)
        } else {
            Err(String::from_utf8_lossy(&output.stderr).into())
        }
    }

    fn log(&self) -> String {
        let logs = (0..self.daemons.len()).map(|at| self.dir.path().join(format!("log{at}")));
        logs.map(|log| fs::read_to_string(log).unwrap_or_default()).collect()
    }
}

impl Drop for World {
    fn drop(&mut self) {
        for daemon in &mut self.daemons {
            let _ = daemon.kill();
            let _ = daemon.wait();
        }
    }
}

fn field<'a>(response: &'a str, name: &str) -> Option<&'a str> {
    response.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(": "))
}

#[test]
fn the_example_serves_refuses_and_explains() {
    let mut world = World::new("{name: fixed, rate: 1/s, burst: 5}");
    wait_for("the limit is in force", || {
        let service = world.status()?.services.into_iter().next()?;
        service.limits.rate.map(|_| ())
    });
    let responses: Vec<String> = (0..20).map(|_| world.curl().unwrap()).collect();
    let passed = responses.iter().filter(|r| r.starts_with("HTTP/2 200")).count();
    let refused: Vec<&String> = responses.iter().filter(|r| r.starts_with("HTTP/2 503")).collect();
    assert_eq!(passed + refused.len(), 20, "{}", world.log());
    assert!((2..=7).contains(&passed), "{passed} passed\n{}", world.log());
    let last = refused.last().unwrap();
    assert!(last.contains("temporary-reduced-capacity"), "{last}");
    let seconds: u64 = field(last, "retry-after").unwrap().parse().unwrap();
    assert!((1..=60).contains(&seconds));
    let id = field(last, "x-request-id").unwrap().to_owned();
    let samples = match world.ask(&Request::ExplainRequest { id }).unwrap() {
        Reply::ExplainRequest { samples } => samples,
        other => panic!("{other:?}"),
    };
    let sample = format!("{samples:?}");
    assert!(sample.contains("shop") && sample.contains("reject"), "{sample}");
    let snapshot = wait_for("all is counted", || {
        let snapshot = world.status()?;
        let counts = snapshot.services[0].counts.iter().map(|count| count.count).sum::<u64>();
        let completed = snapshot.gateways.as_ref()?.reports.completed;
        (completed == passed as u64 && counts == 20).then_some(snapshot)
    });
    assert_eq!(snapshot.services[0].signals.time.waiting.unwrap().value, 0);
    let proxy = snapshot.gateways.unwrap().gateways[0].proxy.unwrap();
    assert_eq!((proxy.malformed, proxy.unreachable, proxy.handshakes_failed), (0, 0, 0));

    // Killed, it serves nobody; started again, it serves all.
    world.daemons[0].kill().unwrap();
    world.daemons[0].wait().unwrap();
    assert!(world.curl().is_err());
    world.start();
    assert!(world.curl().unwrap().starts_with("HTTP/2 "), "{}", world.log());
}

/// An upgrade, a reload and a stop under load.
#[test]
fn an_upgrade_and_a_reload_fail_no_request() {
    let mut world = World::new("{name: default}");
    let (front, ending) = (world.front, Arc::new(AtomicBool::new(false)));
    let pem = world.dir.path().join("shop.pem");
    let asking: Vec<_> = (0..2)
        .map(|_| {
            let (ending, pem) = (Arc::clone(&ending), pem.clone());
            std::thread::spawn(move || {
                let (mut asked, mut failed) = (0, Vec::new());
                while !ending.load(Relaxed) {
                    let output = Command::new("curl")
                        .args([
                            "--silent",
                            "--show-error",
                            "--fail",
                            "--max-time",
                            "20",
                            "--cacert",
                        ])
                        .arg(&pem)
                        .args(["--resolve", &format!("shop.example:{}:127.0.0.1", front.port())])
                        .args([&format!("https://shop.example:{}/", front.port()); 3])
                        .output()
                        .unwrap();
                    asked += 1;
                    if !output.status.success() {
                        failed.push(String::from_utf8_lossy(&output.stderr).into_owned());
                    }
                }
                (asked, failed)
            })
        })
        .collect();
    world.start();
    wait_for("the first has ended", || world.daemons[0].try_wait().unwrap());
    kill_process(Pid::from_child(&world.daemons[1]), Signal::HUP).unwrap();
    wait_for("it goes on", || (world.status()?.gateways?.reports.completed > 20).then_some(()));
    ending.store(true, Relaxed);
    for asked in asking {
        let (asked, failed) = asked.join().unwrap();
        assert!(asked > 1 && failed.is_empty(), "{failed:?} of {asked}\n{}", world.log());
    }
    kill_process(Pid::from_child(&world.daemons[1]), Signal::TERM).unwrap();
    assert!(wait_for("it ends", || world.daemons[1].try_wait().unwrap()).success());
    assert!(TcpStream::connect(front).is_err());
}

#[test]
fn check_names_the_line_of_a_bad_certificate_and_of_a_port_in_use() {
    let dir = tempfile::tempdir().unwrap();
    fs::set_permissions(dir.path(), fs::Permissions::from_mode(0o777)).unwrap();
    let taken = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = taken.local_addr().unwrap();
    let text = example(
        "proxy.yaml",
        &[
            ("0.0.0.0:443", address.to_string()),
            ("/etc/tidegate/shop.pem", "/nowhere/shop.pem".into()),
        ],
    );
    fs::write(dir.path().join("proxy.yaml"), text).unwrap();
    let mut check = gate::tidegate();
    let output =
        check.current_dir(dir.path()).args(["check", "-c", "proxy.yaml"]).output().unwrap();
    let said = String::from_utf8_lossy(&[output.stdout, output.stderr].concat()).into_owned();
    assert!(!output.status.success());
    for line in [
        format!(
            "proxy.yaml:10:13: gateways.edge.listen: found {address}, where somebody listens already"
        ),
        "proxy.yaml:12:20: gateways.edge.tls.certificate: /nowhere/shop.pem: No such file".into(),
    ] {
        assert!(said.contains(&line), "{said}");
    }
}
