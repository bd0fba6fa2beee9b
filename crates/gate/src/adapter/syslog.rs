// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Access logs by syslog: one request a datagram. Of nginx:
//!
//! ```text
//! log_format tidegate '$tidegate_token|$status|$request_time|$upstream_header_time|$upstream_response_time';
//! <190>Nov 25 22:00:00 tidegate: 0123456789abcdef|200|0.012|0.010|0.011
//! ```
//!
//! Of HAProxy, which has one format for all logs of a frontend: at the end of any line,
//!
//! ```text
//! tidegate=%[var(txn.tidegate.token)]|%ST|%Tw|%Tc|%Tr|%Td
//! tidegate=0123456789abcdef|200|0|1|10|1
//! ```

use crate::{Completion, Token};
use tidegate_units::Nanos;

/// Times longer than this are none, in seconds.
const SECONDS_MAX: f64 = 1e6;
/// The same in nanoseconds.
pub(super) const NANOS_MAX: u64 = 1_000_000_000_000_000;
/// The same in milliseconds.
const MILLIS_MAX: i64 = 1_000_000_000;

/// What a datagram of nginx reports; `None`: it is not understood.
///
/// The time with the server counts, where there was one: a client that is slow to receive does not
/// make a request longer.
#[must_use]
pub fn nginx_report(datagram: &[u8]) -> Option<(Token, Completion)> {
    let text = std::str::from_utf8(datagram).ok()?;
    // The priority, the time of day, and the tag with its colon stand before the message.
    let message = text.strip_prefix('<').and_then(|text| text.split_once(": "))?.1;
    let mut fields = message.trim_end().split('|');
    let mut next = || fields.next();
    let (token, status, request, header, response) = (next()?, next()?, next()?, next()?, next()?);
    if next().is_some() {
        return None;
    }
    let whole = seconds(request)?;
    let completion = Completion {
        status: status.parse().ok().filter(|status| *status < 1000)?,
        first_byte: tries(header)?,
        duration: Some(tries(response)?.unwrap_or(whole)),
        waited: None,
    };
    Some((token.parse().ok()?, completion))
}

/// What HAProxy's line has of ours.
const HAPROXY: &str = "tidegate=";

/// What a datagram of HAProxy reports: `Ok(None)` of a request that is not followed.
///
/// The times that count are those in HAProxy's queue, of the connection, and until the response began
/// and ended. Where one is -1 there was no response, and the time between question and report counts.
///
/// # Errors
/// What is not understood.
pub fn haproxy_report(datagram: &[u8]) -> Result<Option<(Token, Completion)>, &'static str> {
    let text = std::str::from_utf8(datagram).map_err(|_| "no text")?;
    // The last: what stands before it is the operator's format, and may have what a client sent.
    let (_, ours) = text.trim_end().rsplit_once(HAPROXY).ok_or("no report")?;
    let fields: Vec<&str> = ours.split('|').collect();
    let [token, status, times @ ..] = fields.as_slice() else { return Err("too few fields") };
    let times: Vec<i64> = times.iter().map_while(|time| time.parse().ok()).collect();
    let (Ok(status), [queue, connect, response, data]) = (status.parse::<i64>(), times.as_slice())
    else {
        return Err("no status, or no four times");
    };
    let sum = |parts: &[i64]| {
        let known = parts.iter().all(|ms| (0..=MILLIS_MAX).contains(ms));
        known.then(|| Nanos::from_millis(parts.iter().map(|ms| ms.unsigned_abs()).sum()))
    };
    let completion = Completion {
        status: u16::try_from(status.max(0)).ok().filter(|s| *s < 1000).ok_or("no status")?,
        first_byte: sum(&[*queue, *connect, *response]),
        duration: sum(&[*queue, *connect, *response, *data]),
        waited: None,
    };
    if *token == "-" {
        return Ok(None);
    }
    let token = token.parse().map_err(|_| "no token")?;
    Ok(Some((token, completion)))
}

/// The times of all servers that were tried, summed; none was: `-`. nginx writes them with commas, and
/// with colons where it went on within itself.
fn tries(text: &str) -> Option<Option<Nanos>> {
    let mut sum = None;
    for each in text.split([',', ':']).map(str::trim).filter(|each| *each != "-") {
        let more = seconds(each)?;
        sum = Some(sum.unwrap_or(Nanos::ZERO) + more);
    }
    Some(sum)
}

fn seconds(text: &str) -> Option<Nanos> {
    let plain = text.bytes().all(|b| b.is_ascii_digit() || b == b'.');
    plain.then(|| text.parse().ok()).flatten().and_then(time)
}

/// A time in seconds; `None`: it is none.
pub(super) fn time(seconds: f64) -> Option<Nanos> {
    (0.0..=SECONDS_MAX).contains(&seconds).then(|| Nanos::from_secs_f64(seconds))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn report(message: &str) -> Option<(u16, Option<u64>, Option<u64>)> {
        let line = format!("<190>Nov 25 22:00:00 tidegate: {message}");
        let (token, completion) = nginx_report(line.as_bytes())?;
        assert_eq!(token.to_string(), "00000000000000ff");
        let ms = |time: Option<Nanos>| time.map(|time| time.0 / 1_000_000);
        Some((completion.status, ms(completion.first_byte), ms(completion.duration)))
    }

    #[test]
    fn what_haproxy_writes_is_understood() {
        let report = |text: &str| haproxy_report(text.as_bytes());
        let ms = |time: Option<Nanos>| time.map(|time| time.0 / 1_000_000);
        for (line, found) in [
            ("tidegate=00000000000000ff|200|0|1|10|2", (200, Some(11), Some(13))),
            (
                "<134>Nov 25 22:00:00 haproxy[7]: GET /?tidegate=1|2 tidegate=00000000000000ff|503|5|0|1|0\n",
                (503, Some(6), Some(6)),
            ),
            ("tidegate=00000000000000ff|-1|-1|-1|-1|20", (0, None, None)),
            ("tidegate=00000000000000ff|502|3|0|-1|3000", (502, None, None)),
        ] {
            let (token, completion) = report(line).unwrap().unwrap();
            assert_eq!(token.to_string(), "00000000000000ff");
            let Completion { status, first_byte, duration, .. } = completion;
            assert_eq!((status, ms(first_byte), ms(duration)), found, "{line}");
        }
        assert_eq!(report("tidegate=-|503|-1|-1|-1|0"), Ok(None), "it was refused");
        for line in [
            "",
            "GET / 200",
            "tidegate=",
            "tidegate=00000000000000ff|200|0|1|10",
            "tidegate=00000000000000ff|200|0|1|10|2|3",
            "tidegate=00000000000000ff|2000|0|1|10|2",
            "tidegate=00000000000000ff|ok|0|1|10|2",
            "tidegate=00000000000000ff|200|0|1|10|x",
            "tidegate=ff|200|0|1|10|2",
        ] {
            assert!(report(line).is_err(), "{line:?}");
        }
        assert!(haproxy_report(b"tidegate=\xff").is_err());
    }

    #[test]
    fn what_nginx_writes_is_understood() {
        for (message, found) in [
            ("00000000000000ff|200|0.050|0.010|0.020", (200, Some(10), Some(20))),
            ("00000000000000ff|200|0.050|-|-", (200, None, Some(50))),
            ("00000000000000ff|502|3.000|-, 0.010|1.000, 0.020", (502, Some(10), Some(1020))),
            ("00000000000000ff|200|3.000|0.002 : 0.010|0.002 : 0.020", (200, Some(12), Some(22))),
            ("00000000000000ff|499|0.100|-|0.100\n", (499, None, Some(100))),
            ("00000000000000ff|000|0.000|-|-", (0, None, Some(0))),
        ] {
            assert_eq!(report(message), Some(found), "{message}");
        }
    }

    #[test]
    fn anything_else_is_not() {
        for message in [
            "",
            "-|200|0.050|0.010|0.020",
            "00000000000000ff|200|0.050|0.010",
            "00000000000000ff|200|0.050|0.010|0.020|",
            "00000000000000ff|2000|0.050|0.010|0.020",
            "00000000000000ff|-|0.050|0.010|0.020",
            "00000000000000ff|200|-0.050|0.010|0.020",
            "00000000000000ff|200|nan|0.010|0.020",
            "00000000000000ff|200|1e9|0.010|0.020",
            "00000000000000ff|200|9999999999|0.010|0.020",
            "00000000000000ff|200|0.050|0.010|inf",
            "00000000000000ff|200|0.050||0.020",
        ] {
            assert_eq!(report(message), None, "{message:?}");
        }
        assert!(nginx_report(b"00000000000000ff|200|0.050|0.010|0.020").is_none());
        assert!(nginx_report(b"<190>\xff: 00000000000000ff|200|0.050|0.010|0.020").is_none());
    }
}
