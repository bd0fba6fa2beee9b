// SPDX-License-Identifier: Apache-2.0 OR MIT
//! HAProxy: SPOE, by SPOP 2.0; completions by its log. docs/gateways.md has the configuration of HAProxy
//! for both.
//!
//! A message `ask` names method, target, client, id and headers. Each is acknowledged with what is
//! decided, in variables of the transaction: `token`, `reason`, and of a refusal `refuse` and the parts
//! of the response. HAProxy goes on without them when the agent is silent, slow or gone.
//!
//! Where the message has `asked`, the rules of HAProxy can refuse by themselves (see [`crate::asked`]): it is the
//! share that was asked about, or nothing while all are. The answer names the share to ask about, `asks`.

use super::headers::Joined;
use super::listen::{Stream, datagrams, streams};
use super::{Context, haproxy_report};
use crate::asked::PARTS;
use crate::{Answer, Ask, Headers, Id};
use spop::actions::VarScope;
use spop::frame::{FramePayload, FrameType, Message};
use spop::frames::{Ack, AgentDisconnect, AgentHello, FrameCapabilities, HaproxyHello};
use spop::{SpopFrame, StatusCode, TypedData};
use std::net::IpAddr;
use std::time::Duration;
use tokio::io::{AsyncReadExt, AsyncWriteExt};

/// Longest frame: what HAProxy offers by default (`tune.bufsize` less 4).
const FRAME_MAX: u32 = 16_380;
/// Read at once.
const CHUNK: usize = 16 * 1024;
/// A connection that says nothing for so long is closed; HAProxy closes idle ones after its own time-out.
const IDLE_MAX: Duration = Duration::from_secs(300);
/// The message that asks.
const ASK: &str = "ask";

/// Serves until it is dropped.
pub(super) async fn serve(context: Context) {
    let asked = streams(&context, &[], attend);
    let Some(endpoint) = &context.config.completions else { return asked.await };
    let reported =
        datagrams(&context, endpoint, |context, datagram| match haproxy_report(datagram) {
            // A request that is not followed is logged as well.
            Ok(report) => {
                if let Some((token, completion)) = report {
                    context.complete(Id::Token(token), &completion);
                }
            }
            Err(_) => context.misunderstood(),
        });
    tokio::join!(asked, reported);
}

/// Serves one connection to its end.
pub(super) async fn attend(context: Context, mut stream: Box<dyn Stream>) {
    let mut talk = Talk::default();
    let (mut received, mut out) = (Vec::new(), Vec::new());
    loop {
        let goes_on = talk.hear(&mut received, &mut out, |ask| {
            context.ask(&Ask { gateway: &context.config.name, ..*ask })
        });
        let written = out.is_empty() || send_all(&mut stream, &out).await.is_ok();
        out.clear();
        (0..talk.misunderstood()).for_each(|_| context.misunderstood());
        if !goes_on || !written {
            return;
        }
        received.reserve(CHUNK);
        match tokio::time::timeout(IDLE_MAX, stream.read_buf(&mut received)).await {
            Ok(Ok(more)) if more > 0 => {}
            // In the middle of a frame it is no HAProxy.
            Ok(Ok(_)) if !received.is_empty() => return context.misunderstood(),
            _ => return,
        }
    }
}

/// TLS holds back what is not flushed.
async fn send_all(stream: &mut Box<dyn Stream>, out: &[u8]) -> std::io::Result<()> {
    stream.write_all(out).await?;
    stream.flush().await
}

/// One connection of HAProxy, without its socket.
#[derive(Debug, Default)]
pub struct Talk {
    /// What was agreed upon; `None`: nobody has said hello.
    frame_max: Option<u32>,
    misunderstood: u64,
}

impl Talk {
    /// Takes all whole frames off `received`, and appends what is answered to `out`. False: the
    /// connection is to be closed once that is sent.
    pub fn hear(
        &mut self,
        received: &mut Vec<u8>,
        out: &mut Vec<u8>,
        mut ask: impl FnMut(&Ask<'_>) -> Answer,
    ) -> bool {
        let (mut rest, mut goes_on) = (received.as_slice(), true);
        while goes_on {
            let frame_max = self.frame_max.unwrap_or(FRAME_MAX);
            match spop::parser::parse_frame_with_limit(rest, frame_max) {
                Ok((after, frame)) => {
                    rest = after;
                    goes_on = self.frame(frame.as_ref(), out, &mut ask).unwrap_or_else(|status| {
                        self.misunderstood += 1;
                        disconnect(status, out)
                    });
                }
                Err(error) if error.is_incomplete() => break,
                Err(_) => {
                    self.misunderstood += 1;
                    goes_on = disconnect(StatusCode::Invalid, out);
                }
            }
        }
        let left = rest.len();
        received.drain(..received.len() - left);
        goes_on
    }

    /// What was not understood since the last call.
    pub fn misunderstood(&mut self) -> u64 {
        std::mem::take(&mut self.misunderstood)
    }

    fn frame(
        &mut self,
        frame: &dyn SpopFrame,
        out: &mut Vec<u8>,
        ask: &mut dyn FnMut(&Ask<'_>) -> Answer,
    ) -> Result<bool, StatusCode> {
        match (frame.frame_type(), frame.payload()) {
            (FrameType::HaproxyHello, payload) if self.frame_max.is_none() => {
                let hello = HaproxyHello::try_from(payload).map_err(|_| StatusCode::Invalid)?;
                self.hello(&hello, out)
            }
            (FrameType::HaproxyDisconnect, _) => Ok(disconnect(StatusCode::None, out)),
            (FrameType::Notify, FramePayload::ListOfMessages(messages))
                if self.frame_max.is_some() =>
            {
                let meta = frame.metadata();
                let mut ack = Ack::new(meta.stream_id, meta.frame_id);
                for message in messages {
                    match self::ask(message, ask) {
                        Some(answer) => ack = told(ack, &answer),
                        None => self.misunderstood += 1,
                    }
                }
                Ok(send(&ack, out))
            }
            _ => Err(StatusCode::Invalid),
        }
    }

    fn hello(&mut self, hello: &HaproxyHello, out: &mut Vec<u8>) -> Result<bool, StatusCode> {
        let version = hello.negotiate_version().ok_or(StatusCode::BadVersion)?;
        let max_frame_size = hello.negotiate_max_frame_size(FRAME_MAX)?;
        self.frame_max = Some(max_frame_size);
        let capabilities = vec![FrameCapabilities::Pipelining];
        let said = send(&AgentHello { version, max_frame_size, capabilities }, out);
        // A health check wants nothing else, and closes.
        Ok(said && hello.healthcheck != Some(true))
    }
}

/// False: it cannot be sent, so the connection is of no use.
fn send(frame: &dyn SpopFrame, out: &mut Vec<u8>) -> bool {
    frame.serialize_into(out).is_ok()
}

/// Says goodbye: always false.
fn disconnect(status: StatusCode, out: &mut Vec<u8>) -> bool {
    let message = status.message().to_owned();
    send(&AgentDisconnect { status_code: status.to_u32(), message }, out);
    false
}

/// The question of a message; `None`: it is none.
fn ask(message: &Message, ask: &mut dyn FnMut(&Ask<'_>) -> Answer) -> Option<Answer> {
    let text = |name| match message.get(name) {
        Some(TypedData::String(text)) => Some(text.as_str()),
        _ => None,
    };
    let (ASK, Some(method), Some(target)) = (message.name.as_str(), text("method"), text("target"))
    else {
        return None;
    };
    let headers = headers(text("headers").unwrap_or_default());
    Some(ask(&Ask {
        gateway: "",
        method,
        host: headers.get("host").filter(|host| !host.is_empty()),
        target,
        client: match message.get("client") {
            Some(TypedData::IPv4(address)) => Some(IpAddr::V4(*address)),
            Some(TypedData::IPv6(address)) => Some(IpAddr::V6(*address)),
            _ => None,
        },
        request_id: text("id"),
        reported_by_id: false,
        share: message.get("asked").map(share),
        turn: None,
        headers: &headers,
    }))
}

/// The share of requests that HAProxy asks about; without a value it asks about all.
fn share(asked: &TypedData) -> u32 {
    let parts = match asked {
        TypedData::Int32(parts) => u32::try_from(*parts).ok(),
        TypedData::UInt32(parts) => Some(*parts),
        TypedData::Int64(parts) => u32::try_from(*parts).ok(),
        TypedData::UInt64(parts) => u32::try_from(*parts).ok(),
        _ => None,
    };
    parts.unwrap_or(PARTS)
}

/// The variables by which HAProxy is told what was decided.
fn told(ack: Ack, answer: &Answer) -> Ack {
    let set = |ack: Ack, name, value: TypedData| ack.set_var(VarScope::Transaction, name, value);
    let mut ack = set(ack, "reason", answer.reason.name().into());
    if let Some(token) = answer.token {
        ack = set(ack, "token", TypedData::String(token.to_string()));
    }
    if let Some(parts) = answer.share {
        ack = set(ack, "asks", TypedData::UInt32(parts));
    }
    let Some(refusal) = &answer.refusal else { return ack };
    ack = set(ack, "refuse", TypedData::Bool(true));
    ack = set(ack, "retry_after", TypedData::String(refusal.retry_after_s.to_string()));
    if let Some(limit) = &refusal.rate_limit {
        ack = set(ack, "ratelimit", TypedData::String(limit.limit.clone()));
        ack = set(ack, "ratelimit_policy", TypedData::String(limit.policy.clone()));
    }
    set(ack, "body", TypedData::String(refusal.body()))
}

/// The headers of a request, from their text (`req.hdrs`).
fn headers(text: &str) -> Joined<'_> {
    let lines = text.split("\r\n").filter_map(|line| line.split_once(':'));
    lines.map(|(name, value)| (name, value.trim_matches([' ', '\t']))).collect()
}

#[cfg(test)]
#[path = "haproxy_tests.rs"]
mod tests;
