// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Facts about interfaces, for the check before attaching: by netlink, so that they are those of
//! the caller's network namespace (`/sys/class/net` shows the one in which /sys was mounted).

use netlink_sys::{Socket, SocketAddr, protocols::NETLINK_ROUTE};
use std::fs;
use std::io;
use std::path::Path;

/// What is known of an interface.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LinkFacts {
    /// Its name.
    pub name: String,
    /// Its number.
    pub index: u32,
    /// Largest packet in bytes, without the link's header.
    pub mtu: u32,
    /// Whether it is up.
    pub up: bool,
    /// What kind of virtual interface it is (`veth`, `bridge`, `vlan` …); `None` for hardware and
    /// for the loopback.
    pub kind: Option<String>,
    /// Driver of the device behind it, where there is one.
    pub driver: Option<String>,
    /// Number of the XDP program that is attached, native or generic.
    pub xdp_program: Option<u32>,
}

const MESSAGES_MAX: usize = 4096;
const RECEIVE_BYTES: usize = 64 * 1024;
/// linux/rtnetlink.h, linux/if_link.h, linux/if.h
const RTM_NEWLINK: u16 = 16;
const RTM_GETLINK: u16 = 18;
const NLM_F_REQUEST_DUMP: u16 = 0x301;
const NLMSG_ERROR: u16 = 2;
const NLMSG_DONE: u16 = 3;
const IFF_UP: u32 = 1;
const IFLA_IFNAME: u16 = 3;
const IFLA_MTU: u16 = 4;
const IFLA_LINKINFO: u16 = 18;
const IFLA_INFO_KIND: u16 = 1;
const IFLA_XDP: u16 = 43;
const IFLA_XDP_PROG_ID: u16 = 4;
const IFLA_PARENT_DEV_NAME: u16 = 56;
const IFLA_PARENT_DEV_BUS_NAME: u16 = 57;
/// Lengths of `nlmsghdr` and `ifinfomsg`.
const HEADER: usize = 16;

/// All interfaces of the caller's network namespace. `sys` is where /sys is (for the driver).
///
/// # Errors
/// When the kernel does not answer as expected.
pub fn links(sys: &Path) -> io::Result<Vec<LinkFacts>> {
    let mut socket = Socket::new(NETLINK_ROUTE)?;
    socket.bind_auto()?;
    socket.connect(&SocketAddr::new(0, 0))?;
    socket.set_non_blocking(true)?;
    let mut request = [0_u8; 2 * HEADER];
    request[0..4].copy_from_slice(&(2 * HEADER as u32).to_ne_bytes());
    request[4..6].copy_from_slice(&RTM_GETLINK.to_ne_bytes());
    request[6..8].copy_from_slice(&NLM_F_REQUEST_DUMP.to_ne_bytes());
    socket.send(&request, 0)?;
    let mut buffer = vec![0; RECEIVE_BYTES];
    let mut found = Vec::new();
    for _ in 0..MESSAGES_MAX {
        let length = socket.recv(&mut &mut buffer[..], 0)?;
        if parse(&buffer[..length.min(RECEIVE_BYTES)], sys, &mut found)? {
            return Ok(found);
        }
    }
    Err(io::Error::other("the dump of interfaces does not end"))
}

/// Takes the interfaces from one datagram; true when the dump is complete.
fn parse(mut bytes: &[u8], sys: &Path, into: &mut Vec<LinkFacts>) -> io::Result<bool> {
    while bytes.len() >= HEADER {
        let length = u32_at(bytes, 0) as usize;
        let Some(message) = bytes.get(..length).filter(|m| m.len() >= HEADER) else { break };
        match u16_at(bytes, 4) {
            NLMSG_DONE => return Ok(true),
            NLMSG_ERROR => return Err(io::Error::other("the kernel refuses to list interfaces")),
            RTM_NEWLINK if length >= 2 * HEADER => into.push(facts(message, sys)),
            _ => {}
        }
        bytes = bytes.get(length.next_multiple_of(4)..).unwrap_or_default();
    }
    Ok(false)
}

fn facts(message: &[u8], sys: &Path) -> LinkFacts {
    let mut link = LinkFacts {
        index: u32_at(message, HEADER + 4),
        up: u32_at(message, HEADER + 8) & IFF_UP != 0,
        ..LinkFacts::default()
    };
    let (mut device, mut bus) = (None, None);
    for (kind, value) in attributes(&message[2 * HEADER..]) {
        match kind {
            IFLA_IFNAME => link.name = text(value),
            IFLA_MTU if value.len() == 4 => link.mtu = u32_at(value, 0),
            IFLA_LINKINFO => link.kind = nested(value, IFLA_INFO_KIND).map(text),
            IFLA_XDP => {
                link.xdp_program = nested(value, IFLA_XDP_PROG_ID)
                    .filter(|id| id.len() == 4)
                    .map(|id| u32_at(id, 0));
            }
            IFLA_PARENT_DEV_NAME => device = Some(text(value)),
            IFLA_PARENT_DEV_BUS_NAME => bus = Some(text(value)),
            _ => {}
        }
    }
    if let (Some(bus), Some(device)) = (bus, device) {
        let path = sys.join("bus").join(bus).join("devices").join(device).join("driver");
        link.driver = fs::read_link(path)
            .ok()
            .and_then(|driver| Some(driver.file_name()?.to_str()?.to_owned()));
    }
    link
}

fn nested(bytes: &[u8], wanted: u16) -> Option<&[u8]> {
    attributes(bytes).find_map(|(kind, value)| (kind == wanted).then_some(value))
}

/// Attributes: length and kind of two bytes each, value, padding to four.
fn attributes(mut bytes: &[u8]) -> impl Iterator<Item = (u16, &[u8])> {
    std::iter::from_fn(move || {
        if bytes.len() < 4 {
            return None;
        }
        let length = usize::from(u16_at(bytes, 0));
        // The two highest bits say "nested" and "network order".
        let kind = u16_at(bytes, 2) & 0x3fff;
        let value = bytes.get(4..length)?;
        bytes = bytes.get(length.next_multiple_of(4)..).unwrap_or_default();
        Some((kind, value))
    })
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).trim_end_matches('\0').to_owned()
}

fn u16_at(bytes: &[u8], at: usize) -> u16 {
    bytes.get(at..at + 2).map_or(0, |b| u16::from_ne_bytes([b[0], b[1]]))
}

fn u32_at(bytes: &[u8], at: usize) -> u32 {
    bytes.get(at..at + 4).map_or(0, |b| u32::from_ne_bytes([b[0], b[1], b[2], b[3]]))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_loopback_is_known() {
        let all = links(Path::new("/sys")).unwrap();
        let lo = all.iter().find(|link| link.name == "lo").unwrap();
        assert!(lo.mtu >= 1500 && lo.index > 0 && lo.xdp_program.is_none_or(|id| id > 0), "{lo:?}");
    }

    #[test]
    fn garbage_is_neither_a_panic_nor_an_interface() {
        for length in 0..64 {
            for byte in [0_u8, 1, 16, 255] {
                let mut found = Vec::new();
                let _ = parse(&vec![byte; length], Path::new("/sys"), &mut found);
                assert!(found.is_empty());
            }
        }
    }
}
