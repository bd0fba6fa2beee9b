// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The servers behind a proxy, and connections to them that are kept.
//!
//! The server with the fewest requests in flight is next; among equals they take turns. One that could
//! not be connected to is asked again after [`DOWN`], or before if all are so: by one request, since each waits
//! for as long as connecting may take. A request goes to another server, or to another connection, only
//! while nothing of it was sent.
//!
//! When each server has as many connections as may be, an upload may have to give way ([`Uploads`]), or else a
//! response that its client does not take ([`Downloads`]).

use crate::body::{Upload, Uploaded};
use crate::downloads::{Download, Downloads};
use crate::front::{SharedClock, duration};
use crate::uploads::Uploads;
use hyper::body::Incoming;
use hyper::client::conn::http1::{self, SendRequest};
use hyper::{Request, Response};
use hyper_util::rt::TokioIo;
use std::io;
use std::net::IpAddr;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering::Relaxed};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use tidegate_config::{Endpoint, Upstream};
use tidegate_units::Nanos;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpStream, UnixStream};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::task::AbortHandle;
use tokio::time::timeout;

/// A server that could not be connected to is left alone for so long.
const DOWN: Nanos = Nanos::SECOND;
/// Most bytes that are read ahead of a response.
const BUFFER_MAX: usize = 64 * 1024;
/// Most fields of a response.
const FIELDS_MAX: usize = 256;

/// Why there is no response.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Failure {
    /// No server could be connected to.
    Unreachable,
    /// Each server has as many connections as may be.
    Full,
    /// The connection broke, or what came was no response.
    Broken,
    /// It took too long.
    TimedOut,
}

/// A connection, and what runs it.
struct Connection {
    sender: SendRequest<Uploaded>,
    task: AbortHandle,
}

struct Idle {
    connection: Connection,
    since: Nanos,
}

struct Server {
    endpoint: Endpoint,
    idle: Mutex<Vec<Idle>>,
    in_flight: AtomicUsize,
    /// Connections that may still be opened.
    places: Arc<Semaphore>,
    uploads: Mutex<Uploads>,
    downloads: Mutex<Downloads>,
    /// 0: it could be connected to when that was tried last.
    down_until_ns: AtomicU64,
}

impl Server {
    fn idle(&self) -> MutexGuard<'_, Vec<Idle>> {
        self.idle.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn uploads(&self) -> MutexGuard<'_, Uploads> {
        self.uploads.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn downloads(&self) -> MutexGuard<'_, Downloads> {
        self.downloads.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

pub(crate) struct Pool {
    upstream: Upstream,
    servers: Box<[Server]>,
    turn: AtomicUsize,
    clock: SharedClock,
}

/// A request that is with a server: its connection, and its place in what is in flight there.
pub(crate) struct Lease {
    pool: Arc<Pool>,
    at: usize,
    connection: Option<Connection>,
    upload: Arc<Upload>,
    /// Its body among those that are under way.
    place: Option<u64>,
    download: Arc<Download>,
    /// Its response among those that are under way.
    taken_at: Option<u64>,
}

impl Lease {
    fn new(pool: &Arc<Pool>, at: usize, upload: Arc<Upload>) -> Self {
        pool.servers[at].in_flight.fetch_add(1, Relaxed);
        let (pool, download) = (Arc::clone(pool), Arc::default());
        Self { pool, at, connection: None, upload, place: None, download, taken_at: None }
    }

    /// Its body comes from this source, and goes over this connection.
    fn uploads(&mut self, source: IpAddr, task: &AbortHandle) {
        if !self.upload.ended.load(Relaxed) {
            let mut uploads = self.pool.servers[self.at].uploads();
            self.place = Some(uploads.begin(source, Arc::clone(&self.upload), task.clone()));
        }
    }

    /// Its body does not go over this connection any more.
    fn forget(&mut self) {
        if let Some(place) = self.place.take() {
            self.pool.servers[self.at].uploads().end(place);
        }
    }

    /// The body of its request.
    pub(crate) fn upload(&self) -> &Upload {
        &self.upload
    }

    /// The head of its response has come, over this connection.
    fn responds(&mut self, connection: Connection) {
        self.download.gave(self.pool.clock.now());
        let mut downloads = self.pool.servers[self.at].downloads();
        self.taken_at = Some(downloads.begin(Arc::clone(&self.download), connection.task.clone()));
        self.connection = Some(connection);
    }

    /// Its response.
    pub(crate) fn download(&self) -> &Download {
        &self.download
    }

    /// Its response has ended: the connection may serve another.
    pub(crate) fn give_back(mut self) {
        // A body that still comes would be part of the next request.
        let ended = self.upload.ended.load(Relaxed);
        let Some(connection) = self.connection.take().filter(|_| ended) else { return };
        if !connection.sender.is_closed() {
            let since = self.pool.clock.now();
            self.pool.servers[self.at].idle().push(Idle { connection, since });
        }
    }
}

impl Drop for Lease {
    fn drop(&mut self) {
        let server = &self.pool.servers[self.at];
        server.in_flight.fetch_sub(1, Relaxed);
        // A body that still comes holds its connection, also behind the response: it may have to give way.
        if self.upload.ended.load(Relaxed) {
            self.forget();
        }
        if let Some(place) = self.taken_at {
            self.pool.servers[self.at].downloads().end(place);
        }
    }
}

/// What a request has tried so far, a bit for each server.
struct Tries {
    tried: u64,
    /// Of these, those that had no place.
    full: u64,
    last: Failure,
    made_room: bool,
}

impl Pool {
    pub(crate) fn new(upstream: Upstream, clock: SharedClock) -> Self {
        let server = |endpoint: &Endpoint| Server {
            endpoint: endpoint.clone(),
            idle: Mutex::default(),
            in_flight: AtomicUsize::new(0),
            places: Arc::new(Semaphore::new(upstream.connections as usize)),
            uploads: Mutex::default(),
            downloads: Mutex::default(),
            down_until_ns: AtomicU64::new(0),
        };
        let servers = upstream.servers.iter().map(server).collect();
        Self { upstream, servers, turn: AtomicUsize::new(0), clock }
    }

    /// Whether it is what this configuration says.
    pub(crate) fn is_of(&self, upstream: &Upstream) -> bool {
        self.upstream == *upstream
    }

    /// Connections to one server that may be open.
    pub(crate) fn connections(&self) -> usize {
        self.upstream.connections as usize
    }

    pub(crate) fn patience(&self) -> Duration {
        duration(self.upstream.response_timeout)
    }

    /// The server that is next, but for those that were tried (a bit each).
    fn choose(&self, tried: u64) -> Option<usize> {
        let now = self.clock.now();
        let first = self.turn.fetch_add(1, Relaxed) % self.servers.len();
        let order = (0..self.servers.len()).map(|at| (first + at) % self.servers.len());
        let load = |at: &usize| {
            let server = &self.servers[*at];
            let down = server.down_until_ns.load(Relaxed) > now.0;
            (down, server.in_flight.load(Relaxed))
        };
        order.filter(|at| tried & (1 << at) == 0).min_by_key(load)
    }

    /// A connection of this server that is kept; `None`: there is none.
    async fn kept(&self, at: usize) -> Option<Connection> {
        loop {
            let Idle { mut connection, since } = self.servers[at].idle().pop()?;
            let (age, sender) = (self.clock.now().since(since), &mut connection.sender);
            if sender.is_closed() || age > self.upstream.idle_timeout {
                continue;
            }
            // Its last response has just ended; it is ready once its task has seen that as well.
            let wait = duration(self.upstream.connect_timeout);
            if sender.is_ready() || matches!(timeout(wait, sender.ready()).await, Ok(Ok(()))) {
                return Some(connection);
            }
        }
    }

    /// Whether this request may connect to the server. One that was down is tried by one request at a time;
    /// for the others it is down until that one knows. One that is down is tried where no other is left.
    fn may_connect(&self, at: usize) -> bool {
        let now = self.clock.now();
        let down = &self.servers[at].down_until_ns;
        let until = down.load(Relaxed);
        if until == 0 || until > now.0 {
            return true;
        }
        let known = now + self.upstream.connect_timeout;
        down.compare_exchange(until, known.0, Relaxed, Relaxed).is_ok()
    }

    /// A new connection, in this place if there is one; `None`: another request has just begun to try this server,
    /// which is down.
    async fn connect(
        &self,
        at: usize,
        place: Option<OwnedSemaphorePermit>,
    ) -> Result<Option<Connection>, Failure> {
        let server = &self.servers[at];
        // First: whoever says that it tries must do so, or nobody does for as long as that may take.
        let place = place.or_else(|| Arc::clone(&server.places).try_acquire_owned().ok());
        let place = place.ok_or(Failure::Full)?;
        if !self.may_connect(at) {
            return Ok(None);
        }
        let wait = duration(self.upstream.connect_timeout);
        let connected = match &server.endpoint {
            Endpoint::Ip(address) => {
                let connect = async {
                    let stream = TcpStream::connect(address).await?;
                    stream.set_nodelay(true)?;
                    Ok(stream)
                };
                greet(timeout(wait, connect).await, place).await
            }
            Endpoint::Unix(path) => {
                greet(timeout(wait, UnixStream::connect(path)).await, place).await
            }
        };
        let until = if connected.is_none() { self.clock.now() + DOWN } else { Nanos::ZERO };
        server.down_until_ns.store(until.0, Relaxed);
        connected.map(Some).ok_or(Failure::Unreachable)
    }

    /// A connection to this server, and whether it was kept. In a place that had to be made it is new: one that was
    /// kept may have been closed meanwhile, and there is no second try.
    async fn connection(
        &self,
        at: usize,
        place: Option<OwnedSemaphorePermit>,
    ) -> Result<Option<(Connection, bool)>, Failure> {
        if place.is_none()
            && let Some(kept) = self.kept(at).await
        {
            return Ok(Some((kept, true)));
        }
        Ok(self.connect(at, place).await?.map(|connection| (connection, false)))
    }

    /// A place at a server that had none: of an upload that gives way to a request of this source, or else of a
    /// response that nobody takes.
    async fn make_room(&self, full: u64, source: IpAddr) -> Option<(usize, OwnedSemaphorePermit)> {
        let (now, connections) = (self.clock.now(), self.upstream.connections);
        let first = self.turn.fetch_add(1, Relaxed) % self.servers.len();
        let order = (0..self.servers.len()).map(|at| (first + at) % self.servers.len());
        let mut order = order.filter(|at| full & (1 << at) != 0);
        let mut others = order.clone();
        let at = order
            .find(|at| self.servers[*at].uploads().give_way(now, source, connections))
            .or_else(|| others.find(|at| self.servers[*at].downloads().give_way(now)))?;
        let place = Arc::clone(&self.servers[at].places).acquire_owned();
        let wait = duration(self.upstream.connect_timeout);
        Some((at, timeout(wait, place).await.ok()?.ok()?))
    }

    /// The server that is next, and a place there if one had to be made. `None`: there is none left.
    async fn next(
        &self,
        tries: &mut Tries,
        source: IpAddr,
    ) -> Option<(usize, Option<OwnedSemaphorePermit>)> {
        if let Some(at) = self.choose(tries.tried) {
            return Some((at, None));
        }
        if tries.full == 0 || std::mem::replace(&mut tries.made_room, true) {
            return None;
        }
        let (at, place) = self.make_room(tries.full, source).await?;
        Some((at, Some(place)))
    }

    /// Sends a request of this source to a server, and waits for the head of its response.
    pub(crate) async fn send(
        self: &Arc<Self>,
        source: IpAddr,
        mut request: Request<Uploaded>,
    ) -> Result<(Response<Incoming>, Lease), Failure> {
        let mut tries = Tries { tried: 0, full: 0, last: Failure::Unreachable, made_room: false };
        while let Some((at, place)) = self.next(&mut tries, source).await {
            let mut lease = Lease::new(self, at, request.body().upload());
            let (mut connection, again) = match self.connection(at, place).await {
                Ok(Some(connection)) => connection,
                // It is down, and the choice is another one.
                Ok(None) => continue,
                Err(failure) => {
                    tries.tried |= 1 << at;
                    tries.full |= u64::from(failure == Failure::Full) << at;
                    tries.last = failure;
                    continue;
                }
            };
            lease.uploads(source, &connection.task);
            let sent = connection.sender.try_send_request(request);
            match self.within(sent, &lease.upload).await {
                None => return Err(Failure::TimedOut),
                Some(Ok(response)) => {
                    lease.responds(connection);
                    return Ok((response, lease));
                }
                Some(Err(mut error)) => {
                    // What was not sent comes back; the server had closed a kept connection.
                    request = error.take_message().ok_or(Failure::Broken)?;
                    lease.forget();
                    tries.last = Failure::Broken;
                    if !again {
                        tries.tried |= 1 << at;
                    }
                }
            }
        }
        Err(tries.last)
    }

    /// The response, or `None`: neither it nor the body of the request went on for too long. While the client is
    /// waited for the server owes nothing; how long that may be the body knows.
    async fn within<T>(&self, sent: impl Future<Output = T>, upload: &Upload) -> Option<T> {
        let mut sent = std::pin::pin!(sent);
        let patience = self.upstream.response_timeout;
        let mut left = patience;
        loop {
            if let Ok(response) = timeout(duration(left), &mut sent).await {
                return Some(response);
            }
            if upload.waits() {
                left = patience;
                continue;
            }
            let quiet = self.clock.now().since(Nanos(upload.at_ns.load(Relaxed)));
            if quiet >= patience {
                return None;
            }
            left = patience.since(quiet);
        }
    }

    /// Closes connections that nobody has used for too long, and forgets uploads that have ended behind their
    /// responses.
    pub(crate) fn prune(&self) {
        let now = self.clock.now();
        for server in &self.servers {
            server.uploads().prune();
            server.idle().retain(|idle| {
                !idle.connection.sender.is_closed()
                    && now.since(idle.since) <= self.upstream.idle_timeout
            });
        }
    }
}

/// Makes HTTP of a connection. It runs by itself until nobody holds its sender, and has its place so long.
async fn greet<T, E>(
    connected: Result<io::Result<T>, E>,
    place: OwnedSemaphorePermit,
) -> Option<Connection>
where
    T: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    let stream = connected.ok()?.ok()?;
    let mut builder = http1::Builder::new();
    builder.max_buf_size(BUFFER_MAX).max_headers(FIELDS_MAX);
    let (sender, connection) = builder.handshake(TokioIo::new(stream)).await.ok()?;
    let task = tokio::spawn(async move {
        // How it ended the request knows.
        let _ = connection.await;
        drop(place);
    });
    Some(Connection { sender, task: task.abort_handle() })
}

#[cfg(test)]
mod tests {
    use super::*;
    use tidegate_units::{Clock, ManualClock};

    fn pool(clock: &Arc<ManualClock>) -> Pool {
        clock.advance(Nanos::from_secs(100));
        let servers = ["192.0.2.1:80", "192.0.2.2:80"].map(|server| server.parse().unwrap());
        let upstream = Upstream {
            servers: servers.to_vec(),
            connect_timeout: Nanos::from_secs(3),
            response_timeout: Nanos::SECOND,
            idle_timeout: Nanos::SECOND,
            connections: 8,
        };
        Pool::new(upstream, Arc::clone(clock) as SharedClock)
    }

    /// Who finds it full has not tried it: the next one does.
    #[test]
    fn a_server_without_a_free_connection_is_not_taken_for_down() {
        let clock = Arc::new(ManualClock::default());
        let pool = pool(&clock);
        let (server, until) = (&pool.servers[0], clock.now().0);
        server.down_until_ns.store(until, Relaxed);
        let taken = Arc::clone(&server.places).try_acquire_many_owned(8).unwrap();
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        let failed = runtime.block_on(pool.connect(0, None)).map(|_| ());
        assert_eq!(failed, Err(Failure::Full));
        assert_eq!(server.down_until_ns.load(Relaxed), until, "nobody tries it");
        assert_eq!(server.places.available_permits(), 0);
        drop(taken);
    }

    /// The server may have closed a kept one just now, and whoever had to make room tries once.
    #[test]
    fn a_place_that_was_made_is_for_a_new_connection() {
        let clock = Arc::new(ManualClock::default());
        let mut pool = pool(&clock);
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(async {
            let server = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
            pool.servers[0].endpoint = Endpoint::Ip(server.local_addr().unwrap());
            let connection = pool.connect(0, None).await.unwrap().unwrap();
            pool.servers[0].idle().push(Idle { connection, since: clock.now() });
            let place = Arc::clone(&pool.servers[0].places).try_acquire_owned().ok();
            let (made, kept) = pool.connection(0, place).await.unwrap().unwrap();
            assert_eq!((kept, pool.servers[0].idle().len()), (false, 1));
            assert_eq!(pool.servers[0].places.available_permits(), 6);
            let (_kept, kept) = pool.connection(0, None).await.unwrap().unwrap();
            assert!(kept);
            drop(made);
        });
    }

    #[test]
    fn a_server_that_was_down_is_tried_by_one_request_at_a_time() {
        let clock = Arc::new(ManualClock::default());
        let pool = pool(&clock);
        pool.servers[1].in_flight.store(5, Relaxed);
        assert_eq!([pool.choose(0), pool.choose(0)], [Some(0); 2], "the fewest");
        pool.servers[0].down_until_ns.store((clock.now() + DOWN).0, Relaxed);
        assert_eq!([pool.choose(0), pool.choose(0)], [Some(1); 2], "it is down");
        assert_eq!(pool.choose(1 << 1), Some(0));
        assert!(pool.may_connect(0), "where no other is left");
        clock.advance(DOWN);
        // Several may choose it in one moment: one of them connects.
        assert_eq!([pool.choose(0), pool.choose(0)], [Some(0); 2]);
        assert!(pool.may_connect(0));
        assert_eq!([pool.choose(0), pool.choose(0)], [Some(1); 2], "the others do not wait for it");
        clock.advance(Nanos::from_secs(3));
        assert_eq!(pool.choose(0), Some(0), "that one's client has left: the next one tries");
        pool.servers[0].down_until_ns.store(0, Relaxed);
        assert!(pool.may_connect(0) && pool.may_connect(0), "it is up");
    }
}
