// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A port of loopback that hardly anybody takes before a test uses it. Tests of several crates share this file.
//!
//! By default the kernel gives ports from 32768 on to whoever connects or binds to port 0: one that was free there a moment ago may be
//! taken. Ports below are only taken on purpose, and each process begins at another one.

use std::net::{Ipv4Addr, SocketAddr, TcpListener, UdpSocket};
use std::sync::atomic::{AtomicU32, Ordering::Relaxed};

const FIRST: u32 = 12_000;
const COUNT: u32 = 20_000;
/// From the first port of a process to that of the next.
const APART: u32 = 97;

pub(crate) fn free_port() -> SocketAddr {
    static NEXT: AtomicU32 = AtomicU32::new(0);
    let first = std::process::id().wrapping_mul(APART) % COUNT;
    let mut ports = (0..COUNT).map(|_| FIRST + (first + NEXT.fetch_add(1, Relaxed)) % COUNT);
    let is_free = |port: u32| {
        let address = SocketAddr::from((Ipv4Addr::LOCALHOST, u16::try_from(port).ok()?));
        let free = TcpListener::bind(address).is_ok() && UdpSocket::bind(address).is_ok();
        free.then_some(address)
    };
    ports.find_map(is_free).expect("a free port")
}
