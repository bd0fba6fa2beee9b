// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A relay between two peers: what the caller says goes on late, or not at all, and the same way back.

use std::collections::VecDeque;
use std::io::{ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::time::Duration;
use tidegate_units::{Clock, MonotonicClock, Nanos};

/// Longest wait for bytes.
const LOOK_EVERY: Duration = Duration::from_millis(5);

#[derive(Default)]
struct Link {
    late: AtomicU64,
    cut: AtomicBool,
    ended: AtomicBool,
}

/// Ends when it is dropped.
pub(crate) struct Relay {
    /// Where it listens.
    pub(crate) at: SocketAddr,
    link: Arc<Link>,
}

impl Relay {
    pub(crate) fn new(to: SocketAddr) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let at = listener.local_addr().unwrap();
        let link = Arc::new(Link::default());
        let of = Arc::clone(&link);
        std::thread::spawn(move || {
            for caller in listener.incoming().map_while(Result::ok) {
                if of.ended.load(Relaxed) {
                    return;
                }
                // The caller tries again.
                let Ok(listens) = TcpStream::connect(to) else { continue };
                let ways = [
                    (caller.try_clone().unwrap(), listens.try_clone().unwrap(), true),
                    (listens, caller, false),
                ];
                for (from, to, late) in ways {
                    let link = Arc::clone(&of);
                    std::thread::spawn(move || forward(&link, from, to, late));
                }
            }
        });
        Self { at, link }
    }

    /// From now on what the caller says is so late.
    pub(crate) fn late(&self, by: Nanos) {
        self.link.late.store(by.0, Relaxed);
    }

    /// Nothing goes on, in either direction, until this is taken back; then all that waits does.
    pub(crate) fn cut(&self, cut: bool) {
        self.link.cut.store(cut, Relaxed);
    }
}

impl Drop for Relay {
    fn drop(&mut self) {
        self.link.ended.store(true, Relaxed);
        // So that it sees that.
        let _ = TcpStream::connect(self.at);
    }
}

fn forward(link: &Link, mut from: TcpStream, mut to: TcpStream, late: bool) {
    let (clock, mut waits, mut bytes) = (MonotonicClock, VecDeque::new(), vec![0; 65_536]);
    from.set_read_timeout(Some(LOOK_EVERY)).unwrap();
    while !link.ended.load(Relaxed) {
        match from.read(&mut bytes) {
            Ok(0) => break,
            Ok(more) => {
                let by = if late { Nanos(link.late.load(Relaxed)) } else { Nanos::ZERO };
                waits.push_back((clock.now() + by, bytes[..more].to_vec()));
            }
            Err(error) if [ErrorKind::WouldBlock, ErrorKind::TimedOut].contains(&error.kind()) => {}
            Err(_) => break,
        }
        let due = |waits: &VecDeque<(Nanos, Vec<u8>)>| {
            waits.front().is_some_and(|(at, _)| *at <= clock.now())
        };
        while !link.cut.load(Relaxed) && due(&waits) {
            let (_, bytes) = waits.pop_front().unwrap();
            if to.write_all(&bytes).is_err() {
                return;
            }
        }
    }
    let _ = to.shutdown(std::net::Shutdown::Both);
}
