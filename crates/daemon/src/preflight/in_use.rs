// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Which addresses are taken already, by whoever it is. What cannot be looked at is taken for free: opening the socket
//! will say.

use std::fs;
use std::net::{IpAddr, SocketAddr};
use std::path::{Path, PathBuf};
use tidegate_config::Endpoint;
use tidegate_sense::{Listener, ListenerSource};

/// Of a Unix socket that listens (__SO_ACCEPTCON, linux/net.h), in /proc/net/unix.
const ACCEPTS: u32 = 1 << 16;
/// Of a Unix socket for datagrams (SOCK_DGRAM), there.
const DATAGRAMS: u32 = 2;

/// The sockets of the daemon's network namespace that something can be sent to.
pub(super) struct Used {
    tcp: Vec<Listener>,
    udp: Vec<SocketAddr>,
    unix: Vec<PathBuf>,
}

impl Used {
    pub(super) fn look(listeners: &mut dyn ListenerSource, proc: &Path) -> Self {
        let mut tcp = Vec::new();
        // That they cannot be looked at was told already.
        let _ = listeners.list(&mut tcp);
        let table = |name| fs::read_to_string(proc.join("net").join(name)).unwrap_or_default();
        let udp = [table("udp"), table("udp6")];
        let udp = udp.iter().flat_map(|table| table.lines().filter_map(local)).collect();
        let unix = table("unix").lines().filter_map(path).collect();
        Self { tcp, udp, unix }
    }

    /// Whether somebody accepts connections there.
    pub(super) fn stream(&self, endpoint: &Endpoint) -> bool {
        let tcp = |to| self.tcp.iter().any(|of| meet(SocketAddr::new(of.address, of.port), to));
        self.taken(endpoint, tcp)
    }

    /// Whether somebody takes datagrams there.
    pub(super) fn datagrams(&self, endpoint: &Endpoint) -> bool {
        self.taken(endpoint, |to| self.udp.iter().any(|of| meet(*of, to)))
    }

    /// A path is taken whatever the kind of its socket is.
    fn taken(&self, endpoint: &Endpoint, by_ip: impl Fn(SocketAddr) -> bool) -> bool {
        match endpoint {
            Endpoint::Ip(to) => by_ip(*to),
            Endpoint::Unix(path) => self.unix.contains(path),
        }
    }
}

/// Whether two sockets cannot have these addresses at once.
fn meet(one: SocketAddr, other: SocketAddr) -> bool {
    let ip = |of: SocketAddr| of.ip().to_canonical();
    let any = ip(one).is_unspecified() || ip(other).is_unspecified();
    one.port() == other.port() && (any || ip(one) == ip(other))
}

/// The local address in a line of /proc/net/udp or udp6: words in the host's order of bytes, in hexadecimal.
fn local(line: &str) -> Option<SocketAddr> {
    let (address, port) = line.split_ascii_whitespace().nth(1)?.split_once(':')?;
    let word = |at: usize| {
        let digits = address.get(8 * at..8 * at + 8)?;
        u32::from_str_radix(digits, 16).ok().map(u32::to_ne_bytes)
    };
    let ip = match address.len() {
        8 => IpAddr::from(word(0)?),
        32 => {
            let mut bytes = [0; 16];
            for at in 0..4 {
                bytes[4 * at..4 * at + 4].copy_from_slice(&word(at)?);
            }
            IpAddr::from(bytes)
        }
        _ => return None,
    };
    Some(SocketAddr::new(ip, u16::from_str_radix(port, 16).ok()?))
}

/// The path in a line of /proc/net/unix, of a socket that somebody serves.
fn path(line: &str) -> Option<PathBuf> {
    let mut fields = line.splitn(7, ' ');
    let number = |field: Option<&str>| u32::from_str_radix(field?, 16).ok();
    let (flags, kind) = (number(fields.nth(3))?, number(fields.next())?);
    // Behind the state and the inode, which may be padded. Other names begin with @.
    let (_, path) = fields.nth(1)?.trim_start().split_once(' ')?;
    let path = Some(path).filter(|path| path.starts_with('/')).map(PathBuf::from);
    path.filter(|_| flags & ACCEPTS > 0 || kind == DATAGRAMS)
}
