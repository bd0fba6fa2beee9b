// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Where clients connect: one socket, and as many connections as there are seats.

use crate::connection::{Told, attend};
use crate::counters::one;
use crate::front::Front;
use socket2::{Domain, Protocol, Socket, Type};
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;
use tidegate_units::Nanos;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio::time::{sleep, timeout};

/// Connections that wait to be accepted; the kernel's own limit holds as well (net.core.somaxconn).
const BACKLOG: i32 = 4096;
/// How often a socket is tried that cannot be opened, and an accept that failed.
const RETRY: Duration = Duration::from_millis(100);
/// Connections without a request are asked to leave at most so often.
const MAKE_ROOM_EVERY: Nanos = Nanos::from_millis(200);
/// How long what is under way may take once it is to end.
const DRAIN_MAX: Duration = Duration::from_secs(10);
/// How often kept connections to servers are looked at.
const PRUNE_EVERY: Duration = Duration::from_secs(1);

/// Opens a socket beside another of the same user: a successor opens its own before the predecessor's
/// closes, so that none is refused between.
fn bind(address: SocketAddr) -> io::Result<TcpListener> {
    let socket = Socket::new(Domain::for_address(address), Type::STREAM, Some(Protocol::TCP))?;
    socket.set_reuse_address(true)?;
    socket.set_reuse_port(true)?;
    socket.set_nonblocking(true)?;
    socket.bind(&address.into())?;
    socket.listen(BACKLOG)?;
    TcpListener::from_std(socket.into())
}

/// Serves until `told` says that it ends; then lets what is under way end.
pub(crate) async fn serve(
    front: Arc<Front>,
    address: SocketAddr,
    told: watch::Sender<Told>,
    mut stop: watch::Receiver<bool>,
    problem: impl Fn(Option<String>) + Send,
) {
    let listener = loop {
        match bind(address) {
            Ok(listener) => break listener,
            Err(error) => problem(Some(format!("{address} cannot be opened: {error}"))),
        }
        tokio::select! {
            () = sleep(RETRY) => {}
            () = stopped(&mut stop) => return,
        }
    };
    problem(None);
    let mut seats = Seats { front, told, tasks: JoinSet::new(), asked: None };
    let mut prune = tokio::time::interval(PRUNE_EVERY);
    loop {
        tokio::select! {
            accepted = listener.accept() => match accepted {
                Ok(accepted) => seats.seat(accepted),
                // Out of descriptors, most likely: some will be given back.
                Err(_) => { seats.make_room(); sleep(RETRY).await }
            },
            _ = prune.tick() => seats.front.site().pool.prune(),
            Some(_) = seats.tasks.join_next() => {}
            () = stopped(&mut stop) => break,
        }
    }
    // Those whose handshake is done would be reset with the socket.
    while let Ok(Ok(accepted)) = timeout(Duration::ZERO, listener.accept()).await {
        seats.seat(accepted);
    }
    drop(listener);
    seats.told.send_modify(|told| told.ends = true);
    let ended = timeout(DRAIN_MAX, async { while seats.tasks.join_next().await.is_some() {} });
    // Who is not done by now is dropped with its task.
    let _ = ended.await;
}

/// Until it is told to end, or nobody is there any more to tell it.
async fn stopped(stop: &mut watch::Receiver<bool>) {
    let _ = stop.wait_for(|stop| *stop).await;
}

/// The connections that are open.
struct Seats {
    front: Arc<Front>,
    told: watch::Sender<Told>,
    tasks: JoinSet<()>,
    /// When those without a request were asked to leave.
    asked: Option<Nanos>,
}

impl Seats {
    fn seat(&mut self, accepted: (TcpStream, SocketAddr)) {
        while self.tasks.try_join_next().is_some() {}
        let most = self.front.site().clients.connections as usize;
        // Before it is full: a seat is free only when the one who has it has left.
        if self.tasks.len() >= most - most / 8 {
            self.make_room();
        }
        if self.tasks.len() >= most {
            return one(&self.front.counters.turned_away);
        }
        let (front, told) = (Arc::clone(&self.front), self.told.subscribe());
        front.counters.connections.fetch_add(1, Relaxed);
        let seated = Seated(Arc::clone(&front));
        self.tasks.spawn(async move {
            let _seated = seated;
            attend(front, accepted, told).await;
        });
    }

    fn make_room(&mut self) {
        let now = self.front.now();
        if self.asked.is_none_or(|asked| now.since(asked) >= MAKE_ROOM_EVERY) {
            self.asked = Some(now);
            self.told.send_modify(|told| told.make_room += 1);
        }
    }
}

struct Seated(Arc<Front>);

impl Drop for Seated {
    fn drop(&mut self) {
        self.0.counters.connections.fetch_sub(1, Relaxed);
    }
}
