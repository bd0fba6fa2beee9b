// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The connection to a server of the bus, in a thread of its own.
//!
//! The library is given one connection at a time. When it is lost, the runtime goes with all that the library still
//! does in it, and another one begins after a growing, jittered pause: with files that are read again, and without
//! reports that waited.

use super::members::{Members, Refused, Taken};
use super::{Book, BusConfig, credentials};
use crate::dial::{LASTED, pause};
use crate::node::Shared;
use crate::refusal::Refusal;
use crate::tls::Credentials;
use async_nats::connection::State;
use async_nats::{Client, ConnectOptions, Event, ServerAddr, ServerError};
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;
use tidegate_model::SpiffeId;
use tidegate_model::sharing::DestinationReport;
use tidegate_units::Nanos;
use tokio::runtime::Builder;
use tokio::sync::{mpsc, watch};
use tokio::time::{sleep, timeout};
use tokio_stream::StreamExt;

/// How long a connection to one server may take to come up, and to all of them together.
const CONNECT_MAX: Duration = Duration::from_secs(2);
const CONNECT_ALL_MAX: Duration = Duration::from_secs(10);
/// A server that says nothing for so long is asked; after the second question without an answer it is lost.
const PING_EVERY: Duration = Duration::from_secs(2);
/// How long the reports of a second may take to leave.
const PUBLISH_MAX: Duration = Duration::from_millis(500);
/// Messages that wait to leave, and that wait to be read: more are lost. All that the other routers say at most fits.
const OUT_MAX: usize = 64;
const IN_MAX: usize = 256;
/// Events of the library that wait to be read.
const EVENTS_MAX: usize = 16;
/// Pause of the library between attempts of its own, which nobody waits for.
const LIBRARY_PAUSE: Duration = Duration::from_secs(1);
const READ_BUFFER: u16 = 16 * 1024;
const GONE: &str = "the server is gone, or does not respond";
/// How NATS says that this host may not hear anybody.
const NO_SUBSCRIPTION: &str = "subscription";

/// What the client shares with the sessions.
pub(crate) struct Wires {
    pub(crate) shared: Arc<Shared>,
    pub(crate) credentials: watch::Receiver<Option<Arc<Credentials>>>,
    pub(crate) destinations: watch::Receiver<Arc<Vec<DestinationReport>>>,
}

/// A client that runs; it ends when this is dropped.
pub(crate) struct Running {
    _stop: watch::Sender<()>,
}

/// Why a connection is over.
enum End {
    /// Nobody wants it any more.
    Stopped,
    /// It could not be made, or was lost.
    Lost(String),
}

/// Starts a client, with its number in the [`Book`].
///
/// # Errors
/// When the system gives no thread.
pub(crate) fn start(
    wires: Wires,
    number: u64,
    (config, routers): (BusConfig, Vec<SpiffeId>),
) -> io::Result<Running> {
    let (stop, stops) = watch::channel(());
    let (connected, unread) = (None, Arc::default());
    let bus = Bus { wires, number, config, routers, stops, connected, unread };
    std::thread::Builder::new().name("tidegate-bus".into()).spawn(move || bus.run())?;
    Ok(Running { _stop: stop })
}

struct Bus {
    wires: Wires,
    number: u64,
    config: BusConfig,
    routers: Vec<SpiffeId>,
    stops: watch::Receiver<()>,
    /// When the connection came up.
    connected: Option<Nanos>,
    /// Messages that were not read in time.
    unread: Arc<AtomicU64>,
}

impl Bus {
    fn run(mut self) {
        let mut members = None;
        let mut failures = 0_u32;
        loop {
            let end = match Builder::new_current_thread().enable_all().build() {
                Ok(runtime) => {
                    let end = runtime.block_on(self.life(&mut members, failures));
                    // Not even a name that takes long to be looked up is waited for.
                    runtime.shutdown_background();
                    end
                }
                Err(_) if self.stops.has_changed().is_err() => return,
                Err(error) => {
                    std::thread::park_timeout(LIBRARY_PAUSE);
                    End::Lost(error.to_string())
                }
            };
            let End::Lost(why) = end else { return };
            let now = self.wires.shared.clock.now();
            self.book(|book| book.lost(&why, now));
            let lasted = self.connected.take().is_some_and(|at| now.since(at) >= LASTED);
            failures = if lasted { 1 } else { failures.saturating_add(1) };
        }
    }

    /// Changes what is known of the bus, while it is this one.
    fn book<T>(&self, change: impl FnOnce(&mut Book) -> T) -> Option<T> {
        let mut book = self.wires.shared.bus();
        book.is_of(self.number).then(|| change(&mut book))
    }

    /// A connection, from the pause before it to its end.
    async fn life(&mut self, members: &mut Option<Members>, failures: u32) -> End {
        let mut stops = self.stops.clone();
        let connection = async {
            let Some(credentials) = self.credentials().await else { return End::Stopped };
            if failures > 0 {
                sleep(pause(failures, credentials.random())).await;
            }
            let new = || {
                let mut random = || credentials.random();
                Members::new(&self.config.subject, &self.routers, &mut random)
            };
            let members = members.get_or_insert_with(new);
            self.hold(members).await
        };
        tokio::select! {
            biased;
            _ = stops.changed() => End::Stopped,
            end = connection => end,
        }
    }

    /// This host's certificate, once there is one.
    async fn credentials(&mut self) -> Option<Arc<Credentials>> {
        loop {
            if let Some(credentials) = self.wires.credentials.borrow_and_update().clone() {
                return Some(credentials);
            }
            self.wires.credentials.changed().await.ok()?;
        }
    }

    async fn hold(&mut self, members: &mut Members) -> End {
        let (told, mut events) = mpsc::channel(EVENTS_MAX);
        let client = match self.connect(told).await {
            Ok(client) => client,
            Err(why) => return End::Lost(why),
        };
        let subscribed = async {
            let subscriber = client.subscribe(self.config.subject.clone()).await;
            let subscriber = subscriber.map_err(|error| error.to_string())?;
            client.flush().await.map_err(|error| error.to_string())?;
            Ok::<_, String>(subscriber)
        };
        let mut subscriber = match timeout(CONNECT_MAX, subscribed).await {
            Ok(Ok(subscriber)) => subscriber,
            Ok(Err(why)) => return End::Lost(why),
            Err(_) => return End::Lost("it does not take a subscription in time".into()),
        };
        let now = self.wires.shared.clock.now();
        self.book(|book| book.connected(now));
        self.connected = Some(now);
        // What was to be said meanwhile is old.
        self.wires.destinations.mark_unchanged();
        tracing::info!(subject = self.config.subject, "connected to the bus");
        loop {
            tokio::select! {
                message = subscriber.next() => match message {
                    Some(message) => self.hear(members, &message.payload),
                    None => return End::Lost("the connection ended".into()),
                },
                event = events.recv() => {
                    if let Some(why) = self.note(event) {
                        return End::Lost(why);
                    }
                }
                changed = self.wires.destinations.changed() => {
                    if changed.is_err() {
                        return End::Stopped;
                    }
                    let reports = Arc::clone(&self.wires.destinations.borrow_and_update());
                    if client.connection_state() != State::Connected {
                        return End::Lost(GONE.into());
                    }
                    self.publish(&client, members, &reports).await;
                }
            }
        }
    }

    async fn connect(&self, told: mpsc::Sender<Event>) -> Result<Client, String> {
        let scheme = if self.config.authority.is_some() { "tls" } else { "nats" };
        let servers = self.config.servers.iter();
        let servers = servers.map(|server| format!("{scheme}://{server}").parse::<ServerAddr>());
        let servers = servers.collect::<io::Result<Vec<_>>>().map_err(|error| error.to_string())?;
        let (at_once, unread) = (servers.len(), Arc::clone(&self.unread));
        let mut options = ConnectOptions::new()
            .name("tidegate")
            .no_echo()
            .ignore_discovered_servers()
            .ping_interval(PING_EVERY)
            .connection_timeout(CONNECT_MAX)
            .client_capacity(OUT_MAX)
            .subscription_capacity(IN_MAX)
            .read_buffer_capacity(READ_BUFFER)
            .reconnect_delay_callback(move |attempt| {
                if attempt <= at_once { Duration::ZERO } else { LIBRARY_PAUSE }
            })
            .event_callback(move |event| {
                match event {
                    Event::SlowConsumer(_) => {
                        unread.fetch_add(1, Ordering::Relaxed);
                    }
                    // What waits already says enough; and the state is looked at with each report.
                    event => drop(told.try_send(event)),
                }
                std::future::ready(())
            });
        if let Some(path) = &self.config.authority {
            options = options.require_tls(true).add_root_certificates(path.clone());
        }
        if let Some((certificate, key)) = &self.config.certificate {
            options = options.add_client_certificate(certificate.clone(), key.clone());
        }
        if let Some(path) = &self.config.credentials {
            let text = credentials(path).map_err(|error| error.to_string())?;
            let with = options.credentials(&text);
            options = with.map_err(|_| format!("{}: it cannot be used", path.display()))?;
        }
        match timeout(CONNECT_ALL_MAX, options.connect(servers)).await {
            Ok(Ok(client)) => Ok(client),
            Ok(Err(error)) => Err(error.to_string()),
            Err(_) => Err("no server responds in time".into()),
        }
    }

    /// What the library says of the connection; `Some`: it is over.
    fn note(&self, event: Option<Event>) -> Option<String> {
        match event {
            None | Some(Event::Closed) => Some("the connection ended".into()),
            Some(Event::Disconnected) => Some(GONE.into()),
            Some(Event::LameDuckMode) => Some("the server is about to stop".into()),
            Some(Event::ServerError(error)) => self.complaint(&error),
            Some(
                Event::Connected | Event::Draining | Event::SlowConsumer(_) | Event::ClientError(_),
            ) => None,
        }
    }

    /// What the server says; `Some`: nobody can be heard.
    fn complaint(&self, error: &ServerError) -> Option<String> {
        let (text, now) = (error.to_string(), self.wires.shared.clock.now());
        if text.to_lowercase().contains(NO_SUBSCRIPTION) {
            return Some(text);
        }
        self.book(|book| book.complaint(text, now));
        None
    }

    async fn publish(&self, client: &Client, members: &mut Members, reports: &[DestinationReport]) {
        let Some(credentials) = self.wires.credentials.borrow().clone() else { return };
        let (now, mut random) = (self.wires.shared.clock.now(), || credentials.random());
        let messages = members.messages(&credentials, now, reports, &mut random);
        // What cannot be signed is not sent, either.
        let (all, mut sent) = (messages.len().max(1) as u64, 0);
        let subject = &self.config.subject;
        let publish = async {
            for message in messages {
                if client.publish(subject.clone(), message.into()).await.is_err() {
                    break;
                }
                sent += 1;
            }
        };
        let _ = timeout(PUBLISH_MAX, publish).await;
        self.book(|book| {
            book.sent += sent;
            book.unsent += all - sent;
            book.refuse(Refusal::Quota, self.unread.swap(0, Ordering::Relaxed));
        });
    }

    fn hear(&self, members: &mut Members, bytes: &[u8]) {
        let Some(credentials) = self.wires.credentials.borrow().clone() else { return };
        let shared = &self.wires.shared;
        let (now, own) = (shared.clock.now(), credentials.identity());
        let heard = members.open(&credentials, now, bytes).and_then(|signed| {
            let mut random = || credentials.random();
            members.take(&mut shared.table(), (now, own), signed, &mut random)
        });
        match heard {
            Ok(Taken::Report) => {
                self.book(|book| book.taken += 1);
            }
            Ok(Taken::Greeting) => {}
            Err(Refused { identity, why, problem }) => {
                tracing::debug!(why = why.name(), problem, "refused");
                self.book(|book| book.refuse(why, 1));
                // What is not signed is nobody's doing.
                if identity.is_some() {
                    shared.table().refuse(identity.as_ref(), why, &problem);
                }
            }
        }
    }
}
