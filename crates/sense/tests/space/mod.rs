// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A network namespace with a veth pair, what is sent in there, and its queues as `tc` shows them.

use std::net::UdpSocket;
use std::path::PathBuf;
use std::process::Command;
use tidegate_sense::in_namespace;

pub(crate) const PACKET: usize = 1000;
/// As the qdisc counts it: IP, UDP and the link's header.
pub(crate) const PACKET_WIRE: f64 = 1042.0;

/// Runs a command, which must succeed; what it printed.
pub(crate) fn run(command: &str) -> String {
    let words: Vec<&str> = command.split_whitespace().collect();
    let output = Command::new(words[0]).args(&words[1..]).output().unwrap();
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(output.status.success(), "{command}: {said}");
    String::from_utf8(output.stdout).unwrap()
}

/// A network namespace that is removed by drop. Its v0 has 192.0.2.1, and its v1 takes all that v0 sends.
pub(crate) struct Namespace(String);

impl Namespace {
    pub(crate) fn new(name: &str) -> Self {
        Self::with_queues(name, 1)
    }

    /// v0 can have so many queues.
    pub(crate) fn with_queues(name: &str, queues: u32) -> Self {
        let name = format!("tidegate-sense-{name}-{}", std::process::id());
        run(&format!("ip netns add {name}"));
        let made = Self(name);
        let each = format!("numtxqueues {queues} numrxqueues {queues}");
        made.run(&format!("ip link add v0 {each} type veth peer name v1 {each}"));
        // Nothing but what the test sends.
        made.run("ip link set v0 addrgenmode none");
        made.run("ip link set v1 addrgenmode none");
        made.run("ip address add 192.0.2.1/24 dev v0");
        made.run("ip link set v1 up");
        made.run("ip link set v0 up");
        made.run("ip neighbour add 192.0.2.2 lladdr 02:00:00:00:00:02 nud permanent dev v0");
        made
    }

    pub(crate) fn run(&self, command: &str) -> String {
        run(&format!("ip netns exec {} {command}", self.0))
    }

    pub(crate) fn path(&self) -> PathBuf {
        PathBuf::from("/run/netns").join(&self.0)
    }

    pub(crate) fn sender(&self) -> UdpSocket {
        self.flows("192.0.2.1", "192.0.2.2", 1).remove(0)
    }

    /// Sockets from so many ports of one address to another.
    pub(crate) fn flows(&self, from: &str, to: &str, count: usize) -> Vec<UdpSocket> {
        let bind = || (0..count).map(|_| UdpSocket::bind((from, 0))).collect();
        let flows: Vec<UdpSocket> = in_namespace(Some(&self.path()), bind).unwrap();
        flows.iter().for_each(|flow| flow.connect((to, 9)).unwrap());
        flows
    }

    pub(crate) fn queues(&self, interface: &str) -> Vec<Queue> {
        queues(&self.run(&format!("tc -s qdisc show dev {interface}")))
    }
}

impl Drop for Namespace {
    fn drop(&mut self) {
        let _ = Command::new("ip").args(["netns", "delete", &self.0]).status();
    }
}

pub(crate) fn fill(sender: &UdpSocket, packets: usize) {
    for _ in 0..packets {
        // A full queue may say so.
        let _ = sender.send(&[0; PACKET]);
    }
}

/// A qdisc as `tc -s qdisc show` prints it; numbers are packets.
#[derive(Debug)]
pub(crate) struct Queue {
    pub(crate) kind: String,
    /// `root`, or where it hangs (`1:2`).
    pub(crate) parent: String,
    pub(crate) sent: u32,
    pub(crate) dropped: u32,
    pub(crate) waiting: u32,
}

pub(crate) fn queues(printed: &str) -> Vec<Queue> {
    let mut found = Vec::new();
    for line in printed.lines() {
        let words: Vec<&str> = line.split_whitespace().collect();
        let number = |at: usize| -> u32 {
            words[at].trim_matches(|c: char| !c.is_ascii_digit()).parse().unwrap()
        };
        match (words.as_slice(), found.last_mut()) {
            (["qdisc", kind, _handle, rest @ ..], _) => {
                let parent = match rest {
                    ["parent", parent, ..] => parent,
                    _ => "root",
                };
                let (kind, parent) = ((*kind).to_owned(), parent.to_owned());
                found.push(Queue { kind, parent, sent: 0, dropped: 0, waiting: 0 });
            }
            // Sent 0 bytes 0 pkt (dropped 0, overlimits 0 requeues 0)
            (["Sent", ..], Some(queue)) => (queue.sent, queue.dropped) = (number(3), number(6)),
            // backlog 0b 0p requeues 0
            (["backlog", ..], Some(queue)) => queue.waiting = number(2),
            _ => {}
        }
    }
    found
}
