// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A limit that one host gives to another, and what comes back: soft state that its sender renews.

use crate::snapshot::RemoteState;
use crate::{Listen, NAME_MAX, PRIORITIES};
use ipnet::IpNet;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use std::fmt;
use std::net::IpAddr;
use std::str::FromStr;
use tidegate_units::{Nanos, Rate, Share};

/// Longest validity of a remote limit.
pub const REMOTE_VALIDITY_MAX: Nanos = Nanos::from_secs(10);
/// How long a limit for a congested router holds as it was told. Then it relaxes in [`PUSHED_STEPS`] steps of that length; all together is
/// [`REMOTE_VALIDITY_MAX`].
pub const PUSHED_HOLD: Nanos = Nanos::from_secs(2);
/// In how many steps it relaxes.
pub const PUSHED_STEPS: u32 = 4;
/// Longest gap between two admissions that a remote limit may ask for.
pub const REMOTE_GAP_MAX: Nanos = Nanos::from_secs(1);
/// Largest rate of a remote limit, per second.
pub const REMOTE_RATE_MAX: f64 = 1e9;
/// Largest share that a remote limit refuses: all of it would be no limit but a cut.
pub const REMOTE_LOSS_MAX: f64 = 0.999;
/// Most scopes that one peer may limit.
pub const REMOTE_SCOPES_MAX: usize = 64;
/// Shortest prefixes of a scope: IPv4, IPv6.
const PREFIX_MIN: (u8, u8) = (24, 48);

/// What a remote limit is about, as its receiver knows it.
///
/// As text: `shop` (a service), `shop/search` (a request bucket of it), `192.0.2.11:80`,
/// `192.0.2.0/24:80`, `[2001:db8::/64]:443`, and `*` for all ports.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Scope {
    /// A service of the receiver, by its name there.
    Service(String),
    /// A request bucket of a service of the receiver, by their names there.
    Bucket {
        /// The service.
        service: String,
        /// The bucket.
        bucket: String,
    },
    /// What goes to addresses of a prefix. Its host bits are zero.
    Destination {
        /// The prefix: IPv4 /24 or longer, IPv6 /48 or longer.
        prefix: IpNet,
        /// The port; `None`: all ports.
        port: Option<u16>,
    },
}

impl Scope {
    /// Whether all that `other` is about lies in this scope.
    #[must_use]
    pub fn covers(&self, other: &Self) -> bool {
        match (self, other) {
            (Self::Service(own), Self::Service(other)) => own == other,
            (Self::Service(own), Self::Bucket { service, .. }) => own == service,
            (Self::Bucket { .. }, Self::Bucket { .. }) => self == other,
            (
                Self::Destination { prefix, port },
                Self::Destination { prefix: inner, port: inner_port },
            ) => prefix.contains(inner) && (port.is_none() || port == inner_port),
            _ => false,
        }
    }

    /// Whether a service is about nothing but this scope: by its name, or because each address on
    /// which it listens lies in it.
    #[must_use]
    pub fn reaches(&self, service: &str, listens: &[Listen]) -> bool {
        match self {
            Self::Service(name) => name == service,
            // A part of one.
            Self::Bucket { .. } => false,
            Self::Destination { prefix, port } => {
                let within = |listen: &Listen| {
                    let port = port.is_none_or(|port| port == listen.port);
                    // An unspecified address stands for every address.
                    let address = listen.address.filter(|address| !address.is_unspecified());
                    port && address.is_some_and(|address| prefix.contains(&address))
                };
                !listens.is_empty() && listens.iter().all(within)
            }
        }
    }
}

fn is_name(text: &str) -> bool {
    let allowed = |b: u8| b.is_ascii_alphanumeric() || b == b'-' || b == b'_';
    let first = text.bytes().next().is_some_and(|b| b.is_ascii_alphanumeric());
    first && text.len() <= NAME_MAX && text.bytes().all(allowed)
}

fn name_or_bucket(text: &str) -> Option<Scope> {
    match text.split_once('/') {
        None => is_name(text).then(|| Scope::Service(text.to_owned())),
        Some((service, bucket)) => (is_name(service) && is_name(bucket))
            .then(|| Scope::Bucket { service: service.to_owned(), bucket: bucket.to_owned() }),
    }
}

fn prefix(text: &str) -> Result<IpNet, String> {
    let net = match text.parse::<IpNet>() {
        Ok(net) => net,
        Err(_) => {
            let address = text.parse::<IpAddr>();
            IpNet::from(address.map_err(|_| format!("{text:?} is no address and no prefix"))?)
        }
    };
    if net != net.trunc() {
        return Err(format!("host bits are set in {net}"));
    }
    let (v4, v6) = PREFIX_MIN;
    let least = if net.addr().is_ipv4() { v4 } else { v6 };
    if net.prefix_len() < least {
        return Err(format!("{net} is wider than /{least}"));
    }
    if let IpNet::V6(net) = net
        && net.addr().to_ipv4_mapped().is_some()
    {
        return Err(format!("write the IPv4 prefix itself, not {net}"));
    }
    Ok(net)
}

impl FromStr for Scope {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let Some((place, port)) = text.rsplit_once(':') else {
            return name_or_bucket(text).ok_or_else(|| {
                "it is neither the name of a service or bucket nor a prefix with a port".to_owned()
            });
        };
        let port = match port {
            "*" => None,
            _ if !port.bytes().all(|b| b.is_ascii_digit()) => {
                return Err(format!("{port:?} is no port"));
            }
            _ => match port.parse::<u16>() {
                Ok(0) | Err(_) => return Err(format!("{port:?} is no port")),
                Ok(port) => Some(port),
            },
        };
        let inner = place.strip_prefix('[').and_then(|place| place.strip_suffix(']'));
        let prefix = prefix(inner.unwrap_or(place))?;
        if inner.is_some() != prefix.addr().is_ipv6() {
            return Err("IPv6 stands in brackets, such as \"[2001:db8::/64]:443\"".into());
        }
        Ok(Self::Destination { prefix, port })
    }
}

impl fmt::Display for Scope {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (prefix, port) = match self {
            Self::Service(name) => return f.write_str(name),
            Self::Bucket { service, bucket } => return write!(f, "{service}/{bucket}"),
            Self::Destination { prefix, port } => (prefix, port),
        };
        let port = port.map_or_else(|| "*".to_owned(), |port| port.to_string());
        let host = prefix.prefix_len() == prefix.max_prefix_len();
        let place = if host { prefix.addr().to_string() } else { prefix.to_string() };
        if prefix.addr().is_ipv6() {
            write!(f, "[{place}]:{port}")
        } else {
            write!(f, "{place}:{port}")
        }
    }
}

crate::written_as_text!(Scope, "scope");

/// What a remote limit counts.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize,
)]
#[serde(rename_all = "kebab-case")]
pub enum Unit {
    /// New work: connections, requests at a gateway.
    #[default]
    Connections,
    /// Datagrams (UDP).
    Datagrams,
    /// Requests, where they are counted apart from connections or are all that is seen.
    Requests,
}

impl Unit {
    /// Whether it is the usual one.
    #[must_use]
    pub const fn is_usual(&self) -> bool {
        matches!(self, Self::Connections)
    }

    /// As in JSON and in metrics.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Connections => "connections",
            Self::Datagrams => "datagrams",
            Self::Requests => "requests",
        }
    }

    /// A limit of so much per second.
    #[must_use]
    pub const fn limit(self, rate: Rate) -> Restriction {
        match self {
            Self::Connections => Restriction::Rate(rate),
            Self::Datagrams => Restriction::Datagrams(rate),
            Self::Requests => Restriction::Requests(rate),
        }
    }
}

/// In what form a limit restricts.
#[derive(
    Clone,
    Copy,
    Debug,
    Default,
    PartialEq,
    Eq,
    PartialOrd,
    Ord,
    Hash,
    Serialize,
    Deserialize,
    JsonSchema,
)]
#[serde(rename_all = "kebab-case")]
pub enum Form {
    /// At most so many per second (RFC 7415).
    #[default]
    Rate,
    /// This share of what comes is refused (RFC 7339).
    Loss,
    /// At least this long from one admission to the next.
    Gap,
}

impl Form {
    /// As in the configuration and in metrics.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Rate => "rate",
            Self::Loss => "loss",
            Self::Gap => "gap",
        }
    }
}

/// How a remote limit restricts what passes.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Restriction {
    /// At most so many admissions per second (RFC 7415).
    Rate(Rate),
    /// This share of what comes is refused (RFC 7339).
    Loss(Share),
    /// At least this long from one admission to the next.
    Gap(Nanos),
    /// At most so many datagrams per second.
    Datagrams(Rate),
    /// At most so many requests per second.
    Requests(Rate),
    /// This share of the requests that come is refused.
    RequestLoss(Share),
    /// At least this long from one request that is admitted to the next.
    RequestGap(Nanos),
}

impl Restriction {
    /// What comes to this rate where so much is offered, in this form. It is a rate where what is offered is
    /// not known, or the gap would be too long.
    #[must_use]
    pub fn in_form(unit: Unit, form: Form, rate: Rate, offered: Option<Rate>) -> Self {
        let gap = || Nanos::from_secs_f64(1.0 / rate.get());
        let share = offered.filter(|offered| offered.get() > 0.0).map(|offered| {
            Share::new((1.0 - rate.get() / offered.get()).clamp(0.0, REMOTE_LOSS_MAX))
        });
        let is_long = rate.get() * REMOTE_GAP_MAX.as_secs_f64() < 1.0;
        match (form, unit, share) {
            (Form::Loss, Unit::Connections, Some(share)) => Self::Loss(share),
            (Form::Loss, Unit::Requests, Some(share)) => Self::RequestLoss(share),
            (Form::Gap, Unit::Connections, _) if !is_long => Self::Gap(gap()),
            (Form::Gap, Unit::Requests, _) if !is_long => Self::RequestGap(gap()),
            _ => unit.limit(rate),
        }
    }

    /// In what form it restricts.
    #[must_use]
    pub const fn form(&self) -> Form {
        match self {
            Self::Rate(_) | Self::Datagrams(_) | Self::Requests(_) => Form::Rate,
            Self::Loss(_) | Self::RequestLoss(_) => Form::Loss,
            Self::Gap(_) | Self::RequestGap(_) => Form::Gap,
        }
    }

    /// The kind's name.
    #[must_use]
    pub const fn kind(&self) -> &'static str {
        match self {
            Self::Rate(_) => "rate",
            Self::Loss(_) => "loss",
            Self::Gap(_) => "gap",
            Self::Datagrams(_) => "datagrams",
            Self::Requests(_) => "requests",
            Self::RequestLoss(_) => "request-loss",
            Self::RequestGap(_) => "request-gap",
        }
    }

    /// What it counts.
    #[must_use]
    pub const fn unit(&self) -> Unit {
        match self {
            Self::Rate(_) | Self::Loss(_) | Self::Gap(_) => Unit::Connections,
            Self::Datagrams(_) => Unit::Datagrams,
            Self::Requests(_) | Self::RequestLoss(_) | Self::RequestGap(_) => Unit::Requests,
        }
    }

    /// Admissions per second that it allows where so much is offered; `None`: not known.
    #[must_use]
    pub fn rate(&self, offered: Option<Rate>) -> Option<Rate> {
        match *self {
            Self::Rate(rate) | Self::Datagrams(rate) | Self::Requests(rate) => Some(rate),
            Self::Loss(share) | Self::RequestLoss(share) => {
                offered.map(|o| Rate::per_second(o.get() * (1.0 - share.get())))
            }
            Self::Gap(gap) | Self::RequestGap(gap) => {
                Some(Rate::per_second(1.0 / gap.as_secs_f64()))
            }
        }
    }
}

impl fmt::Display for Restriction {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Rate(rate) => write!(f, "rate {rate}"),
            Self::Loss(share) => write!(f, "loss {:.1} %", share.get() * 100.0),
            Self::Gap(gap) => write!(f, "gap {gap}"),
            Self::Datagrams(rate) => write!(f, "datagrams {rate}"),
            Self::Requests(rate) => write!(f, "requests {rate}"),
            Self::RequestLoss(share) => write!(f, "loss {:.1} % of requests", share.get() * 100.0),
            Self::RequestGap(gap) => write!(f, "gap {gap} of requests"),
        }
    }
}

/// A limit that one host gives to another.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct RemoteLimit {
    /// What it is about.
    pub scope: Scope,
    /// How what passes is restricted.
    pub restriction: Restriction,
    /// How long it is valid from its arrival on; zero ends it now (RFC 7339, section 4.3).
    pub validity: Nanos,
    /// Number of the message in its session: what is stale or repeated changes nothing.
    pub sequence: u64,
    /// The classes of this priority and of all lower ones are restricted; 0: all. What those above take is
    /// not there for the others.
    pub priority: u8,
}

impl RemoteLimit {
    /// Whether every field is within its range.
    ///
    /// # Errors
    /// The first that is not, by its name.
    pub fn check(&self) -> Result<(), &'static str> {
        let restriction = match self.restriction {
            Restriction::Rate(rate)
            | Restriction::Datagrams(rate)
            | Restriction::Requests(rate) => rate.get() >= 1e-3 && rate.get() <= REMOTE_RATE_MAX,
            // All of it would be no limit but a cut.
            Restriction::Loss(share) | Restriction::RequestLoss(share) => share < Share::ONE,
            Restriction::Gap(gap) | Restriction::RequestGap(gap) => {
                gap > Nanos::ZERO && gap <= REMOTE_GAP_MAX
            }
        };
        match () {
            () if !restriction => Err(self.restriction.kind()),
            () if self.validity > REMOTE_VALIDITY_MAX => Err("validity"),
            () if usize::from(self.priority) >= PRIORITIES => Err("priority"),
            () => Ok(()),
        }
    }
}

/// A remote limit as it arrived in the session of a peer.
#[derive(Clone, Debug, PartialEq)]
pub struct ReceivedLimit {
    /// Name of the peer in the configuration.
    pub peer: String,
    /// The random number of its session.
    pub session: u64,
    /// The epoch of its session.
    pub epoch: u64,
    /// When it arrived.
    pub at: Nanos,
    /// The limit.
    pub limit: RemoteLimit,
}

/// A limit for a router while it is congested, as it arrived: its sender has signed it.
#[derive(Clone, Debug, PartialEq)]
pub struct Pushed {
    /// The limit; its validity holds all steps of its relaxation.
    pub received: ReceivedLimit,
    /// What the server can take in all: the limit relaxes towards it.
    pub whole: Rate,
    /// It only counts until then.
    pub enforced_from: Nanos,
}

/// A limit as it arrived. Both kinds share the numbers of their session, so their order is that of the numbers.
#[derive(Clone, Debug, PartialEq)]
pub enum Arrived {
    /// The session alone says whose it is.
    Plain(ReceivedLimit),
    /// Signed, in answer to a notice.
    Pushed(Pushed),
}

impl Arrived {
    /// The limit as it arrived.
    #[must_use]
    pub const fn received(&self) -> &ReceivedLimit {
        match self {
            Self::Plain(received) => received,
            Self::Pushed(pushed) => &pushed.received,
        }
    }
}

/// A router is congested, and this comes to it for a service.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Notice {
    /// Name of the service at the router.
    pub service: String,
    /// Its addresses there.
    pub listens: Vec<Listen>,
    /// How often the router has become congested.
    pub episode: u32,
    /// What is counted.
    pub unit: Unit,
    /// New work that comes for it, with what is refused.
    pub offered: Rate,
    /// Of this refused because of remote limits.
    pub refused: Rate,
}

impl RemoteState {
    /// What its sender said: kind, value, and whom it is about.
    #[must_use]
    pub fn words(&self) -> String {
        let said = self.restriction.map_or_else(|| "none".to_owned(), |said| said.to_string());
        match self.priority {
            0 => said,
            priority => format!("{said}, priority {priority} and lower"),
        }
    }

    /// Whether it is no more than a rate, or none.
    #[must_use]
    pub fn is_plain(&self) -> bool {
        let rate = self.restriction.is_none_or(|said| said.form() == Form::Rate);
        rate && self.priority == 0
    }
}

/// What came to the scope of a remote limit where it is enforced, and what it refused.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Hits {
    /// The scope of the limit.
    pub scope: Scope,
    /// What was counted.
    #[serde(default, skip_serializing_if = "Unit::is_usual")]
    pub unit: Unit,
    /// The time over which was counted.
    pub span: Nanos,
    /// New work that came, with what was refused.
    pub offered: u64,
    /// Of this refused because of the limit.
    pub refused: u64,
    /// A probe: the limit has expired here, so its sender should say again what holds.
    pub probe: bool,
}

#[cfg(test)]
mod tests {
    use super::*;

    fn scope(text: &str) -> Scope {
        text.parse().unwrap_or_else(|why| panic!("{text}: {why}"))
    }

    #[test]
    fn scopes_have_one_spelling_and_wide_ones_are_none() {
        for text in [
            "shop",
            "shop/search",
            "192.0.2.11:80",
            "192.0.2.0/24:*",
            "[2001:db8::/48]:443",
            "[::1]:1",
        ] {
            assert_eq!(scope(text).to_string(), text);
        }
        assert_eq!(scope("192.0.2.11/32:80").to_string(), "192.0.2.11:80");
        for text in [
            "",
            "-x",
            "a b",
            "192.0.2.11:0",
            "192.0.2.11:+1",
            "192.0.2.11:65536",
            "192.0.2.11",
            "192.0.2.1/24:80",
            "192.0.0.0/16:80",
            "0.0.0.0/0:80",
            "[2001::/32]:80",
            "2001:db8::1:80",
            "[192.0.2.1]:80",
            "[::ffff:192.0.2.1]:80",
            "shop:80",
            "shop/",
            "/search",
            "shop/a/b",
            "shop/a b",
        ] {
            assert!(text.parse::<Scope>().is_err(), "{text:?} is taken");
        }
    }

    #[test]
    fn a_scope_covers_what_lies_in_it_and_nothing_else() {
        for (wide, narrow, covered) in [
            ("shop", "shop", true),
            ("shop", "shop2", false),
            ("shop", "shop/search", true),
            ("shop", "shop2/search", false),
            ("shop/search", "shop/search", true),
            ("shop/search", "shop/cart", false),
            ("shop/search", "shop", false),
            ("shop", "192.0.2.1:80", false),
            ("192.0.2.0/24:*", "192.0.2.1:80", true),
            ("192.0.2.0/24:80", "192.0.2.1:80", true),
            ("192.0.2.0/24:80", "192.0.2.1:81", false),
            ("192.0.2.0/24:80", "192.0.2.1:*", false),
            ("192.0.2.0/25:80", "192.0.2.0/24:80", false),
            ("192.0.2.0/25:80", "192.0.2.128:80", false),
            ("[2001:db8::/48]:80", "[2001:db8::5]:80", true),
            ("[2001:db8::/48]:80", "[2001:db8:1::5]:80", false),
            ("192.0.2.0/24:80", "[2001:db8::5]:80", false),
        ] {
            assert_eq!(scope(wide).covers(&scope(narrow)), covered, "{wide} {narrow}");
        }
    }

    #[test]
    fn a_service_is_reached_only_if_all_of_it_lies_in_the_scope() {
        let listens = |texts: &[&str]| -> Vec<Listen> {
            texts.iter().map(|text| text.parse().unwrap()).collect()
        };
        for (text, listen, reached) in [
            ("shop", &["*:80"][..], true),
            ("other", &["192.0.2.1:80"], false),
            ("shop/search", &["192.0.2.1:80"], false),
            ("192.0.2.0/24:80", &["192.0.2.1:80", "192.0.2.2:80"], true),
            ("192.0.2.0/24:80", &["192.0.2.1:80", "192.0.2.2:81"], false),
            ("192.0.2.0/24:*", &["192.0.2.1:80", "192.0.2.2:81"], true),
            ("192.0.2.0/24:80", &["192.0.2.1:80", "192.0.3.1:80"], false),
            ("192.0.2.0/24:80", &["*:80"], false),
            ("192.0.2.0/24:80", &["0.0.0.0:80"], false),
            ("192.0.2.0/24:80", &[], false),
        ] {
            assert_eq!(scope(text).reaches("shop", &listens(listen)), reached, "{text} {listen:?}");
        }
    }

    #[test]
    fn every_bound_of_a_limit_on_both_sides() {
        let limit = |restriction| RemoteLimit {
            scope: scope("shop"),
            restriction,
            validity: REMOTE_VALIDITY_MAX,
            sequence: 1,
            priority: 7,
        };
        let rate = |rate| Restriction::Rate(Rate::per_second(rate));
        let datagrams = |rate| Restriction::Datagrams(Rate::per_second(rate));
        let requests = |rate| Restriction::Requests(Rate::per_second(rate));
        let loss = |share| Restriction::Loss(Share::new(share));
        for (restriction, taken) in [
            (rate(0.0), false),
            (rate(0.0009), false),
            (rate(0.001), true),
            (rate(REMOTE_RATE_MAX), true),
            (rate(1.1 * REMOTE_RATE_MAX), false),
            (datagrams(0.0009), false),
            (datagrams(0.001), true),
            (datagrams(REMOTE_RATE_MAX), true),
            (datagrams(1.1 * REMOTE_RATE_MAX), false),
            (loss(0.0), true),
            (loss(0.999), true),
            (loss(1.0), false),
            (Restriction::Gap(Nanos::ZERO), false),
            (Restriction::Gap(REMOTE_GAP_MAX), true),
            (Restriction::Gap(REMOTE_GAP_MAX + Nanos(1)), false),
            (requests(0.0009), false),
            (requests(0.001), true),
            (requests(1.1 * REMOTE_RATE_MAX), false),
            (Restriction::RequestLoss(Share::new(0.999)), true),
            (Restriction::RequestLoss(Share::ONE), false),
            (Restriction::RequestGap(Nanos::ZERO), false),
            (Restriction::RequestGap(REMOTE_GAP_MAX), true),
        ] {
            assert_eq!(limit(restriction).check().is_ok(), taken, "{restriction}");
        }
        let good = limit(rate(5.0));
        let late = REMOTE_VALIDITY_MAX + Nanos(1);
        assert_eq!(RemoteLimit { validity: late, ..good.clone() }.check(), Err("validity"));
        assert_eq!(RemoteLimit { priority: 8, ..good }.check(), Err("priority"));
    }

    /// Each form of a rate comes to that rate again, and can be sent.
    #[test]
    fn every_form_of_a_rate_is_that_rate() {
        let rate = Rate::per_second;
        for unit in [Unit::Connections, Unit::Requests, Unit::Datagrams] {
            for (form, limit, offered, expected) in [
                (Form::Rate, 40.0, Some(100.0), Form::Rate),
                (Form::Loss, 40.0, Some(100.0), Form::Loss),
                (Form::Loss, 40.0, None, Form::Rate),
                (Form::Loss, 40.0, Some(0.0), Form::Rate),
                (Form::Gap, 40.0, None, Form::Gap),
                (Form::Gap, 0.9, None, Form::Rate),
            ] {
                let offered = offered.map(rate);
                let made = Restriction::in_form(unit, form, rate(limit), offered);
                let datagrams = unit == Unit::Datagrams;
                let expected = if datagrams { Form::Rate } else { expected };
                assert_eq!((made.unit(), made.form()), (unit, expected), "{made}");
                let again = made.rate(offered).unwrap().get();
                assert!((again - limit).abs() < 1e-6 * limit, "{made}: {again}");
            }
            let all = Restriction::in_form(unit, Form::Loss, rate(0.001), Some(rate(1e6)));
            let none = Restriction::in_form(unit, Form::Loss, rate(10.0), Some(rate(5.0)));
            for restriction in [all, none] {
                let (scope, validity) = (scope("shop"), Nanos::SECOND);
                let limit = RemoteLimit { scope, restriction, validity, sequence: 1, priority: 0 };
                assert_eq!(limit.check(), Ok(()), "{restriction}");
            }
        }
    }
}
