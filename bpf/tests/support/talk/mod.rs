// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A conversation of a client with a server behind the request hooks, told packet by packet, in the
//! native build (tests/native/requests.c). Sequence numbers are told as distances: `c+1` is the
//! client's first byte, `s+1` the server's.

pub mod host;
mod show;

#[allow(unused_imports, reason = "one test reads segments")]
pub use show::{read as read_segment, tags};

use super::packet::{ACK, CLIENT4, CLIENT6, FIN, PSH, Packet, RST, SERVER4, SERVER6, SYN, eth};
use host::{Heard, Host, Run, Socket};
use std::fmt::Write as _;
use std::ops::{Add, AddAssign, Sub};

/// A sequence number: it wraps.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Seq(pub u32);

impl Add<u32> for Seq {
    type Output = Self;
    fn add(self, bytes: u32) -> Self {
        Self(self.0.wrapping_add(bytes))
    }
}

impl Sub<u32> for Seq {
    type Output = Self;
    fn sub(self, bytes: u32) -> Self {
        Self(self.0.wrapping_sub(bytes))
    }
}

impl AddAssign<u32> for Seq {
    fn add_assign(&mut self, bytes: u32) {
        *self = *self + bytes;
    }
}

/// Where the client's and the server's sequence numbers begin: near the wrap.
pub const CLIENT_ISN: Seq = Seq(0xffff_fff0);
pub const SERVER_ISN: Seq = Seq(0xffff_ffc0);

/// What a connection's packets look like.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Style {
    pub ipv6: bool,
    /// VLAN tags: none, a customer's, or behind a provider's.
    pub tags: u8,
    /// Time stamps: the client's value and what it echoes.
    pub stamps: Option<(u32, u32)>,
    /// The device completes the checksums.
    pub partial: bool,
    /// IP options of the client's.
    pub ip_options: bool,
    /// Where the server's socket is; `false`: on another host.
    pub router: bool,
    /// The server waits for data before it accepts (`TCP_DEFER_ACCEPT`).
    pub defer: bool,
    /// The server's stack keeps nothing of a SYN (cookies), and has yet to make the socket.
    pub cookie: bool,
}

/// A segment: its place and what it carries.
#[derive(Clone, Debug)]
pub struct Segment {
    pub seq: Seq,
    pub ack: Seq,
    pub flags: u8,
    pub data: Vec<u8>,
}

/// One connection, and what was said on it.
pub struct Talk<'a> {
    host: &'a mut Host,
    pub style: Style,
    pub port: u16,
    /// The next byte of each side, as it says itself.
    pub client: Seq,
    pub server: Seq,
    /// What the server's application has written, if its socket knows more than it sent.
    pub written: Option<Seq>,
    /// What the server's socket expects next, if that is not what comes.
    pub expected: Option<Seq>,
    /// Bytes of a frame that can be read without pulling.
    pub linear: u32,
    /// The packet of the conversation, and its helper call, that fails.
    pub fails: Option<(usize, u32)>,
    pub told: String,
    pub last: Heard,
    /// Every packet, and what became of it.
    pub heard: Vec<(Vec<u8>, Heard)>,
    /// The server's stack has what it needs to know its socket is gone.
    gone: bool,
}

impl<'a> Talk<'a> {
    pub fn new(host: &'a mut Host, style: Style) -> Self {
        Self {
            host,
            style,
            port: 40_000,
            client: CLIENT_ISN,
            server: SERVER_ISN,
            written: None,
            expected: None,
            linear: u32::MAX,
            fails: None,
            told: String::new(),
            last: Heard::default(),
            heard: Vec::new(),
            gone: false,
        }
    }

    /// The handshake.
    pub fn open(&mut self) -> &mut Self {
        self.syn().ack()
    }

    /// SYN and SYN-ACK.
    pub fn syn(&mut self) -> &mut Self {
        let syn = Segment { seq: self.client, ack: Seq(0), flags: SYN, data: vec![] };
        self.client_says(syn);
        self.client += 1;
        let flags = SYN | ACK;
        let syn_ack = Segment { seq: self.server, ack: self.client, flags, data: vec![] };
        self.server_says(syn_ack);
        self.server += 1;
        self
    }

    /// The client acknowledges all.
    pub fn ack(&mut self) -> &mut Self {
        let bare = self.client_segment(ACK, b"");
        self.client_says(bare)
    }

    pub fn client_segment(&self, flags: u8, data: &[u8]) -> Segment {
        Segment { seq: self.client, ack: self.server, flags, data: data.to_vec() }
    }

    pub fn server_segment(&self, flags: u8, data: &[u8]) -> Segment {
        Segment { seq: self.server, ack: self.client, flags, data: data.to_vec() }
    }

    /// The client sends the next bytes.
    pub fn asks(&mut self, data: &str) -> &mut Self {
        let segment = self.client_segment(ACK | PSH, data.as_bytes());
        self.client += data.len() as u32;
        self.client_says(segment)
    }

    /// The server sends the next bytes, and the client acknowledges them.
    pub fn answers(&mut self, data: &str) -> &mut Self {
        self.says(data).ack()
    }

    /// The server sends the next bytes.
    pub fn says(&mut self, data: &str) -> &mut Self {
        let segment = self.server_segment(ACK | PSH, data.as_bytes());
        self.server += data.len() as u32;
        self.server_says(segment)
    }

    /// The client ends its side.
    pub fn fin(&mut self) -> &mut Self {
        let fin = self.client_segment(ACK | FIN, b"");
        self.client += 1;
        self.client_says(fin)
    }

    /// The client has received the hook's answer: all bytes and its FIN.
    pub fn takes_answer(&mut self) -> &mut Self {
        let sent = self.heard.iter().rev().find_map(|(_, heard)| heard.sent.first());
        let Some(answer) = sent.map(|frame| show::read(frame)) else {
            return self; // a call was made to fail
        };
        self.server = answer.seq + (answer.data.len() as u32 + 1);
        self
    }

    /// What happened last, once more.
    pub fn note(&mut self, text: &str) -> &mut Self {
        let _ = writeln!(self.told, "  ({text})");
        self
    }

    /// Time passes.
    pub fn wait(&mut self, seconds: u64) -> &mut Self {
        self.host.wait(seconds);
        let _ = writeln!(self.told, "  ({seconds} s later)");
        self
    }

    /// The sweep.
    pub fn sweep(&mut self) -> &mut Self {
        self.forget(0)
    }

    /// The hooks may have missed packets of these services, bit by bit, and see all from now on.
    pub fn missed(&mut self, services: u32) -> &mut Self {
        self.host.listens();
        self.forget(services)
    }

    fn forget(&mut self, missed: u32) -> &mut Self {
        let (freed, kept) = self.host.sweep(missed);
        let _ = writeln!(self.told, "  (the sweep forgets {freed}, keeps {kept})");
        self
    }

    pub fn host(&mut self) -> &mut Host {
        self.host
    }

    fn dress(&self, client: bool, segment: &Segment) -> Packet {
        let packet = match self.style.tags {
            0 => eth(),
            1 => eth().vlan(10),
            _ => eth().svlan(20).vlan(10),
        };
        let ports = if client { (self.port, 80) } else { (80, self.port) };
        let options = client && self.style.ip_options;
        let ip = match (self.style.ipv6, client) {
            (false, true) if options => packet.ipv4().options(&[148, 4, 0, 0]),
            (false, true) => packet.ipv4(),
            (false, false) => packet.ipv4().from4(SERVER4.octets()).to4(CLIENT4.octets()),
            (true, true) => packet.ipv6(),
            (true, false) => packet.ipv6().from6(&SERVER6.to_string()).to6(&CLIENT6.to_string()),
        };
        let ip = if options && self.style.ipv6 { ip.ext(super::packet::DEST_OPTIONS) } else { ip };
        let mut tcp = ip.tcp(ports.0, ports.1).seq(segment.seq.0).flags(segment.flags);
        if segment.flags & ACK != 0 {
            tcp = tcp.ack(segment.ack.0);
        }
        if let Some((value, echo)) = self.style.stamps {
            let mut option = vec![1, 1, 8, 10];
            option.extend(value.to_be_bytes().into_iter().chain(echo.to_be_bytes()));
            tcp = tcp.options(&option);
        }
        if segment.data.is_empty() { tcp } else { tcp.data(&segment.data) }
    }

    /// A packet of the client's.
    pub fn client_says(&mut self, segment: Segment) -> &mut Self {
        let frame = self.dress(true, &segment).bytes();
        self.give(&frame, false)
    }

    /// A packet of the server's.
    pub fn server_says(&mut self, segment: Segment) -> &mut Self {
        let frame = self.dress(false, &segment).bytes();
        self.give(&frame, true)
    }

    /// A frame as it is.
    pub fn give(&mut self, frame: &[u8], egress: bool) -> &mut Self {
        let said = show::read(frame);
        self.host.socket(self.socket(&said));
        let data = frame.len() - said.data.len();
        let tcp = data - said.header;
        let run = Run {
            linear: self.linear,
            tail_min: if self.style.partial { tcp as u32 + 18 } else { 0 },
            fail_at: self.fails.filter(|(at, _)| *at == self.heard.len()).map_or(0, |(_, n)| n),
        };
        self.last = self.host.packet(frame, egress, run);
        let reset =
            self.last.passed(frame).is_some_and(|frame| show::read(&frame).flags & RST != 0);
        self.gone |= reset && !egress;
        self.heard.push((frame.to_vec(), self.last.clone()));
        self.tell(frame, egress);
        self
    }

    /// The socket that a packet of the client's meets.
    fn socket(&self, said: &show::Said) -> Socket {
        let state = match (self.style.router, self.gone || said.flags & SYN != 0) {
            (true, _) => 0,
            (false, true) => 10, // the listener
            (false, false) if self.style.cookie => 10,
            // the connection is a request until the first data
            (false, false) if self.style.defer && said.seq == CLIENT_ISN + 1 => 12,
            (false, false) => 1,
        };
        Socket {
            state,
            next: self.expected.unwrap_or(said.seq).0,
            written: self.written.unwrap_or(self.server).0,
            received: said.seq.0.wrapping_sub(CLIENT_ISN.0.wrapping_add(1)),
            client_isn: CLIENT_ISN.0,
            server_isn: SERVER_ISN.0,
        }
    }

    fn tell(&mut self, frame: &[u8], egress: bool) {
        let who = if egress { "server" } else { "client" };
        let _ = writeln!(self.told, "  {who}  {}", show::segment(frame));
        let partial = self.style.partial;
        for sent in self.last.sent.iter().filter(|_| !egress) {
            let _ = writeln!(self.told, "      → client  {}", show::answer(sent, partial));
        }
        match self.last.passed(frame) {
            Some(same) if same == frame => {}
            Some(other) => {
                let _ = writeln!(self.told, "      → server  {}", show::answer(&other, partial));
            }
            None if self.last.action == 7 => {}
            None => self.told.push_str("      dropped\n"),
        }
        let state = self.last.words();
        if !state.is_empty() {
            let _ = writeln!(self.told, "      {state}");
        }
    }
}
