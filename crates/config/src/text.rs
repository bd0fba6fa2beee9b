// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Values with a notation of their own: durations, rates, prefixes, CPU lists, addresses.
//!
//! Each is checked by [`Kind::check`] while the file's shape is checked, so that its fault has a
//! place; the schema names the kind in `x-kind`.

use super::cluster::{BusServer, PeerAddress, Subject};
use super::gateways::Endpoint;
use super::requests::{
    HostPattern, PathPrefix, check_content_type, check_cookie_name, check_cookie_value,
};
use super::throttle::{THRESHOLD_MAX, THRESHOLD_TIME_RANGE, Threshold};
use ipnet::IpNet;
use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::{Deserialize, Deserializer, Serialize, Serializer, de::Error as _};
use std::borrow::Cow;
use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::str::FromStr;
use tidegate_model::remote::Scope;
use tidegate_model::{CpuList, Listen, Namespace, SpiffeId, written_as_text};
use tidegate_units::{Nanos, Rate, Share};

/// The first of the IPv4-mapped IPv6 addresses.
const IPV4_MAPPED: IpAddr = IpAddr::V6(Ipv6Addr::new(0, 0, 0, 0, 0, 0xffff, 0, 0));

/// The kinds of values with a notation of their own.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    Duration,
    Threshold,
    Share,
    Rate,
    Prefix,
    Cpus,
    Listen,
    Http,
    Path,
    Host,
    CookieName,
    CookieValue,
    ContentType,
    Address,
    BusServer,
    Subject,
    Spiffe,
    Endpoint,
    Scope,
    Namespace,
    Ip,
    Ipv4,
}

impl Kind {
    /// The kind that a schema names.
    pub(super) fn of(name: &str) -> Option<Self> {
        Some(match name {
            "duration" => Self::Duration,
            "threshold" => Self::Threshold,
            "share" => Self::Share,
            "rate" => Self::Rate,
            "prefix" => Self::Prefix,
            "cpus" => Self::Cpus,
            "listen" => Self::Listen,
            "http" => Self::Http,
            "path" => Self::Path,
            "host" => Self::Host,
            "cookie-name" => Self::CookieName,
            "cookie-value" => Self::CookieValue,
            "content-type" => Self::ContentType,
            "address" => Self::Address,
            "bus-server" => Self::BusServer,
            "subject" => Self::Subject,
            "spiffe" => Self::Spiffe,
            "endpoint" => Self::Endpoint,
            "scope" => Self::Scope,
            "namespace" => Self::Namespace,
            "ip" => Self::Ip,
            "ipv4" => Self::Ipv4,
            _ => return None,
        })
    }

    /// What is allowed, for people.
    pub(super) const fn allowed(self) -> &'static str {
        match self {
            Self::Duration => "a number with a unit (ns, us, ms, s, m, h), such as 100ms or 1s",
            Self::Threshold => "a whole number from 1, or a duration such as 500ms",
            Self::Share => "a percentage such as 50%, or a number from 0 to 1",
            Self::Rate => "events per second, such as 200 or \"200/s\"",
            Self::Prefix => "a prefix such as 198.51.100.0/24 or 2001:db8::/32, or one address",
            Self::Cpus => "a list of CPU numbers and ranges, such as \"0-1,4\"",
            Self::Listen => "\"address:port\", \"[IPv6]:port\" or \"*:port\"",
            Self::Http => "\"address:port\", \"[IPv6]:port\" or \"off\"",
            Self::Path => "the beginning of a path, such as /cgi-bin/",
            Self::Host => "a name such as www.example.com, or *.example.com for one label more",
            Self::CookieName => "letters, digits and !#$%&'*+-.^_`|~ (a token of RFC 9110)",
            Self::CookieValue => {
                "visible ASCII without quotes, comma, semicolon and backslash (RFC 6265)"
            }
            Self::ContentType => "a media type such as text/plain or \"text/html; charset=utf-8\"",
            Self::Address => "\"address:port\" or \"[IPv6]:port\"",
            Self::BusServer => "\"name:port\", \"address:port\" or \"[IPv6]:port\"",
            Self::Subject => "words of letters, digits, - and _ with dots between them",
            Self::Endpoint => "\"unix:/absolute/path\", \"address:port\" or \"[IPv6]:port\"",
            Self::Spiffe => "an identity such as spiffe://example.org/shop-1",
            Self::Scope => {
                "a service, \"address:port\" or \"prefix:port\" (/24, IPv6: /48, or longer)"
            }
            Self::Ip => "an address such as 192.0.2.1 or 2001:db8::1",
            Self::Ipv4 => "an IPv4 address such as 192.0.2.1",
            Self::Namespace => "\"pid:NUMBER\", \"cgroup:/path\" or a path such as /run/netns/web",
        }
    }

    /// Whether the text is a value of this kind; else what is wrong with it.
    pub(super) fn check(self, text: &str) -> Result<(), String> {
        match self {
            Self::Duration => parse_span(text).map(drop),
            Self::Threshold => parse_threshold(text).map(drop),
            Self::Share => parse_share(text).map(drop),
            Self::Rate => parse_rate(text).map(drop),
            Self::Prefix => parse_prefix(text).map(drop),
            Self::Cpus => text.parse::<CpuList>().map(drop),
            Self::Listen => text.parse::<Listen>().map(drop),
            Self::Http => text.parse::<HttpAddress>().map(drop),
            Self::Path => text.parse::<PathPrefix>().map(drop),
            Self::Host => text.parse::<HostPattern>().map(drop),
            Self::CookieName => check_cookie_name(text),
            Self::CookieValue => check_cookie_value(text),
            Self::ContentType => check_content_type(text),
            Self::Address => text.parse::<PeerAddress>().map(drop),
            Self::BusServer => text.parse::<BusServer>().map(drop),
            Self::Subject => text.parse::<Subject>().map(drop),
            Self::Spiffe => text.parse::<SpiffeId>().map(drop),
            Self::Endpoint => text.parse::<Endpoint>().map(drop),
            Self::Scope => text.parse::<Scope>().map(drop),
            Self::Namespace => text.parse::<Namespace>().map(drop),
            Self::Ip => text.parse::<IpAddr>().map(drop).map_err(|_| "it is no address".into()),
            Self::Ipv4 => {
                text.parse::<Ipv4Addr>().map(drop).map_err(|_| "it is no IPv4 address".into())
            }
        }
    }
}

macro_rules! text_schema {
    ($(#[$doc:meta])* $name:ident, $kind:literal, $($schema:tt)*) => {
        $(#[$doc])*
        pub(crate) struct $name;

        impl JsonSchema for $name {
            fn schema_name() -> Cow<'static, str> {
                stringify!($name).into()
            }

            fn inline_schema() -> bool {
                true
            }

            fn json_schema(_: &mut SchemaGenerator) -> Schema {
                json_schema!({ "x-kind": $kind, $($schema)* })
            }
        }
    };
}

text_schema!(
    /// The schema of a duration.
    SpanText, "duration", "type": "string", "pattern": "^[0-9]+(\\.[0-9]+)?(ns|us|ms|s|m|h)$"
);
text_schema!(
    /// The schema of a threshold.
    ThresholdText, "threshold", "type": ["integer", "string"], "minimum": 1, "pattern": "^[0-9]+(\\.[0-9]+)?(ns|us|ms|s|m|h)?$"
);
text_schema!(
    /// The schema of a share.
    ShareText, "share", "type": ["number", "string"], "minimum": 0, "maximum": 1, "pattern": "^[0-9]+(\\.[0-9]+)?%?$"
);
text_schema!(
    /// The schema of a rate.
    RateText, "rate", "type": ["number", "string"], "pattern": "^[0-9]+(\\.[0-9]+)?(/s)?$"
);
text_schema!(
    /// The schema of an address.
    IpText, "ip", "type": "string"
);
text_schema!(
    /// The schema of an IPv4 address.
    Ipv4Text, "ipv4", "type": "string"
);
text_schema!(
    /// The schema of a prefix.
    PrefixText, "prefix", "type": "string"
);

/// The units of durations, in nanoseconds; longer names first where one ends in another.
const UNITS: [(&str, f64); 6] =
    [("ns", 1.0), ("us", 1e3), ("ms", 1e6), ("s", 1e9), ("m", 60e9), ("h", 3600e9)];

/// Longest duration that can be written: a year and a day.
const SPAN_MAX_S: f64 = 366.0 * 86_400.0;

fn digits(text: &str) -> bool {
    let whole = text.split_once('.').map_or(text, |(whole, _)| whole);
    !whole.is_empty()
        && !text.ends_with('.')
        && text.bytes().all(|b| b.is_ascii_digit() || b == b'.')
}

/// A duration with its unit, such as `90s` or `1.5h`.
///
/// # Errors
/// When it has no unit, is none, or is longer than a year.
pub fn parse_span(text: &str) -> Result<Nanos, String> {
    let at = text.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(text.len());
    let (number, unit) = text.split_at(at);
    if unit.is_empty() && digits(number) {
        return Err("it has no unit".into());
    }
    let unit = unit.trim_start();
    let factor = UNITS.iter().find(|(name, _)| *name == unit).map(|(_, factor)| factor);
    let value = digits(number).then(|| number.parse::<f64>().ok()).flatten();
    let (Some(value), Some(factor)) = (value, factor) else {
        return Err("it is not a duration".into());
    };
    let ns = value * factor;
    if ns > SPAN_MAX_S * 1e9 {
        return Err("it is longer than a year".into());
    }
    Ok(Nanos(ns.round() as u64))
}

fn parse_rate(text: &str) -> Result<Rate, String> {
    let number = text.strip_suffix("/s").map_or(text, str::trim_end);
    if !digits(number) {
        return Err("it is not a rate".into());
    }
    number.parse().map(Rate::per_second).map_err(|_| "it is not a rate".into())
}

fn parse_threshold(text: &str) -> Result<Threshold, String> {
    if text.bytes().any(|b| !b.is_ascii_digit()) {
        let time = parse_span(text)?;
        let (min, max) = THRESHOLD_TIME_RANGE;
        let inside = time >= min && time <= max;
        let [min, max] = [min, max].map(show_span);
        return if inside {
            Ok(Threshold::Time(time))
        } else {
            Err(format!("a time is {min} to {max}"))
        };
    }
    let number = text.parse().ok().filter(|number| (1..=THRESHOLD_MAX).contains(number));
    number.map(Threshold::Number).ok_or_else(|| format!("a number is 1 to {THRESHOLD_MAX}"))
}

fn parse_share(text: &str) -> Result<Share, String> {
    let (number, whole) = match text.strip_suffix('%') {
        Some(percent) => (percent.trim_end(), 100.0),
        None => (text, 1.0),
    };
    let value = digits(number).then(|| number.parse::<f64>().ok()).flatten();
    let value = value.ok_or("it is not a share")?;
    if value <= whole { Ok(Share::new(value / whole)) } else { Err("it is more than all".into()) }
}

fn show_threshold(threshold: Threshold) -> String {
    match threshold {
        Threshold::Number(number) => number.to_string(),
        Threshold::Time(time) => show_span(time),
    }
}

fn show_share(share: Share) -> String {
    // a percentage has no more digits than it was written with
    let percent = (share.get() * 1e12).round() / 1e10;
    format!("{percent}%")
}

fn parse_prefix(text: &str) -> Result<IpNet, String> {
    if let Ok(address) = text.parse::<IpAddr>() {
        return Ok(address.into());
    }
    let net = text.parse::<IpNet>().map_err(|_| prefix_fault(text))?;
    // The dataplane keeps IPv4 clients as IPv4-mapped IPv6 addresses.
    if net.prefix_len() < 96 && net.contains(&IPV4_MAPPED) {
        return Err(
            "it covers the IPv4-mapped addresses, and so every IPv4 client: write 2000::/3 \
                    for all global IPv6 addresses, and IPv4 prefixes as such"
                .into(),
        );
    }
    if net.addr() == net.network() {
        return Ok(net);
    }
    Err(format!("host bits are set: write {}, or {} for the host", net.trunc(), net.addr()))
}

fn prefix_fault(text: &str) -> String {
    let Some((address, length)) = text.split_once('/') else {
        return "it is neither an address nor a prefix".into();
    };
    match (address.parse::<IpAddr>(), length.parse::<u32>()) {
        (Ok(IpAddr::V4(_)), Ok(_)) => "the length of an IPv4 prefix is 0 to 32".into(),
        (Ok(IpAddr::V6(_)), Ok(_)) => "the length of an IPv6 prefix is 0 to 128".into(),
        (Ok(_), Err(_)) => format!("{length:?} is no prefix length"),
        _ => format!("{address:?} is no address"),
    }
}

/// A duration as it is written in a file: the largest unit without a remainder.
pub(super) fn show_span(span: Nanos) -> String {
    let unit = [("h", 3_600_000_000_000), ("m", 60_000_000_000), ("s", 1_000_000_000)]
        .into_iter()
        .chain([("ms", 1_000_000), ("us", 1_000), ("ns", 1)])
        .find(|(_, factor)| span.0.is_multiple_of(*factor) && span.0 > 0);
    unit.map_or_else(|| "0s".into(), |(name, factor)| format!("{}{name}", span.0 / factor))
}

pub(super) fn from_text<'de, D: Deserializer<'de>, T>(
    deserializer: D,
    parse: impl Fn(&str) -> Result<T, String>,
) -> Result<T, D::Error> {
    let text = String::deserialize(deserializer)?;
    parse(&text).map_err(D::Error::custom)
}

macro_rules! with_text {
    ($(#[$doc:meta])* $module:ident: $type:ty, $parse:expr, $show:expr) => {
        $(#[$doc])*
        pub(super) mod $module {
            use super::*;

            pub(crate) fn serialize<S: Serializer>(value: &$type, s: S) -> Result<S::Ok, S::Error> {
                #[allow(clippy::redundant_closure_call)]
                ($show)(value).serialize(s)
            }

            pub(crate) fn deserialize<'de, D: Deserializer<'de>>(d: D) -> Result<$type, D::Error> {
                #[allow(clippy::redundant_closure_call)]
                ($parse)(d)
            }
        }
    };
}

fn list<'de, D: Deserializer<'de>, T>(
    deserializer: D,
    parse: impl Fn(&str) -> Result<T, String>,
) -> Result<Vec<T>, D::Error> {
    let texts = Vec::<String>::deserialize(deserializer)?;
    texts.iter().map(|t| parse(t).map_err(D::Error::custom)).collect()
}

with_text!(
    /// A duration.
    span: Nanos, |d| from_text(d, parse_span), |v: &Nanos| show_span(*v)
);
with_text!(
    /// A duration that may be absent.
    span_opt: Option<Nanos>, |d| from_text(d, parse_span).map(Some), |v: &Option<Nanos>| v.map(show_span)
);
with_text!(
    /// Durations that may be absent.
    spans: Option<Vec<Nanos>>, |d| list(d, parse_span).map(Some),
    |v: &Option<Vec<Nanos>>| v.as_ref().map(|l| l.iter().map(|t| show_span(*t)).collect::<Vec<_>>())
);
with_text!(
    /// A threshold.
    threshold: Threshold, |d| from_text(d, parse_threshold), |v: &Threshold| show_threshold(*v)
);
with_text!(
    /// A threshold that may be absent.
    threshold_opt: Option<Threshold>, |d| from_text(d, parse_threshold).map(Some),
    |v: &Option<Threshold>| v.map(show_threshold)
);
with_text!(
    /// A share that may be absent.
    share_opt: Option<Share>, |d| from_text(d, parse_share).map(Some),
    |v: &Option<Share>| v.map(show_share)
);
with_text!(
    /// A share.
    share: Share, |d| from_text(d, parse_share), |v: &Share| show_share(*v)
);
with_text!(
    /// A rate.
    rate: Rate, |d| from_text(d, parse_rate), |v: &Rate| format!("{}/s", v.get())
);
with_text!(
    /// A rate that may be absent.
    rate_opt: Option<Rate>, |d| from_text(d, parse_rate).map(Some),
    |v: &Option<Rate>| v.map(|r| format!("{}/s", r.get()))
);
with_text!(
    /// Prefixes.
    prefixes: Vec<IpNet>, |d| list(d, parse_prefix),
    |v: &Vec<IpNet>| v.iter().map(ToString::to_string).collect::<Vec<_>>()
);

/// Where HTTP is served; `None` is `off`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HttpAddress(pub Option<SocketAddr>);

impl FromStr for HttpAddress {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        if text == "off" {
            return Ok(Self(None));
        }
        let address = text.parse::<SocketAddr>().map_err(|_| "it is no address with a port")?;
        if address.port() == 0 { Err("port 0 is no port".into()) } else { Ok(Self(Some(address))) }
    }
}

impl fmt::Display for HttpAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            Some(address) => address.fmt(f),
            None => f.write_str("off"),
        }
    }
}

pub(super) use text_schema;

written_as_text!(HttpAddress, "http");
