// SPDX-License-Identifier: Apache-2.0 OR MIT
//! /metrics, /healthz, /readyz: the pure function of `tidegate-api` behind axum, bounded in
//! connections and in their life, so that a slow or greedy client costs a scrape and nothing else.

use axum::Router;
use axum::http::{Method, StatusCode, Uri, header};
use axum::response::{IntoResponse, Response};
use axum::serve::Listener;
use std::future::Future;
use std::io;
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;
use tidegate_api::http::respond;
use tidegate_model::snapshot::Snapshot;
use tidegate_units::Clock;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, watch};

/// Most connections at once; the next ones wait in the listener's queue.
const CONNECTIONS_MAX: usize = 32;
/// A connection ends after so long, whatever it does.
const LIFE_MAX: Duration = Duration::from_secs(60);
/// How often the address is tried while a predecessor still holds it.
const BIND_PAUSE: Duration = Duration::from_millis(100);
/// How many times.
const BIND_TRIES: u32 = 100;

/// What a page is made from.
#[derive(Clone)]
pub(crate) struct Pages {
    pub(crate) snapshots: watch::Receiver<Option<Arc<Snapshot>>>,
    pub(crate) clock: Arc<dyn Clock + Send + Sync>,
}

impl Pages {
    async fn page(self, method: Method, uri: Uri) -> Response {
        let snapshot = self.snapshots.borrow().clone();
        let now = self.clock.now();
        let answer = respond(method.as_str(), uri.path(), snapshot.as_deref(), now);
        let status =
            StatusCode::from_u16(answer.status).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
        (status, [(header::CONTENT_TYPE, answer.content_type)], answer.body).into_response()
    }
}

/// Serves until it is dropped. The address may still be a predecessor's for a moment: a daemon
/// without pages is better than none, so a failure is logged and no more.
pub(crate) async fn serve(address: SocketAddr, pages: Pages) {
    let Some(listener) = bind(address).await else { return };
    tracing::info!(%address, "serving /metrics, /healthz and /readyz");
    let fallback = move |method: Method, uri: Uri| pages.clone().page(method, uri);
    let router = Router::new().fallback(fallback);
    let places = Arc::new(Semaphore::new(CONNECTIONS_MAX));
    if let Err(error) = axum::serve(Bounded { listener, places }, router).await {
        tracing::error!(%address, %error, "http ended");
    }
}

async fn bind(address: SocketAddr) -> Option<TcpListener> {
    for attempt in 1..=BIND_TRIES {
        match TcpListener::bind(address).await {
            Ok(listener) => return Some(listener),
            Err(error) if error.kind() == io::ErrorKind::AddrInUse && attempt < BIND_TRIES => {
                tokio::time::sleep(BIND_PAUSE).await;
            }
            Err(error) => {
                tracing::error!(%address, %error, "no /metrics, /healthz and /readyz");
                return None;
            }
        }
    }
    None
}

struct Bounded {
    listener: TcpListener,
    places: Arc<Semaphore>,
}

impl Listener for Bounded {
    type Io = Connection;
    type Addr = SocketAddr;

    async fn accept(&mut self) -> (Connection, SocketAddr) {
        loop {
            // The semaphore is never closed; if it were, nobody would be let in.
            let Ok(place) = Arc::clone(&self.places).acquire_owned().await else {
                std::future::pending::<()>().await;
                continue;
            };
            match self.listener.accept().await {
                Ok((stream, peer)) => {
                    let end = Box::pin(tokio::time::sleep(LIFE_MAX));
                    return (Connection { stream, end, _place: place }, peer);
                }
                // Out of descriptors, most likely: some will be given back.
                Err(_) => tokio::time::sleep(BIND_PAUSE).await,
            }
        }
    }

    fn local_addr(&self) -> io::Result<SocketAddr> {
        self.listener.local_addr()
    }
}

/// A connection with an end.
struct Connection {
    stream: TcpStream,
    end: Pin<Box<tokio::time::Sleep>>,
    _place: OwnedSemaphorePermit,
}

impl Connection {
    fn ended(&mut self, cx: &mut Context<'_>) -> bool {
        self.end.as_mut().poll(cx).is_ready()
    }
}

impl AsyncRead for Connection {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        if self.ended(cx) {
            return Poll::Ready(Err(io::ErrorKind::TimedOut.into()));
        }
        Pin::new(&mut self.stream).poll_read(cx, buf)
    }
}

impl AsyncWrite for Connection {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &[u8],
    ) -> Poll<io::Result<usize>> {
        if self.ended(cx) {
            return Poll::Ready(Err(io::ErrorKind::TimedOut.into()));
        }
        Pin::new(&mut self.stream).poll_write(cx, buf)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(cx)
    }
}
