// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Bulk: a server sends chunks at a steady pace to whoever connects. What it cannot send in time it does not make up for.

use crate::error::{LabError, Result};
use serde::{Deserialize, Serialize};
use socket2::{Domain, SockRef, Socket, Type};
use std::io::{Read, Write};
use std::net::{Ipv4Addr, SocketAddr, SocketAddrV4, TcpListener, TcpStream};
use std::time::Duration;
use tidegate_units::{Clock, MonotonicClock, Nanos};

/// Fastest pace, and largest chunk.
const RATE_MAX: f64 = 1e9;
const CHUNK_MAX: usize = 1 << 20;
/// What waits in the kernel to be sent: so the pace is that of the network.
const BUFFER_BYTES: usize = 32 << 10;
/// Before a client tries again to connect.
const AGAIN: Duration = Duration::from_millis(200);

/// Chunks at a pace.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Bulk {
    /// Payload per second.
    pub bits_per_second: f64,
    /// Bytes that are sent at once.
    pub chunk: usize,
}

/// What one end does.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
pub(crate) enum BulkEnd {
    /// Sends to whoever connects to this port.
    Send(u16, Bulk),
    /// Connects from an address, and takes what comes.
    Take(Ipv4Addr, SocketAddrV4),
}

impl BulkEnd {
    /// As an argument of the helper.
    pub(crate) fn json(&self) -> Result<String> {
        if let Self::Send(_, Bulk { bits_per_second: rate, chunk }) = self {
            let fits = *rate > 0.0 && *rate <= RATE_MAX && (1..=CHUNK_MAX).contains(chunk);
            if !fits {
                return Err(LabError::Plan(format!("{chunk} bytes at a time, {rate} bit/s")));
            }
        }
        serde_json::to_string(self).map_err(|e| LabError::Plan(e.to_string()))
    }
}

/// Works until killed.
pub(crate) fn main(end: &BulkEnd) -> std::io::Result<()> {
    match end {
        BulkEnd::Send(port, bulk) => {
            let listener = TcpListener::bind(SocketAddrV4::new(Ipv4Addr::UNSPECIFIED, *port))?;
            // Ends with the process: the lab kills it.
            loop {
                let (stream, _) = listener.accept()?;
                let bulk = *bulk;
                std::thread::spawn(move || send(stream, bulk));
            }
        }
        BulkEnd::Take(from, to) => loop {
            // A connection that has ended is made anew.
            let _ = take(*from, *to);
            std::thread::sleep(AGAIN);
        },
    }
}

fn send(mut stream: TcpStream, bulk: Bulk) -> std::io::Result<()> {
    SockRef::from(&stream).set_send_buffer_size(BUFFER_BYTES)?;
    let chunk = vec![0x62; bulk.chunk];
    let each = Nanos::from_secs_f64(chunk.len() as f64 * 8.0 / bulk.bits_per_second);
    let mut due = MonotonicClock.now();
    // Ends with the connection.
    loop {
        stream.write_all(&chunk)?;
        let now = MonotonicClock.now();
        due = (due + each).max(now);
        std::thread::sleep((due - now).into());
    }
}

fn take(from: Ipv4Addr, to: SocketAddrV4) -> std::io::Result<()> {
    let socket = Socket::new(Domain::IPV4, Type::STREAM, None)?;
    socket.bind(&SocketAddr::from((from, 0)).into())?;
    socket.connect(&SocketAddr::V4(to).into())?;
    let mut stream: TcpStream = socket.into();
    let mut buffer = vec![0; 64 << 10];
    while stream.read(&mut buffer)? > 0 {}
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pace_is_one_that_can_be_kept() {
        let end = |bits_per_second, chunk| BulkEnd::Send(81, Bulk { bits_per_second, chunk });
        let good = end(330e3, 8_192);
        let read: BulkEnd = serde_json::from_str(&good.json().unwrap()).unwrap();
        assert_eq!(read, good);
        for (rate, chunk) in [(0.0, 1), (f64::NAN, 1), (1e3, 0), (2e9, 1)] {
            assert!(end(rate, chunk).json().is_err(), "{rate} {chunk}");
        }
    }

    /// Half a second at 160 kB/s, in chunks of 8 KB.
    #[test]
    fn chunks_come_at_their_pace() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let to = listener.local_addr().unwrap();
        let bulk = Bulk { bits_per_second: 1_280e3, chunk: 8_000 };
        std::thread::spawn(move || send(listener.accept().unwrap().0, bulk));
        let mut stream = TcpStream::connect(to).unwrap();
        let begun = MonotonicClock.now();
        let mut bytes = vec![0; 80_000];
        stream.read_exact(&mut bytes).unwrap();
        let took = (MonotonicClock.now() - begun).as_secs_f64();
        // The first of ten chunks comes at once.
        assert!((0.4..2.0).contains(&took), "{took}");
    }
}
