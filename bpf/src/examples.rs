// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Rules and services for the tests of this crate.

use crate::{HeaderRule, HttpMatch, Listen, ListenAddress, Refuse, Requests, Service, Subject};

/// A rule for all requests below a path.
pub(crate) fn http(path: &str, bucket: Option<usize>) -> HeaderRule {
    let matches = HttpMatch { path: path.into(), ..HttpMatch::default() };
    let subject = Subject::Http(matches);
    HeaderRule { subject, bucket, refuse: Refuse::Answer503, close_persistent: false }
}

/// A service with rules; it listens nowhere.
pub(crate) fn service(name: &str, requests: Requests) -> Service {
    Service { requests: Some(requests), ..Service::new(name, vec![]) }
}

/// A service without rules at a port of all IPv4 addresses.
pub(crate) fn at_port(name: &str, port: u16) -> Service {
    Service::new(name, vec![Listen::tcp(ListenAddress::AnyV4, port)])
}
