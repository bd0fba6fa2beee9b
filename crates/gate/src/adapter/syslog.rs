// SPDX-License-Identifier: Apache-2.0 OR MIT
//! nginx's access log by syslog: one request a datagram.
//!
//! ```text
//! log_format tidegate '$tidegate_token|$status|$request_time|$upstream_header_time|$upstream_response_time';
//! <190>Nov 25 22:00:00 tidegate: 0123456789abcdef|200|0.012|0.010|0.011
//! ```

use crate::{Completion, Token};
use tidegate_units::Nanos;

/// Times longer than this are none, in seconds.
const SECONDS_MAX: f64 = 1e6;

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
    };
    Some((token.parse().ok()?, completion))
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
    let seconds = plain.then(|| text.parse::<f64>().ok()).flatten()?;
    (seconds <= SECONDS_MAX).then(|| Nanos::from_secs_f64(seconds))
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
