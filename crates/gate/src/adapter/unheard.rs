// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Answers that the proxy has not read.
//!
//! A proxy that has no time left gives a question up after its time-out, and closes the connection: what it was told to
//! pass it does not pass by this answer. Nobody would report such a request, so it would count as in flight for seconds, and a
//! full limit of requests that nobody has let in refuses all others. The kernel says so: closed with bytes unread, a
//! connection is reset, and what is written to a closed one fails.

use crate::Token;
use std::io::{self, ErrorKind};
use std::pin::Pin;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll};
use tidegate_units::Nanos;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

/// An older answer was read: time-outs are shorter. Then a reset is about something else.
const UNREAD_MAX: Nanos = Nanos::from_secs(2);

/// What the last answer of a connection has let pass, and whether the connection has failed.
#[derive(Debug, Default)]
pub(super) struct Last(Mutex<State>);

#[derive(Debug, Default)]
struct State {
    passed: Option<(Token, Nanos)>,
    failed: bool,
}

impl Last {
    fn state(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// This was answered now. Who asks again has read the answer before.
    pub(super) fn answer(&self, now: Nanos, passed: Option<Token>) {
        self.state().passed = passed.map(|token| (token, now));
    }

    /// The connection has ended: what was let pass by an answer that nobody has read.
    pub(super) fn unread(&self, now: Nanos) -> Option<Token> {
        let mut state = self.state();
        let (token, at) = state.passed.take().filter(|_| state.failed)?;
        (now.since(at) <= UNREAD_MAX).then_some(token)
    }

    fn see<T>(&self, polled: Poll<io::Result<T>>) -> Poll<io::Result<T>> {
        // TLS that ends without a farewell is an error, too, and says nothing: nginx closes kept connections so.
        let unread = |error: &io::Error| {
            matches!(error.kind(), ErrorKind::ConnectionReset | ErrorKind::BrokenPipe)
        };
        if matches!(&polled, Poll::Ready(Err(error)) if unread(error)) {
            self.state().failed = true;
        }
        polled
    }
}

/// A stream that says there when it fails.
pub(super) struct Watched<'a, S> {
    pub(super) stream: S,
    pub(super) last: &'a Last,
}

impl<S: AsyncRead + Unpin> AsyncRead for Watched<'_, S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let polled = Pin::new(&mut self.stream).poll_read(cx, buffer);
        self.last.see(polled)
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for Watched<'_, S> {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        let polled = Pin::new(&mut self.stream).poll_write(cx, bytes);
        self.last.see(polled)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let polled = Pin::new(&mut self.stream).poll_flush(cx);
        self.last.see(polled)
    }

    /// Of a connection that is closed already it fails, too: that says nothing.
    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(cx)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn unread(failure: ErrorKind, later: Nanos) -> Option<Token> {
        let (last, now) = (Last::default(), Nanos::from_secs(10));
        last.answer(now, Some(Token(7)));
        let _ = last.see::<()>(Poll::Ready(Err(failure.into())));
        last.unread(now + later)
    }

    #[test]
    fn a_reset_says_that_the_last_answer_is_unread_and_an_end_does_not() {
        let soon = Nanos::from_millis(200);
        for failure in [ErrorKind::ConnectionReset, ErrorKind::BrokenPipe] {
            assert_eq!(unread(failure, soon), Some(Token(7)), "{failure}");
            assert_eq!(unread(failure, UNREAD_MAX + Nanos(1)), None, "it was read long ago");
        }
        assert_eq!(unread(ErrorKind::UnexpectedEof, soon), None, "TLS without a farewell");
        let last = Last::default();
        last.answer(soon, Some(Token(7)));
        assert_eq!(last.unread(soon), None, "it has not failed");
        last.answer(soon, Some(Token(7)));
        last.answer(soon, None);
        let _ = last.see::<()>(Poll::Ready(Err(ErrorKind::BrokenPipe.into())));
        assert_eq!(last.unread(soon), None, "the last answer was a refusal");
    }
}
