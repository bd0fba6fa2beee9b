// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The request that is decided about, and one that is to wait for its turn first.

use crate::counters::Tally;
use crate::flight::shortened;
use crate::service::{Bucket, Service};
use std::net::IpAddr;
use std::sync::Arc;
use tidegate_units::Nanos;

/// A request, once it is known where it leads.
#[derive(Clone, Copy)]
pub(crate) struct Subject<'a> {
    /// The place of the service in the configuration.
    pub(crate) at: usize,
    pub(crate) service: &'a Arc<Service>,
    pub(crate) tally: &'a Arc<Tally>,
    pub(crate) bucket: Option<&'a Arc<Bucket>>,
    /// The proxy's id; empty where it gave none.
    pub(crate) id: &'a str,
    /// Whether its report will name the id.
    pub(crate) reported_by_id: bool,
    pub(crate) client: Option<IpAddr>,
    pub(crate) class: usize,
    pub(crate) priority: u8,
    /// Of its gateway.
    pub(crate) retry_after: (Nanos, Nanos),
    pub(crate) rate_limit_fields: bool,
}

/// A request that is to wait for its turn. It is in flight once it has entered, so what waits is no work
/// of the server.
pub struct Waiting {
    at: usize,
    service: Arc<Service>,
    tally: Arc<Tally>,
    bucket: Option<Arc<Bucket>>,
    id: Box<str>,
    reported_by_id: bool,
    client: Option<IpAddr>,
    class: usize,
    priority: u8,
    retry_after: (Nanos, Nanos),
    rate_limit_fields: bool,
    due: Nanos,
}

impl Waiting {
    pub(crate) fn new(of: &Subject<'_>, due: Nanos) -> Self {
        Self {
            at: of.at,
            service: Arc::clone(of.service),
            tally: Arc::clone(of.tally),
            bucket: of.bucket.cloned(),
            id: shortened(of.id),
            reported_by_id: of.reported_by_id,
            client: of.client,
            class: of.class,
            priority: of.priority,
            retry_after: of.retry_after,
            rate_limit_fields: of.rate_limit_fields,
            due,
        }
    }

    pub(crate) fn subject(&self) -> Subject<'_> {
        Subject {
            at: self.at,
            service: &self.service,
            tally: &self.tally,
            bucket: self.bucket.as_ref(),
            id: &self.id,
            reported_by_id: self.reported_by_id,
            client: self.client,
            class: self.class,
            priority: self.priority,
            retry_after: self.retry_after,
            rate_limit_fields: self.rate_limit_fields,
        }
    }

    pub(crate) fn passes(&self, now: Nanos) {
        self.service.passes(now);
    }

    /// When its service has room for one more: it, or another that waits for the same service.
    #[must_use]
    pub const fn due(&self) -> Nanos {
        self.due
    }

    /// Its priority, 0 the highest.
    #[must_use]
    pub const fn priority(&self) -> u8 {
        self.priority
    }

    /// Tells its service from others, for as long as it waits.
    #[must_use]
    pub fn service(&self) -> usize {
        Arc::as_ptr(&self.service).addr()
    }
}
