// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Notices of congested routers, as they are sent: integers and text. Of each service one message, so that
//! one with many addresses fits.

use crate::report::is_name;
use serde::{Deserialize, Serialize};
use tidegate_model::Listen;
use tidegate_model::remote::{Notice, Unit};
use tidegate_units::Rate;

/// Most addresses of a service in a notice.
pub const LISTENS_MAX: usize = 64;
/// Largest rate, in thousandths per second: above that of any remote limit.
const RATE_MILLI_MAX: u64 = 1 << 40;

/// A notice.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct NoticeMessage {
    /// The number of the session.
    pub session: u64,
    /// One more than that of the notice before, from 1. The answer names it.
    pub number: u64,
    /// How often the router has become congested.
    pub episode: u32,
    /// Name of the service at the router.
    pub service: String,
    /// Its addresses there, in their one spelling.
    pub listens: Vec<String>,
    /// New work for it in thousandths per second, with what is refused: connections, or datagrams, by the kind of the
    /// message.
    pub offered_milli: u64,
    /// Of this refused because of remote limits.
    pub refused_milli: u64,
}

impl NoticeMessage {
    /// A notice as a message of this session.
    #[must_use]
    pub fn of((session, number): (u64, u64), notice: &Notice) -> Self {
        let listens = notice.listens.iter().take(LISTENS_MAX);
        let offered = notice.offered.as_milli().min(RATE_MILLI_MAX);
        Self {
            session,
            number,
            episode: notice.episode,
            service: notice.service.clone(),
            listens: listens.map(ToString::to_string).collect(),
            offered_milli: offered,
            refused_milli: notice.refused.as_milli().min(offered),
        }
    }

    /// What it says, of this unit; `None` where a value is out of range.
    #[must_use]
    pub fn notice(&self, unit: Unit) -> Option<Notice> {
        let sizes = is_name(&self.service) && (1..=LISTENS_MAX).contains(&self.listens.len());
        let rates =
            self.refused_milli <= self.offered_milli && self.offered_milli <= RATE_MILLI_MAX;
        if !sizes || !rates || self.number == 0 {
            return None;
        }
        let listen = |text: &String| {
            let listen: Listen = text.parse().ok()?;
            (listen.to_string() == *text).then_some(listen)
        };
        let rate = |milli: u64| Rate::per_second(milli as f64 / 1e3);
        Some(Notice {
            service: self.service.clone(),
            listens: self.listens.iter().map(listen).collect::<Option<_>>()?,
            episode: self.episode,
            unit,
            offered: rate(self.offered_milli),
            refused: rate(self.refused_milli),
        })
    }
}
