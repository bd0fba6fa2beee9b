// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A connection as both sides tell it, with sequence numbers that follow from what was said.

use super::connection::give;
use super::engine::Arrival;
use super::native::{How, NOW, Native, Signals};
use super::packet::{CLIENT4, FIN, PSH, Packet, RST, SERVER4, eth};
use super::reference::Socket;
use super::setup::{SECOND, Setup};
use std::cell::RefCell;
use std::rc::Rc;

/// A packet of a conversation: when, of the server's, its bytes.
#[derive(Clone, Debug)]
pub struct Told {
    pub at_ns: u64,
    pub egress: bool,
    pub frame: Vec<u8>,
}

/// A connection in the native tc program.
pub struct Dialog<'a> {
    pub native: &'a mut Native,
    /// What was said, for who wants to say it again.
    told: Rc<RefCell<Vec<Told>>>,
    port: u16,
    client: u32,
    server: u32,
    now: u64,
}

const MS: u64 = SECOND / 1000;

impl<'a> Dialog<'a> {
    /// A fresh table, and a connection whose handshake has ended.
    pub fn new(native: &'a mut Native, setup: &Setup) -> Self {
        Self::told(native, setup, Rc::default())
    }

    /// The same, and everything that is said is written down.
    pub fn told(native: &'a mut Native, setup: &Setup, told: Rc<RefCell<Vec<Told>>>) -> Self {
        native.set(setup);
        Self { native, told, port: 9_999, client: 0, server: 0, now: NOW }.next()
    }

    /// Another connection, which the server's stack has taken; what was learned from the ones before
    /// stays.
    pub fn next(self) -> Self {
        let mut next = self.crowded_out();
        next.taken();
        next
    }

    /// Another connection, for which the server's stack had no room when its handshake ended.
    pub fn crowded_out(mut self) -> Self {
        self.port += 1;
        (self.client, self.server) = (1_000, 5_000);
        self.give(false, |p| p.syn());
        self.client += 1;
        self.give(true, |p| p.syn());
        self.server += 1;
        self.ack();
        self
    }

    /// The server's stack acknowledges what was said: it has the connection.
    pub fn taken(&mut self) -> Signals {
        self.give(true, |p| p)
    }

    fn packet(&self, egress: bool) -> Packet {
        let (from, to) = if egress { (SERVER4, CLIENT4) } else { (CLIENT4, SERVER4) };
        let ports = if egress { (80, self.port) } else { (self.port, 80) };
        let (seq, ack) =
            if egress { (self.server, self.client) } else { (self.client, self.server) };
        let packet = eth().ipv4().from4(from.octets()).to4(to.octets()).tcp(ports.0, ports.1);
        if self.client == 1_000 { packet.seq(seq) } else { packet.seq(seq).ack(ack) }
    }

    fn give(&mut self, egress: bool, change: impl FnOnce(Packet) -> Packet) -> Signals {
        self.native.advance_to(self.now);
        let frame = change(self.packet(egress)).bytes();
        let signals = give(self.native, (&frame, egress), How::default()).signals;
        self.told.borrow_mut().push(Told { at_ns: self.now, egress, frame });
        signals
    }

    pub fn wait_ms(&mut self, ms: u64) -> &mut Self {
        self.now += ms * MS;
        self
    }

    pub fn ack(&mut self) -> Signals {
        self.give(false, |p| p)
    }

    /// The client says this.
    pub fn ask(&mut self, bytes: &[u8]) -> Signals {
        let signals = self.give(false, |p| p.flags(PSH).data(bytes));
        self.client += bytes.len() as u32;
        signals
    }

    /// The client says this, but has not seen the last `unseen` bytes of the server's.
    pub fn ask_behind(&mut self, bytes: &[u8], unseen: u32) -> Signals {
        let ack = self.server - unseen;
        let signals = self.give(false, |p| p.ack(ack).flags(PSH).data(bytes));
        self.client += bytes.len() as u32;
        signals
    }

    /// The client says again what it said last.
    pub fn ask_again(&mut self, bytes: &[u8]) -> Signals {
        let seq = self.client - bytes.len() as u32;
        self.give(false, |p| p.seq(seq).flags(PSH).data(bytes))
    }

    /// The client asks whether the server is there, with a byte that it has.
    pub fn probe(&mut self) -> Signals {
        let seq = self.client - 1;
        self.give(false, |p| p.seq(seq).data(b"\0"))
    }

    /// The server says this.
    pub fn say(&mut self, bytes: &[u8]) -> Signals {
        let signals = self.give(true, |p| p.flags(PSH).data(bytes));
        self.server += bytes.len() as u32;
        signals
    }

    /// The server says again what it said last.
    pub fn say_again(&mut self, bytes: &[u8]) -> Signals {
        let seq = self.server - bytes.len() as u32;
        self.give(true, |p| p.seq(seq).flags(PSH).data(bytes))
    }

    pub fn client_fin(&mut self) -> Signals {
        self.give(false, |p| p.flags(FIN))
    }

    pub fn server_fin(&mut self) -> Signals {
        self.give(true, |p| p.flags(FIN))
    }

    pub fn server_reset(&mut self) -> Signals {
        self.give(true, |p| p.flags(RST))
    }

    /// A RST so many bytes ahead of what the socket expects; its window has 1000.
    pub fn client_reset_ahead(&mut self, bytes: u32) -> Signals {
        self.native.advance_to(self.now);
        self.native.window(self.client.wrapping_sub(bytes), 1_000);
        let frame = self.packet(false).flags(RST).bytes();
        let arrival = Arrival { frame: &frame, socket: Socket::Established, loopback: false };
        self.native.run(&arrival, How::default()).signals
    }

    pub fn client_reset(&mut self) -> Signals {
        self.give(false, |p| p.flags(RST))
    }
}

/// A record of TLS: its type, its length, and zeros.
pub fn record(kind: u8, length: usize) -> Vec<u8> {
    let mut bytes = vec![kind, 3, 3, (length >> 8) as u8, length as u8];
    bytes.resize(5 + length, 0xee);
    bytes
}

/// A record of data in TLS 1.3 with so many bytes of content.
pub fn sealed(content: usize) -> Vec<u8> {
    record(23, content + 17)
}

/// A ClientHello that offers these protocols, padded to 500 bytes.
pub fn hello(alpn: &[&str]) -> Vec<u8> {
    let mut body = vec![1, 0, 0, 0, 3, 3];
    body.extend([7; 32]);
    body.push(32);
    body.extend([9; 32]);
    body.extend([0, 4, 0x13, 1, 0x13, 2, 1, 0]);
    let names: Vec<u8> =
        alpn.iter().flat_map(|name| [&[name.len() as u8], name.as_bytes()].concat()).collect();
    let mut extensions = vec![0x2a, 0x2a, 0, 0, 0, 11, 0, 2, 1, 0];
    if !alpn.is_empty() {
        extensions.extend([0, 16, 0, names.len() as u8 + 2, 0, names.len() as u8]);
        extensions.extend(&names);
    }
    let padding = 300;
    extensions.extend([0, 21, (padding >> 8) as u8, padding as u8]);
    extensions.extend(vec![0; padding]);
    body.extend((extensions.len() as u16).to_be_bytes());
    body.extend(&extensions);
    let length = body.len();
    body[2] = ((length - 4) >> 8) as u8;
    body[3] = (length - 4) as u8;
    let mut bytes = vec![22, 3, 1, (length >> 8) as u8, length as u8];
    bytes.extend(&body);
    bytes
}
