// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A daemon whose interface is made anew (needs root): nothing is protected any more, and whoever
//! asks is told so.
#![allow(clippy::unwrap_used, reason = "helpers of tests, too")]

mod common;

use common::{ip, wait_for};
use std::io::{Read, Write};
use std::net::TcpStream;
use std::path::PathBuf;
use std::process::{Child, Command, Output, Stdio};
use tidegate_sense::in_namespace;

const HTTP: &str = "127.0.0.1:9911";

/// A namespace with one end of a veth pair and a daemon; gone when it is dropped.
struct World {
    name: String,
    directory: tempfile::TempDir,
    daemon: Option<Child>,
}

impl World {
    fn new(number: u32) -> Self {
        let name = format!("tgl{}-{number}", std::process::id());
        let world = Self { name, directory: tempfile::tempdir().unwrap(), daemon: None };
        std::fs::create_dir(world.file("bpf")).unwrap();
        let mount =
            Command::new("mount").args(["-t", "bpf", "bpf"]).arg(world.file("bpf")).status();
        assert!(mount.unwrap().success());
        ip(&format!("netns add {}", world.name));
        ip(&format!("-n {} link set lo up", world.name));
        world.plug();
        world
    }

    /// Makes the interface; anew, where it was deleted.
    fn plug(&self) {
        ip(&format!("-n {} link add v0 type veth peer name v1", self.name));
    }

    fn namespace(&self) -> PathBuf {
        PathBuf::from("/run/netns").join(&self.name)
    }

    fn file(&self, name: &str) -> PathBuf {
        self.directory.path().join(name)
    }

    fn run(&mut self, more: &[&str]) {
        let text = format!(
            "interfaces: [{{name: v0}}]\n\
             services:\n  shop: {{mode: enforce, listen: [\"*:8000\"]}}\n\
             daemon: {{socket: {}, http: \"{HTTP}\", pins: {}}}\n",
            self.file("socket").display(),
            self.file("bpf/tidegate").display()
        );
        std::fs::write(self.file("config"), text).unwrap();
        let mut command = Command::new("nsenter");
        command
            .arg(format!("--net={}", self.namespace().display()))
            .arg(env!("CARGO_BIN_EXE_tidegate"))
            .args(["run", "--config"])
            .arg(self.file("config"))
            .args(more)
            .stdout(Stdio::null())
            .stderr(Stdio::null());
        self.daemon = Some(command.spawn().unwrap());
        wait_for("ready", || self.get("/readyz").filter(|page| page.contains(" 200 ")));
    }

    /// A page of the daemon, with its head.
    fn get(&self, path: &str) -> Option<String> {
        let asked = in_namespace(Some(&self.namespace()), || {
            let mut stream = TcpStream::connect(HTTP)?;
            write!(stream, "GET {path} HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n")?;
            let mut page = String::new();
            stream.read_to_string(&mut page)?;
            Ok(page)
        });
        asked.ok()
    }

    /// The program as an operator calls it.
    fn tidegate(&self, arguments: &[&str]) -> Output {
        let mut command = Command::new(env!("CARGO_BIN_EXE_tidegate"));
        command.args(arguments).arg("--socket").arg(self.file("socket")).output().unwrap()
    }

    fn status(&self) -> String {
        String::from_utf8(self.tidegate(&["status"]).stdout).unwrap()
    }
}

impl Drop for World {
    fn drop(&mut self) {
        if let Some(mut daemon) = self.daemon.take() {
            let _ = daemon.kill();
            let _ = daemon.wait();
        }
        let _ = Command::new("ip").args(["netns", "del", &self.name]).status();
        let _ = Command::new("umount").arg(self.file("bpf")).status();
    }
}

#[test]
fn a_daemon_without_its_hooks_is_not_ready_and_refuses_to_call_a_reload_done() {
    let mut world = World::new(0);
    world.run(&[]);
    let config = world.file("config");
    let reload = || world.tidegate(&["reload", config.to_str().unwrap()]);
    assert!(reload().status.success());
    let attached = || {
        let page = world.get("/metrics").unwrap();
        let line = page.lines().find(|line| line.starts_with("tidegate_dataplane_attached{"));
        line.unwrap().to_owned()
    };
    assert!(attached().ends_with("layer=\"xdp\"} 1"), "{}", attached());

    ip(&format!("-n {} link del v0", world.name));
    world.plug();
    let page = wait_for("not ready", || world.get("/readyz").filter(|page| page.contains(" 503 ")));
    assert!(page.contains("interface v0 is not attached"), "{page}");
    assert!(attached().ends_with(" 0"), "{}", attached());
    // the look may have come while there was no interface at all
    wait_for("the new one", || world.status().contains("was made anew").then_some(()));
    let refused = reload();
    let text = String::from_utf8_lossy(&refused.stderr).into_owned();
    assert!(!refused.status.success() && text.contains("start it anew"), "{text}");
    let status = world.status();
    let warning =
        "hooks: interface v0: xdp (in) is not there any more: the interface was made anew";
    assert!(status.contains(warning) && status.contains("gave up its privileges"), "{status}");
}

#[test]
fn a_daemon_that_keeps_its_privileges_puts_its_hooks_on_again() {
    let mut world = World::new(1);
    world.run(&["--keep-privileges"]);
    let ready = |word: &'static str| {
        wait_for(word, || world.get("/readyz").filter(|page| page.contains(word)));
    };
    ip(&format!("-n {} link del v0", world.name));
    ready(" 503 ");
    assert!(world.status().contains("there is no such interface"), "{}", world.status());
    world.plug();
    ready(" 200 ");
    wait_for("no warning", || (!world.status().contains("hooks: ")).then_some(()));
}
