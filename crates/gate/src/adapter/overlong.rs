// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A question whose head is longer than is read, where nothing may be refused.
//!
//! hyper answers such a head by itself, with 431, and closes the connection: what it says of the request is not
//! known, so neither is its service. Where no service behind the gateway refuses anything, the proxy is told to
//! pass the request instead. What it still sends is read and forgotten: closed with bytes unread, a connection
//! is reset, and the proxy may lose the answer.

use std::io;
use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::time::Sleep;

/// How hyper's answer begins. Adapters have none of this status.
const TOO_LONG: &[u8] = b"HTTP/1.1 431 ";
const PASSES: &[u8] = b"HTTP/1.1 204 No Content\r\nconnection: close\r\n\r\n";
/// So many bytes more are read; proxies send heads of a MiB at most where nobody has said otherwise.
const REST_MAX: usize = 4 << 20;
/// And for so long.
const REST_TIME_MAX: Duration = Duration::from_secs(1);

/// Who answers a head that is too long.
enum Answer {
    /// None came.
    Nobody,
    /// hyper.
    Refuses,
    /// So many bytes of [`PASSES`] are written.
    Passes(usize),
}

/// A stream with that answer in the place of hyper's.
pub(super) struct Overlong<S, P> {
    stream: S,
    /// Called for a head that is too long: whether its request passes.
    passes: P,
    answer: Answer,
    shut: bool,
    rest: usize,
    until: Option<Pin<Box<Sleep>>>,
}

impl<S: AsyncRead + AsyncWrite + Unpin, P: Fn() -> bool> Overlong<S, P> {
    pub(super) const fn new(stream: S, passes: P) -> Self {
        let answer = Answer::Nobody;
        Self { stream, passes, answer, shut: false, rest: REST_MAX, until: None }
    }

    /// Until the other side has said all, or enough.
    fn poll_rest(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        let mut bytes = [0; 8192];
        while self.rest > 0 {
            let mut buffer = ReadBuf::new(&mut bytes);
            match Pin::new(&mut self.stream).poll_read(cx, &mut buffer) {
                Poll::Ready(Ok(())) if !buffer.filled().is_empty() => {
                    self.rest = self.rest.saturating_sub(buffer.filled().len());
                }
                Poll::Ready(_) => break,
                Poll::Pending => {
                    let begin = || Box::pin(tokio::time::sleep(REST_TIME_MAX));
                    return self.until.get_or_insert_with(begin).as_mut().poll(cx);
                }
            }
        }
        Poll::Ready(())
    }
}

impl<S: AsyncRead + Unpin, P: Unpin> AsyncRead for Overlong<S, P> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_read(cx, buffer)
    }
}

impl<S: AsyncRead + AsyncWrite + Unpin, P: Fn() -> bool + Unpin> AsyncWrite for Overlong<S, P> {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        if matches!(self.answer, Answer::Nobody) && bytes.starts_with(TOO_LONG) {
            self.answer = if (self.passes)() { Answer::Passes(0) } else { Answer::Refuses };
        }
        while let Answer::Passes(said) = self.answer {
            let Some(left) = PASSES.get(said..).filter(|left| !left.is_empty()) else {
                return Poll::Ready(Ok(bytes.len()));
            };
            match ready!(Pin::new(&mut self.stream).poll_write(cx, left))? {
                0 => return Poll::Ready(Err(io::ErrorKind::WriteZero.into())),
                written => self.answer = Answer::Passes(said + written),
            }
        }
        Pin::new(&mut self.stream).poll_write(cx, bytes)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        if !self.shut {
            ready!(Pin::new(&mut self.stream).poll_shutdown(cx))?;
            self.shut = true;
        }
        if matches!(self.answer, Answer::Passes(_)) {
            ready!(self.poll_rest(cx));
        }
        Poll::Ready(Ok(()))
    }
}
