// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Times in text: decimal numbers, dates of CSV files and of access logs. Nanoseconds since 1970
//! in UTC; the years from 1970 to 2261.

/// Nanoseconds in a second.
const SECOND: i64 = 1_000_000_000;
const MONTHS: [&[u8]; 12] = [
    b"Jan", b"Feb", b"Mar", b"Apr", b"May", b"Jun", b"Jul", b"Aug", b"Sep", b"Oct", b"Nov", b"Dec",
];

/// A number of `unit` nanoseconds, with a fraction or without, as nanoseconds (cut, not rounded).
pub(crate) fn decimal(text: &[u8], unit: i64) -> Option<i64> {
    let dot = text.iter().position(|b| *b == b'.').unwrap_or(text.len());
    let (whole, fraction) = (&text[..dot], text.get(dot + 1..).unwrap_or(b""));
    if whole.is_empty() && fraction.is_empty() {
        return None;
    }
    let mut value = digits(whole)?.checked_mul(unit)?;
    let mut weight = unit;
    for digit in fraction {
        weight /= 10;
        value = value.checked_add(i64::from(digit_of(*digit)?) * weight)?;
    }
    Some(value)
}

/// `2023-11-16 18:17:03.97996`, a `T` between them, `Z` or an offset such as `+02:00` behind.
/// Without an offset it is taken as UTC.
pub(crate) fn iso(text: &[u8]) -> Option<i64> {
    if text.len() < 19 || text[4] != b'-' || text[7] != b'-' || !matches!(text[10], b' ' | b'T') {
        return None;
    }
    let day = days(digits(&text[..4])?, digits(&text[5..7])?, digits(&text[8..10])?)?;
    let (clock, rest) = text[11..].split_at(8);
    let mut time = day.checked_mul(86_400)?.checked_add(clock_s(clock)?)?.checked_mul(SECOND)?;
    let end = rest.iter().position(|b| !matches!(b, b'.' | b'0'..=b'9')).unwrap_or(rest.len());
    let (fraction, zone) = rest.split_at(end);
    if !fraction.is_empty() {
        if fraction[0] != b'.' {
            return None;
        }
        time = time.checked_add(decimal(fraction, SECOND)?)?;
    }
    time.checked_sub(zone_s(zone.trim_ascii())?.checked_mul(SECOND)?)
}

/// `10/Oct/2000:13:55:36 -0700`, the time of an access log.
pub(crate) fn of_log(text: &[u8]) -> Option<i64> {
    if text.len() < 20 || text[2] != b'/' || text[6] != b'/' || text[11] != b':' {
        return None;
    }
    let month = MONTHS.iter().position(|m| *m == &text[3..6])? as i64 + 1;
    let day = days(digits(&text[7..11])?, month, digits(&text[..2])?)?;
    let time = day * 86_400 + clock_s(&text[12..20])?;
    (time - zone_s(text[20..].trim_ascii())?).checked_mul(SECOND)
}

/// `13:55:36`; a leap second counts as the next one.
fn clock_s(text: &[u8]) -> Option<i64> {
    if text.len() != 8 || text[2] != b':' || text[5] != b':' {
        return None;
    }
    let (h, m, s) = (digits(&text[..2])?, digits(&text[3..5])?, digits(&text[6..])?);
    (h < 24 && m < 60 && s <= 60).then_some(h * 3600 + m * 60 + s)
}

/// Nothing, `Z`, `+0200` or `+02:00`, in seconds east of Greenwich.
fn zone_s(text: &[u8]) -> Option<i64> {
    let (sign, hours, minutes) = match text {
        [] | b"Z" => return Some(0),
        [sign, h1, h2, b':', m1, m2] | [sign, h1, h2, m1, m2] => (sign, [*h1, *h2], [*m1, *m2]),
        _ => return None,
    };
    let seconds = digits(&hours)? * 3600 + digits(&minutes)? * 60;
    match sign {
        b'+' => Some(seconds),
        b'-' => Some(-seconds),
        _ => None,
    }
}

/// Days since 1970-01-01 in the Gregorian calendar; `None` for a day that is none.
fn days(year: i64, month: i64, day: i64) -> Option<i64> {
    const BEFORE: [i64; 12] = [0, 31, 59, 90, 120, 151, 181, 212, 243, 273, 304, 334];
    let leap = year % 4 == 0 && (year % 100 != 0 || year % 400 == 0);
    let before = *BEFORE.get(usize::try_from(month - 1).ok()?)?;
    let length = match month {
        2 if leap => 29,
        2 => 28,
        4 | 6 | 9 | 11 => 30,
        _ => 31,
    };
    if !(1970..=2261).contains(&year) || !(1..=length).contains(&day) {
        return None;
    }
    let past = year - 1;
    let leaps = past / 4 - past / 100 + past / 400 - (1969 / 4 - 1969 / 100 + 1969 / 400);
    Some((year - 1970) * 365 + leaps + before + i64::from(leap && month > 2) + day - 1)
}

/// A number of digits only; an empty one is 0.
pub(crate) fn digits(text: &[u8]) -> Option<i64> {
    text.iter().try_fold(0_i64, |value, digit| {
        value.checked_mul(10)?.checked_add(i64::from(digit_of(*digit)?))
    })
}

const fn digit_of(byte: u8) -> Option<u8> {
    if byte.is_ascii_digit() { Some(byte - b'0') } else { None }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_read_to_the_nanosecond_and_zones_are_taken_off() {
        for (text, seconds, nanos) in [
            (&b"1970-01-01 00:00:00"[..], 0, 0),
            (b"2023-11-16 18:17:03.9799600", 1_700_158_623, 979_960_000),
            (b"2023-11-16T18:17:03Z", 1_700_158_623, 0),
            (b"2023-11-16T20:17:03.5+02:00", 1_700_158_623, 500_000_000),
            (b"2000-02-29 00:00:00", 951_782_400, 0),
            (b"2100-03-01 00:00:00", 4_107_542_400, 0),
        ] {
            assert_eq!(iso(text), Some(seconds * SECOND + nanos), "{}", text.escape_ascii());
        }
        assert_eq!(of_log(b"10/Oct/2000:13:55:36 -0700"), Some(971_211_336 * SECOND));
        assert_eq!(decimal(b"12.0625", SECOND), Some(12_062_500_000));
        assert_eq!(decimal(b".5", 1_000_000), Some(500_000));
        assert_eq!(decimal(b"7.", 1_000), Some(7_000));
    }

    #[test]
    fn what_is_no_time_is_refused() {
        for text in [
            &b"2023-02-29 00:00:00"[..],
            b"2023-13-01 00:00:00",
            b"2023-00-01 00:00:00",
            b"2023-01-32 00:00:00",
            b"2023-01-01 24:00:00",
            b"2023-01-01 00:00:0",
            b"2023-01-01 00:00:00+2",
            b"2023-01-01 00:00:00.5.5",
            b"1969-12-31 23:59:59",
            b"2262-01-01 00:00:00",
            b"",
        ] {
            assert_eq!(iso(text), None, "{}", text.escape_ascii());
        }
        assert_eq!(of_log(b"10/Okt/2000:13:55:36 -0700"), None);
        assert_eq!(of_log(b"10/Oct/2000:13:55:36 west"), None);
        for text in [&b""[..], b".", b"-1", b"1e3", b"99999999999999999999", b"1.2.3"] {
            assert_eq!(decimal(text, SECOND), None, "{}", text.escape_ascii());
        }
    }
}
