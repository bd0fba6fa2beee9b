// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Envoy: `ext_authz` or the rate limit service by gRPC, completions by its access log service at the same
//! listener.
//! docs/gateways.md has the configuration of Envoy for all.
//!
//! What passes gets a token in the metadata of its request. Envoy keeps that apart from what clients
//! send, and writes it into the log, so no client can end a request of another. Its own request id would
//! not do: where it is preserved, clients choose it.
//!
//! A message that is not understood is counted, and its connection gets no new requests: those that are
//! under way are still answered, since each that is not would pass unasked.

mod check;
mod log;
mod messages;
mod ratelimit;
mod runtime;

use super::Context;
use super::listen::{Stream, streams};
use crate::{Answer, Ask, Completion, Id, Token};
use hyper::body::{Bytes, Frame, Incoming, SizeHint};
use hyper::server::conn::http2;
use hyper::service::service_fn;
use hyper::{Request, Response};
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use messages::{
    CheckRequest, CheckResponse, HealthCheckRequest, HealthCheckResponse, RateLimitRequest,
    RateLimitResponse, StreamAccessLogsMessage, StreamAccessLogsResponse,
};
use prost::Message;
use std::convert::Infallible;
use std::error::Error;
use std::future::{Future, Ready, ready};
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::task::{Context as Task, Poll, ready};
use std::time::Duration;
use tokio::sync::watch;
use tonic::body::Body;
use tonic::server::{ClientStreamingService, Grpc, UnaryService};
use tonic::{Code, Status, Streaming};
use tonic_prost::ProstCodec;

/// The calls that are answered.
const CHECK: &str = "/envoy.service.auth.v3.Authorization/Check";
const RATE_LIMIT: &str = "/envoy.service.ratelimit.v3.RateLimitService/ShouldRateLimit";
const LOG: &str = "/envoy.service.accesslog.v3.AccessLogService/StreamAccessLogs";
const LAYERS: &str = "/envoy.service.runtime.v3.RuntimeDiscoveryService/StreamRuntime";
const HEALTH: &str = "/grpc.health.v1.Health/Check";
/// In the metadata of a request: what names it in the log.
const TOKEN: &str = "tidegate_token";
/// In the metadata: why, for the operator's own logs.
const REASON: &str = "tidegate_reason";
/// Longest question, in bytes. It has the path twice, and Envoy takes 60 KiB of headers unless it is told
/// otherwise (`max_request_headers_kb`).
const QUESTION_MAX: usize = 256 * 1024;
/// Longest message of the log, in bytes, and of who asks for a layer. The first of a stream also says what Envoy was built of (60 KiB),
/// and one that has reached 16 KiB is sent with its last entry.
const LOG_MAX: usize = 1024 * 1024;
/// Most questions of one connection at once; for more Envoy opens another connection.
const STREAMS_MAX: u32 = 256;
/// Questions that Envoy has given up before we looked at them; one more ends the connection, and the log with it. After
/// a stall all that Envoy has given up meanwhile are there at once: the windows bound how many.
const GIVEN_UP_MAX: usize = 4096;
/// What one message, and all of a connection, may have in transit.
const STREAM_WINDOW: u32 = 256 * 1024;
const CONNECTION_WINDOW: u32 = 1024 * 1024;
/// Headers of gRPC itself are short.
const HEADERS_BYTES_MAX: u32 = 16 * 1024;
/// A connection that says nothing for so long is closed; Envoy opens the next when it needs one.
const IDLE_MAX: Duration = Duration::from_secs(300);
/// One that is to be closed ends after this, whatever is under way.
const CLOSING_MAX: Duration = Duration::from_secs(2);
/// `grpc.health.v1.HealthCheckResponse.SERVING`
const SERVING: i32 = 1;

/// Serves until it is dropped.
pub(super) async fn serve(context: Context) {
    streams(&context, &[b"h2"], attend).await;
}

/// Serves one connection to its end.
pub(super) async fn attend(context: Context, stream: Box<dyn Stream>) {
    let talk = Arc::new(Talk::new(context));
    let of = Arc::clone(&talk);
    let service = service_fn(move |request| {
        let talk = Arc::clone(&of);
        async move { Ok::<_, Infallible>(talk.answer(request).await) }
    });
    let mut builder = http2::Builder::new(TokioExecutor::new());
    builder
        .timer(TokioTimer::new())
        .max_concurrent_streams(STREAMS_MAX)
        .max_pending_accept_reset_streams(GIVEN_UP_MAX)
        .initial_stream_window_size(STREAM_WINDOW)
        .initial_connection_window_size(CONNECTION_WINDOW)
        .max_header_list_size(HEADERS_BYTES_MAX);
    let mut connection = pin!(builder.serve_connection(TokioIo::new(stream), service));
    let ended = tokio::select! {
        ended = connection.as_mut() => ended,
        () = talk.over() => {
            connection.as_mut().graceful_shutdown();
            tokio::time::timeout(CLOSING_MAX, connection).await.unwrap_or(Ok(()))
        }
    };
    if ended.is_err_and(|error| is_garbage(&error)) {
        talk.context.misunderstood();
    }
}

/// Whether the peer broke the protocol, and not only the connection.
fn is_garbage(error: &hyper::Error) -> bool {
    let cause = error.source().and_then(|cause| cause.downcast_ref::<h2::Error>());
    cause.is_some_and(|cause| !cause.is_io() && !cause.is_remote())
}

/// One connection of Envoy.
struct Talk {
    context: Context,
    /// True: it shall be closed.
    closing: watch::Sender<bool>,
    /// It said something lately.
    heard: AtomicBool,
}

impl Talk {
    fn new(context: Context) -> Self {
        Self { context, closing: watch::Sender::new(false), heard: AtomicBool::new(false) }
    }

    /// It said something, or is told something.
    fn heard(&self) {
        self.heard.store(true, Relaxed);
    }

    /// Until it shall be closed: nothing was heard for a while, or something that was not understood.
    async fn over(&self) {
        let quiet = async {
            loop {
                tokio::time::sleep(IDLE_MAX).await;
                if !self.heard.swap(false, Relaxed) {
                    return;
                }
            }
        };
        tokio::select! {
            () = self.closed() => {}
            // The log is told, too.
            () = quiet => drop(self.closing.send_replace(true)),
        }
    }

    async fn closed(&self) {
        // The sender is ours, so it is there.
        let _ = self.closing.subscribe().wait_for(|closing| *closing).await;
    }

    /// Counts what was not understood, and closes the connection.
    fn misunderstood(&self) {
        self.context.misunderstood();
        self.closing.send_replace(true);
    }

    /// Answers one call.
    async fn answer(self: Arc<Self>, request: Request<Incoming>) -> Response<Body> {
        self.heard();
        let request = request.map(Sent);
        let response = match request.uri().path() {
            CHECK => grpc(QUESTION_MAX).unary(Unary(|asked| self.check(&asked)), request).await,
            RATE_LIMIT => {
                grpc(QUESTION_MAX).unary(Unary(|asked| self.rate_limit(&asked)), request).await
            }
            LOG => grpc(LOG_MAX).client_streaming(Log(Arc::clone(&self)), request).await,
            LAYERS => grpc(LOG_MAX).streaming(runtime::Layers(Arc::clone(&self)), request).await,
            HEALTH => grpc(QUESTION_MAX).unary(Unary(serving), request).await,
            _ => Status::unimplemented("not a service of tidegate").into_http(),
        };
        if Status::from_header_map(response.headers()).is_some_and(|status| is_nonsense(&status)) {
            self.misunderstood();
        }
        response
    }

    fn check(&self, request: &CheckRequest) -> CheckResponse {
        let ask =
            |ask: &Ask<'_>| self.context.ask(&Ask { gateway: &self.context.config.name, ..*ask });
        check::check(request, ask).unwrap_or_else(|| {
            self.misunderstood();
            check::passes()
        })
    }

    fn rate_limit(&self, request: &RateLimitRequest) -> RateLimitResponse {
        let ask =
            |ask: &Ask<'_>| self.context.ask(&Ask { gateway: &self.context.config.name, ..*ask });
        ratelimit::rate_limit(request, ask).unwrap_or_else(|| {
            self.misunderstood();
            ratelimit::passes(request.descriptors.len())
        })
    }

    fn report(&self, message: &StreamAccessLogsMessage) {
        for entry in message.http.iter().flat_map(|http| &http.entries) {
            match log::report(entry) {
                Ok(Some((token, completion))) => {
                    self.context.complete(Id::Token(token), &completion);
                }
                // It was refused, or nobody asked.
                Ok(None) => {}
                Err(_) => self.misunderstood(),
            }
        }
    }
}

fn grpc<D: Message + Default + 'static, E: Message + 'static>(
    message_max: usize,
) -> Grpc<ProstCodec<E, D>> {
    Grpc::new(ProstCodec::default()).max_decoding_message_size(message_max)
}

/// What Envoy sends in a call. hyper takes a reset for the end, and tonic what is cancelled: half a question that was
/// given up would be one that is not understood.
struct Sent(Incoming);

impl hyper::body::Body for Sent {
    type Data = Bytes;
    type Error = Status;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Task<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Status>>> {
        let frame = ready!(Pin::new(&mut self.0).poll_frame(cx));
        Poll::Ready(match frame {
            None if !self.0.is_end_stream() => Some(Err(Status::aborted("given up"))),
            frame => frame.map(|frame| frame.map_err(broken)),
        })
    }

    fn is_end_stream(&self) -> bool {
        self.0.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.0.size_hint()
    }
}

fn broken(error: hyper::Error) -> Status {
    let status = Status::from_error(error.into());
    if status.code() == Code::Cancelled { Status::aborted("given up") } else { status }
}

/// Whether the call was none that Envoy makes; others end with the connection, or with its patience.
fn is_nonsense(status: &Status) -> bool {
    matches!(status.code(), Code::Internal | Code::OutOfRange | Code::Unimplemented)
}

fn serving(_: HealthCheckRequest) -> HealthCheckResponse {
    HealthCheckResponse { status: SERVING }
}

/// A call of one message, answered at once.
struct Unary<F>(F);

impl<D, E, F: FnMut(D) -> E> UnaryService<D> for Unary<F> {
    type Response = E;
    type Future = Ready<Result<tonic::Response<E>, Status>>;

    fn call(&mut self, request: tonic::Request<D>) -> Self::Future {
        ready(Ok(tonic::Response::new((self.0)(request.into_inner()))))
    }
}

/// The log: a call that goes on as long as the connection.
struct Log(Arc<Talk>);

impl ClientStreamingService<StreamAccessLogsMessage> for Log {
    type Response = StreamAccessLogsResponse;
    type Future =
        Pin<Box<dyn Future<Output = Result<tonic::Response<Self::Response>, Status>> + Send>>;

    fn call(
        &mut self,
        request: tonic::Request<Streaming<StreamAccessLogsMessage>>,
    ) -> Self::Future {
        let (talk, mut stream) = (Arc::clone(&self.0), request.into_inner());
        Box::pin(async move {
            loop {
                let message = tokio::select! {
                    message = stream.message() => message?,
                    () = talk.closed() => None,
                };
                let Some(message) = message else {
                    return Ok(tonic::Response::new(StreamAccessLogsResponse {}));
                };
                talk.heard();
                talk.report(&message);
            }
        })
    }
}

/// The answer to a question, both as they are on the wire. `None`: it is none.
#[must_use]
pub fn envoy_check(message: &[u8], ask: impl FnOnce(&Ask<'_>) -> Answer) -> Option<Vec<u8>> {
    let request = CheckRequest::decode(message).ok()?;
    check::check(&request, ask).map(|response| response.encode_to_vec())
}

/// The same of the rate limit service.
#[must_use]
pub fn envoy_rate_limit(message: &[u8], ask: impl FnOnce(&Ask<'_>) -> Answer) -> Option<Vec<u8>> {
    let request = RateLimitRequest::decode(message).ok()?;
    ratelimit::rate_limit(&request, ask).map(|response| response.encode_to_vec())
}

/// What a message of the log reports; `None`: it is none.
#[must_use]
pub fn envoy_reports(message: &[u8]) -> Option<Vec<(Token, Completion)>> {
    let message = StreamAccessLogsMessage::decode(message).ok()?;
    let entries = message.http.into_iter().flat_map(|http| http.entries);
    Some(entries.filter_map(|entry| log::report(&entry).ok().flatten()).collect())
}

#[cfg(test)]
mod tests;
