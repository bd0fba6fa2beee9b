// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Bodies under way, with their time-outs: frame by frame, never held as a whole.

use crate::connection::UnderWay;
use crate::front::Front;
use crate::head::Fault;
use crate::pool::Lease;
use hyper::StatusCode;
use hyper::body::{Body, Bytes, Frame, Incoming, SizeHint};
use std::error::Error;
use std::future::poll_fn;
use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::task::{Context, Poll, ready};
use std::time::Duration;
use tidegate_gate::{Completion, Id, Token};
use tidegate_units::Nanos;
use tokio::time::{Sleep, sleep};

type BoxError = Box<dyn Error + Send + Sync>;
type Polled = Poll<Option<Result<Frame<Bytes>, BoxError>>>;

/// The status of a client that left before its response had ended, as nginx writes it.
const CLIENT_LEFT: u16 = 499;
/// So many bytes of a body buy its client another second.
const BYTES_PER_SECOND_MIN: u64 = 500;

/// What a client did that did not send its body in time.
pub(crate) const SLOW: Fault =
    (StatusCode::REQUEST_TIMEOUT, "the body of the request came too slowly");
/// What a client did whose body is none.
const MALFORMED: Fault = (StatusCode::BAD_REQUEST, "the body of the request is none");

/// What a request body has come to, as the exchange sees it.
#[derive(Debug, Default)]
pub(crate) struct Upload {
    /// It has ended, or there is none.
    pub(crate) ended: AtomicBool,
    /// Its client was too slow.
    pub(crate) slow: AtomicBool,
    /// It is no body.
    pub(crate) malformed: AtomicBool,
    /// When the server asked for more of it last.
    pub(crate) at_ns: AtomicU64,
    /// Since when its client is waited for; 0: it is not.
    since_ns: AtomicU64,
    /// For how long it was waited for before.
    waited_ns: AtomicU64,
    /// Bytes that have come.
    received: AtomicU64,
}

impl Upload {
    /// Whether the server has everything that its client has sent, and that is not all.
    pub(crate) fn waits(&self) -> bool {
        self.since_ns.load(Relaxed) > 0
    }

    /// For how long its client was waited for so far: no time of the server's.
    pub(crate) fn waited(&self, now: Nanos) -> Nanos {
        let since = self.since_ns.load(Relaxed);
        let going_on = if since > 0 { now.since(Nanos(since)) } else { Nanos::ZERO };
        Nanos(self.waited_ns.load(Relaxed)) + going_on
    }

    /// For how long its client lets the server wait: in this pause, or in all of them beyond what its bytes have
    /// bought. Zero: it is not waited for.
    pub(crate) fn overdue(&self, now: Nanos) -> Nanos {
        let since = self.since_ns.load(Relaxed);
        if since == 0 {
            return Nanos::ZERO;
        }
        let bought = Nanos::from_secs(self.received.load(Relaxed) / BYTES_PER_SECOND_MIN);
        now.since(Nanos(since)).max(self.waited(now).since(bought))
    }

    /// What its client did, where the request failed for that.
    pub(crate) fn fault(&self) -> Option<Fault> {
        if self.slow.load(Relaxed) {
            Some(SLOW)
        } else if self.malformed.load(Relaxed) {
            Some(MALFORMED)
        } else {
            None
        }
    }
}

#[cfg(test)]
impl Upload {
    /// One whose client is waited for since then; so much has come.
    pub(crate) fn paused(since: Nanos, received: u64) -> Self {
        let (since_ns, received) = (AtomicU64::new(since.0), AtomicU64::new(received));
        Self { since_ns, received, ..Self::default() }
    }

    /// It was waited for so long before.
    pub(crate) fn waited_before(&self, time: Nanos) {
        self.waited_ns.store(time.0, Relaxed);
    }
}

/// The body of a request, on its way to the server.
pub(crate) struct Uploaded {
    inner: Incoming,
    /// Its first part, until a server asks for it; of a body without any, none.
    first: Option<Option<Frame<Bytes>>>,
    upload: Arc<Upload>,
    front: Arc<Front>,
    pause: Pause,
    patience: Duration,
}

/// Time that is waited for one side.
#[derive(Default)]
struct Pause {
    /// Since when.
    since: Option<Nanos>,
    /// All of it so far.
    waited: Nanos,
    sleep: Option<Pin<Box<Sleep>>>,
}

impl Pause {
    /// It goes on.
    fn end(&mut self, now: Nanos) {
        if let Some(since) = self.since.take() {
            self.waited += now.since(since);
        }
    }

    /// What it has stood for does not count, and it may stand as long again.
    fn again(&mut self) {
        self.since = None;
    }

    /// It stands, for no longer than that. True: it has stood so long.
    fn stands(&mut self, cx: &mut Context<'_>, now: Nanos, most: Duration) -> bool {
        if self.since.is_none() {
            self.since = Some(now);
            match &mut self.sleep {
                Some(pinned) => pinned.as_mut().set(sleep(most)),
                None => self.sleep = Some(Box::pin(sleep(most))),
            }
        }
        self.sleep.as_mut().is_some_and(|sleep| sleep.as_mut().poll(cx).is_ready())
    }
}

impl Uploaded {
    pub(crate) fn new(inner: Incoming, front: Arc<Front>, patience: Duration) -> Self {
        let upload = Arc::new(Upload::default());
        upload.ended.store(inner.is_end_stream(), Relaxed);
        upload.at_ns.store(front.now().0, Relaxed);
        Self { inner, first: None, upload, front, pause: Pause::default(), patience }
    }

    /// Waits until a part of it is there, or its end.
    pub(crate) async fn begins(&mut self) -> Result<(), Fault> {
        if self.is_end_stream() {
            return Ok(());
        }
        let first = poll_fn(|cx| self.read(cx)).await.transpose();
        self.first = Some(first.map_err(|_| self.upload.fault().unwrap_or(MALFORMED))?);
        if self.is_end_stream() {
            self.upload.ended.store(true, Relaxed);
        }
        Ok(())
    }

    pub(crate) fn upload(&self) -> Arc<Upload> {
        Arc::clone(&self.upload)
    }

    /// What is left of the time in which its client may pause. What it has bought is for many pauses: none is
    /// longer than without, or one who sends much may hold a server's connection for as long as it likes.
    fn left(&self) -> Duration {
        let received = self.upload.received.load(Relaxed);
        let bought = Duration::from_secs(received / BYTES_PER_SECOND_MIN);
        let left =
            (self.patience + bought).saturating_sub(Duration::from_nanos(self.pause.waited.0));
        left.min(self.patience)
    }

    /// The next part of it. Trailers are between the client and us.
    fn read(&mut self, cx: &mut Context<'_>) -> Polled {
        let now = self.front.now();
        loop {
            let Poll::Ready(frame) = Pin::new(&mut self.inner).poll_frame(cx) else {
                let left = self.left();
                if self.pause.stands(cx, now, left) {
                    self.upload.slow.store(true, Relaxed);
                    return Poll::Ready(Some(Err(io::Error::from(io::ErrorKind::TimedOut).into())));
                }
                self.upload.since_ns.store(self.pause.since.map_or(0, |since| since.0), Relaxed);
                return Poll::Pending;
            };
            self.pause.end(now);
            // First what adds to the sum: read meanwhile it is a little too long, and never a jump back.
            self.upload.waited_ns.store(self.pause.waited.0, Relaxed);
            self.upload.since_ns.store(0, Relaxed);
            match frame {
                Some(Ok(frame)) => {
                    let length = frame.data_ref().map_or(0, |data| data.len() as u64);
                    if length > 0 {
                        self.upload.received.fetch_add(length, Relaxed);
                        return Poll::Ready(Some(Ok(frame)));
                    }
                }
                Some(Err(error)) => {
                    self.upload.malformed.store(true, Relaxed);
                    return Poll::Ready(Some(Err(error.into())));
                }
                None => return Poll::Ready(None),
            }
        }
    }
}

impl Drop for Uploaded {
    fn drop(&mut self) {
        // Nobody is waited for any more.
        self.pause.end(self.front.now());
        self.upload.waited_ns.store(self.pause.waited.0, Relaxed);
        self.upload.since_ns.store(0, Relaxed);
    }
}

impl Body for Uploaded {
    type Data = Bytes;
    type Error = BoxError;

    fn poll_frame(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Polled {
        let this = &mut *self;
        this.upload.at_ns.store(this.front.now().0, Relaxed);
        let frame = match this.first.take() {
            Some(first) => first.map(Ok),
            None => ready!(this.read(cx)),
        };
        let ended = match &frame {
            Some(Ok(_)) => this.inner.is_end_stream(),
            Some(Err(_)) => false,
            None => true,
        };
        if ended {
            this.upload.ended.store(true, Relaxed);
        }
        Poll::Ready(frame)
    }

    fn is_end_stream(&self) -> bool {
        !matches!(self.first, Some(Some(_))) && self.inner.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        let first = self.first.iter().flatten().filter_map(Frame::data_ref).map(Bytes::len);
        let (first, left) = (first.sum::<usize>() as u64, self.inner.size_hint());
        left.exact().map_or_else(SizeHint::default, |left| SizeHint::with_exact(left + first))
    }
}

/// Tells the gate what became of a request, once: also of one whose client left.
pub(crate) struct Report {
    front: Arc<Front>,
    token: Option<Token>,
    started: Nanos,
    first_byte: Option<Nanos>,
    upload: Option<Arc<Upload>>,
    /// For how long the client had been waited for when it began.
    waited_before: Nanos,
    /// A server may have it.
    sent: bool,
}

impl Report {
    pub(crate) const fn new(front: Arc<Front>, token: Option<Token>, started: Nanos) -> Self {
        let waited_before = Nanos::ZERO;
        let (first_byte, upload, sent) = (None, None, false);
        Self { front, token, started, first_byte, upload, waited_before, sent }
    }

    /// The body of its request: what its client takes for it is no time of the server's.
    pub(crate) fn uploads(&mut self, upload: Arc<Upload>) {
        self.waited_before = upload.waited(self.started);
        self.upload = Some(upload);
    }

    /// Now a server gets it.
    pub(crate) fn sends(&mut self) {
        self.sent = true;
    }

    /// The time with the server so far.
    fn took(&self) -> Nanos {
        let now = self.front.now();
        now.since(self.started).since(self.waited(now))
    }

    /// For how long the client was waited for so far, with the body of its request.
    fn waited(&self, now: Nanos) -> Nanos {
        let waited = self.upload.as_ref().map_or(Nanos::ZERO, |upload| upload.waited(now));
        waited.since(self.waited_before)
    }

    /// The head of the response has come.
    pub(crate) fn begin(&mut self) {
        self.first_byte = Some(self.took());
    }

    /// The response has ended; its body took so long with the server.
    pub(crate) fn end(&mut self, status: u16, body: Nanos) {
        let Some(token) = self.token.take() else { return };
        let head = self.first_byte.unwrap_or_else(|| self.took());
        let (first_byte, duration) = (Some(head), Some(head + body));
        let completion = Completion { status, first_byte, duration, waited: None };
        self.front.gate.complete(self.front.now(), Id::Token(token), &completion);
    }

    /// No server could have it: the response is the proxy's.
    pub(crate) fn unserved(&mut self, status: u16) {
        let Some(token) = self.token.take() else { return };
        self.front.gate.unserved(Id::Token(token), status);
    }
}

impl Drop for Report {
    fn drop(&mut self) {
        if self.sent {
            self.end(CLIENT_LEFT, Nanos::ZERO);
        } else {
            self.unserved(0);
        }
    }
}

/// The body of a response.
pub(crate) enum Outgoing {
    /// Of the proxy itself.
    Text(Option<Bytes>),
    /// Of a server.
    Passed(Box<Passed>),
}

/// A server's body, on its way to the client.
pub(crate) struct Passed {
    inner: Incoming,
    status: u16,
    report: Report,
    lease: Option<Lease>,
    pause: Pause,
    /// For how long the client had been waited for when the server's pause began.
    waited: Nanos,
    /// For how long it was waited for during the server's pauses: no time of the server's.
    spared: Nanos,
    patience: Duration,
    failed: bool,
    /// The client's connection has something to do.
    under_way: Option<UnderWay>,
}

impl Outgoing {
    pub(crate) fn text(text: String) -> Self {
        Self::Text(Some(text.into()))
    }

    pub(crate) fn passed(
        inner: Incoming,
        status: u16,
        (report, lease): (Report, Lease),
        patience: Duration,
    ) -> Self {
        Self::Passed(Box::new(Passed {
            inner,
            status,
            report,
            lease: Some(lease),
            pause: Pause::default(),
            waited: Nanos::ZERO,
            spared: Nanos::ZERO,
            patience,
            failed: false,
            under_way: None,
        }))
    }

    /// Until it has ended, its request is under way.
    pub(crate) fn with(mut self, under_way: UnderWay) -> Self {
        if let Self::Passed(passed) = &mut self {
            passed.under_way = Some(under_way);
        }
        self
    }
}

impl Passed {
    fn poll(&mut self, cx: &mut Context<'_>) -> Polled {
        // Who asks for more has taken what there was.
        self.under_way.iter().for_each(UnderWay::taken);
        self.lease.iter().for_each(|lease| lease.download().taken());
        let polled = self.poll_inner(cx);
        if let Poll::Ready(Some(Ok(_))) = &polled {
            self.under_way.iter().for_each(UnderWay::gave);
            let now = self.report.front.now();
            self.lease.iter().for_each(|lease| lease.download().gave(now));
        }
        polled
    }

    fn poll_inner(&mut self, cx: &mut Context<'_>) -> Polled {
        let mut polled = Pin::new(&mut self.inner).poll_frame(cx);
        while let Poll::Ready(Some(Ok(frame))) = &polled
            && frame.is_trailers()
        {
            // They are between the server and us.
            polled = Pin::new(&mut self.inner).poll_frame(cx);
        }
        if let Poll::Ready(Some(Ok(_))) = polled
            && self.pause.since.is_none()
        {
            // It was there already: most are.
        } else {
            let now = self.report.front.now();
            if polled.is_pending() {
                let mut stands = self.stands(cx, now);
                if stands && self.lease.as_ref().is_some_and(|lease| lease.upload().waits()) {
                    // The server waits as well: for more of the request.
                    self.pause.again();
                    stands = self.stands(cx, now);
                }
                if stands {
                    self.failed = true;
                    crate::counters::one(&self.report.front.counters.timed_out);
                    self.end(504);
                    return Poll::Ready(Some(Err(io::Error::from(io::ErrorKind::TimedOut).into())));
                }
                return Poll::Pending;
            }
            self.goes_on(now);
        }
        let frame = ready!(polled);
        match &frame {
            // All of it has left the server, whenever its client takes it.
            Some(Ok(_)) if self.inner.is_end_stream() => self.end(self.status),
            Some(Ok(_)) => {}
            Some(Err(_)) => self.breaks(),
            None => self.end(self.status),
        }
        Poll::Ready(frame.map(|frame| frame.map_err(Into::into)))
    }

    /// It has broken off: by its client, if that stopped its own body or did not take this one, else by the server.
    fn breaks(&mut self) {
        self.failed = true;
        let counters = &self.report.front.counters;
        let lease = self.lease.as_ref();
        let status = if lease.map(Lease::upload).and_then(Upload::fault).is_some() {
            crate::counters::one(&counters.malformed);
            CLIENT_LEFT
        } else if lease.is_some_and(|lease| lease.download().cut()) {
            CLIENT_LEFT
        } else {
            crate::counters::one(&counters.broken);
            502
        };
        self.end(status);
    }

    /// The server pauses; true: it has for too long.
    fn stands(&mut self, cx: &mut Context<'_>, now: Nanos) -> bool {
        if self.pause.since.is_none() {
            self.waited = self.report.waited(now);
        }
        self.pause.stands(cx, now, self.patience)
    }

    /// It does not pause any more.
    fn goes_on(&mut self, now: Nanos) {
        if self.pause.since.is_some() {
            self.spared += self.report.waited(now).since(self.waited);
        }
        self.pause.end(now);
    }

    /// It has ended: the gate is told, and the server's connection may serve another.
    fn end(&mut self, status: u16) {
        self.report.end(status, self.pause.waited.since(self.spared));
        if let Some(lease) = self.lease.take().filter(|_| !self.failed) {
            lease.give_back();
        }
    }
}

impl Drop for Passed {
    fn drop(&mut self) {
        // A length says when it ends: then nobody asks for more.
        if !self.failed && self.inner.is_end_stream() {
            self.end(self.status);
        }
    }
}

impl Body for Outgoing {
    type Data = Bytes;
    type Error = BoxError;

    fn poll_frame(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Polled {
        match &mut *self {
            Self::Text(text) => Poll::Ready(text.take().map(|text| Ok(Frame::data(text)))),
            Self::Passed(passed) => passed.poll(cx),
        }
    }

    fn is_end_stream(&self) -> bool {
        match self {
            Self::Text(text) => text.is_none(),
            Self::Passed(passed) => passed.inner.is_end_stream(),
        }
    }

    fn size_hint(&self) -> SizeHint {
        match self {
            Self::Text(text) => SizeHint::with_exact(text.as_ref().map_or(0, |t| t.len() as u64)),
            Self::Passed(passed) => passed.inner.size_hint(),
        }
    }
}
