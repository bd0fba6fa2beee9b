// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Clients that do not behave: what they send at once, and what drips after it. In cleartext only.

use super::plan::Stream;
use super::wire::Transport;
use serde::{Deserialize, Serialize};
use std::borrow::Cow;
use tidegate_units::Nanos;

/// Between two bytes of an upload: below the time-outs that servers have for silence.
const UPLOAD_PAUSE: Nanos = Nanos::SECOND;
/// What an upload announces: more than it ever sends.
const UPLOAD_BYTES: usize = 1_000_000;
/// Between the parts of a split request: longer than any coalescing.
const SPLIT_PAUSE: Nanos = Nanos::from_millis(20);
/// Where a request is split: within its method, path and first header.
const SPLIT_AT: usize = 9;

/// How a client sends its request.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Manner {
    /// As it should.
    #[default]
    Plain,
    /// Not at all: the connection is open and silent.
    Silent,
    /// As an upload of 1 MB at a byte a second.
    SlowUpload,
    /// In two segments, the first of which ends within the path.
    Split,
    /// Behind another request in the same segment; its own response is the first.
    Pipelined,
    /// As HTTP/0.9 has it: a line without a version. The response is what comes until the end.
    Http09,
}

impl Manner {
    /// What goes out when the connection is there, and what drips after it.
    pub(crate) fn bytes<'a>(
        self,
        spec: &Stream,
        request: Cow<'a, [u8]>,
    ) -> (Cow<'a, [u8]>, Option<Drip>) {
        let own = |bytes: Vec<u8>| (Cow::Owned(bytes), None);
        match self {
            Self::Plain => (request, None),
            Self::Silent => own(Vec::new()),
            Self::SlowUpload => {
                let head = format!(
                    "POST {} HTTP/1.1\r\nHost: {}\r\nContent-Length: {UPLOAD_BYTES}\r\n\r\n",
                    spec.path, spec.host
                );
                (Cow::Owned(head.into_bytes()), Some(Drip::Byte))
            }
            Self::Split => {
                let (first, rest) = request.split_at(SPLIT_AT.min(request.len()));
                (Cow::Owned(first.to_vec()), Some(Drip::Rest(rest.to_vec())))
            }
            Self::Pipelined => own([&*request, &*request].concat()),
            Self::Http09 => own(format!("GET {}\r\n", spec.path).into_bytes()),
        }
    }

    /// Whether the response has no head.
    pub(crate) const fn is_headless(self) -> bool {
        matches!(self, Self::Http09)
    }

    pub(crate) fn check(self, spec: &Stream) -> Result<(), &'static str> {
        if self == Self::Plain || spec.transport == Transport::Clear && spec.mix.is_none() {
            return Ok(());
        }
        Err("a manner needs cleartext, and no mix")
    }
}

/// What a client sends later.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Drip {
    /// A byte, and again.
    Byte,
    /// This, and then nothing.
    Rest(Vec<u8>),
}

impl Drip {
    /// How long after what went before.
    pub(crate) const fn pause(&self) -> Nanos {
        match self {
            Self::Byte => UPLOAD_PAUSE,
            Self::Rest(_) => SPLIT_PAUSE,
        }
    }

    /// What goes out now, and what after it.
    pub(crate) fn next(self) -> (Vec<u8>, Option<Self>) {
        match self {
            Self::Byte => (vec![b'x'], Some(Self::Byte)),
            Self::Rest(bytes) => (bytes, None),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::load::plan::tests::plan;
    use crate::load::wire::request_bytes;

    /// Together the parts of a request are the request; who is silent sends nothing.
    #[test]
    fn each_manner_sends_what_it_says() {
        let spec = plan(1.0).streams.remove(0);
        let whole = request_bytes(&spec, &spec.path, None);
        let sent = |manner: Manner| manner.bytes(&spec, Cow::Borrowed(&whole));
        assert_eq!(sent(Manner::Plain), (Cow::Borrowed(&whole[..]), None));
        assert!(sent(Manner::Silent).0.is_empty());
        let (first, rest) = sent(Manner::Split);
        let (rest, end) = rest.unwrap().next();
        assert_eq!((first.len(), [&*first, &rest].concat(), end), (SPLIT_AT, whole.clone(), None));
        assert_eq!(sent(Manner::Pipelined).0.len(), 2 * whole.len());
        assert_eq!(&*sent(Manner::Http09).0, b"GET /\r\n");
        let (head, drip) = sent(Manner::SlowUpload);
        assert!(head.starts_with(b"POST / HTTP/1.1\r\n") && head.ends_with(b"\r\n\r\n"));
        assert_eq!(drip.unwrap().next(), (vec![b'x'], Some(Drip::Byte)));
    }

    #[test]
    fn manners_are_of_cleartext() {
        let mut spec = plan(1.0).streams.remove(0);
        assert!(Manner::Split.check(&spec).is_ok());
        spec.transport = Transport::Tls;
        assert!(Manner::Split.check(&spec).is_err() && Manner::Plain.check(&spec).is_ok());
    }
}
