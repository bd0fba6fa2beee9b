// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The access log service: what became of requests.

use super::TOKEN;
use super::messages::{AccessLogCommon, Duration, HttpAccessLogEntry};
use crate::{Completion, Token};
use tidegate_units::Nanos;

/// The filters that ask: each has a namespace of its own, which no client can write.
const FILTERS: [&str; 2] = ["envoy.filters.http.ext_authz", "envoy.filters.http.ratelimit"];
/// Times longer than this are none.
const SECONDS_MAX: u64 = 1_000_000;
/// What counts where a response was cut off after it had begun.
const CUT_OFF: u16 = 502;

/// What an entry reports; `Ok(None)`: of a request that is not followed, or that has not ended.
pub(super) fn report(
    entry: &HttpAccessLogEntry,
) -> Result<Option<(Token, Completion)>, &'static str> {
    let common = entry.common.as_ref().ok_or("nothing in it")?;
    let Some(token) = token(common) else { return Ok(None) };
    let token = std::str::from_utf8(token).ok().and_then(|text| text.parse().ok());
    let token = token.ok_or("no token")?;
    if common.intermediate {
        return Ok(None);
    }
    let (first_byte, duration) = times(common);
    let status = status(entry, common).ok_or("no status")?;
    Ok(Some((token, Completion { status, first_byte, duration, waited: None })))
}

fn token(common: &AccessLogCommon) -> Option<&[u8]> {
    let by_filter = &common.metadata.as_ref()?.by_filter;
    let ours = |name: &&str| {
        let found = by_filter.iter().find(|of| of.filter == name.as_bytes())?;
        found.values.as_ref()?.text(TOKEN)
    };
    FILTERS.iter().find_map(ours)
}

/// 0 where the client left before there was a response.
fn status(entry: &HttpAccessLogEntry, common: &AccessLogCommon) -> Option<u16> {
    let code = entry.response.as_ref().and_then(|response| response.code);
    let status = u16::try_from(code.map_or(0, |code| code.value)).ok()?;
    let flags = common.flags.unwrap_or_default();
    let cut_off = flags.upstream_remote_reset
        || flags.upstream_connection_termination
        || flags.upstream_protocol_error;
    let status = if cut_off && (1..500).contains(&status) { CUT_OFF } else { status };
    (status < 1000).then_some(status)
}

/// Until the response began, and ended.
///
/// The time with the server counts, where there was one, without that in which the client sent its
/// body: neither a slow sender nor a slow receiver makes a request longer.
fn times(common: &AccessLogCommon) -> (Option<Nanos>, Option<Nanos>) {
    let first_byte = common.first_upstream_rx.and_then(time);
    let sent = |sent: Option<Duration>| sent.and_then(time).unwrap_or_default();
    let (first_sent, last_sent) = (sent(common.first_upstream_tx), sent(common.last_upstream_tx));
    // A server may respond before it has the whole body.
    let body_end = first_byte.map_or(last_sent, |first_byte| last_sent.min(first_byte));
    let sending = body_end.since(first_sent);
    match common.last_upstream_rx.and_then(time) {
        Some(end) => (first_byte.map(|first| first.since(sending)), Some(end.since(sending))),
        None => (None, common.duration.or(common.last_downstream_tx).and_then(time)),
    }
}

fn time(duration: Duration) -> Option<Nanos> {
    let seconds = u64::try_from(duration.seconds).ok().filter(|s| *s <= SECONDS_MAX)?;
    let nanos = u64::try_from(duration.nanos).ok().filter(|n| *n < Nanos::SECOND.0)?;
    Some(Nanos(seconds * Nanos::SECOND.0 + nanos))
}
