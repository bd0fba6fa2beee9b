// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What one receiver has said since the owner asked last. What it says too much hides nothing but its own.

use tidegate_model::remote::{Hits, Notice, REMOTE_SCOPES_MAX};
use tidegate_units::Nanos;

/// Most scopes, or services, each with its unit; more than one receiver has.
const SUBJECTS_MAX: usize = 3 * REMOTE_SCOPES_MAX;

#[derive(Clone, Debug, Default)]
pub(crate) struct Said {
    hits: Vec<Hits>,
    notices: Vec<(u64, Notice)>,
}

impl Said {
    /// Hit counters of one scope add up, so that none are lost: each is of a time of its own.
    pub(crate) fn hits(&mut self, heard: Hits) {
        let same = |known: &&mut Hits| known.scope == heard.scope && known.unit == heard.unit;
        if let Some(known) = self.hits.iter_mut().find(same) {
            known.span = Nanos(known.span.0.saturating_add(heard.span.0));
            known.offered = known.offered.saturating_add(heard.offered);
            known.refused = known.refused.saturating_add(heard.refused);
            known.probe = heard.probe;
            return;
        }
        push(&mut self.hits, heard);
    }

    /// Of the notices about a service the last one counts.
    pub(crate) fn notice(&mut self, number: u64, notice: Notice) {
        let same = |(_, known): &(u64, Notice)| {
            known.service == notice.service && known.unit == notice.unit
        };
        self.notices.retain(|known| !same(known));
        push(&mut self.notices, (number, notice));
    }

    pub(crate) fn take_hits(&mut self) -> Vec<Hits> {
        std::mem::take(&mut self.hits)
    }

    pub(crate) fn take_notices(&mut self) -> Vec<(u64, Notice)> {
        std::mem::take(&mut self.notices)
    }
}

/// The oldest goes where there is no room.
fn push<T>(list: &mut Vec<T>, one: T) {
    if list.len() >= SUBJECTS_MAX {
        list.remove(0);
    }
    list.push(one);
}

#[cfg(test)]
mod tests {
    use super::*;
    use tidegate_model::remote::Unit;

    fn hits(scope: &str, offered: u64, probe: bool) -> Hits {
        let (scope, unit) = (scope.parse().unwrap(), Unit::Connections);
        Hits { scope, unit, span: Nanos::from_millis(200), offered, refused: offered / 2, probe }
    }

    #[test]
    fn hit_counters_of_a_scope_add_up_and_those_of_others_stay_apart() {
        let mut said = Said::default();
        said.hits(hits("shop", 4, true));
        said.hits(hits("blog", 9, false));
        said.hits(hits("shop", 6, false));
        said.hits(Hits { unit: Unit::Requests, ..hits("shop", 1, false) });
        let both = Hits { span: Nanos::from_millis(400), ..hits("shop", 10, false) };
        let other = Hits { unit: Unit::Requests, ..hits("shop", 1, false) };
        assert_eq!(said.take_hits(), [both, hits("blog", 9, false), other]);
        assert!(said.take_hits().is_empty());
    }

    #[test]
    fn sums_have_an_end_and_lists_a_bound() {
        let mut said = Said::default();
        for _ in 0..2 {
            said.hits(Hits { span: Nanos(u64::MAX), ..hits("shop", u64::MAX, false) });
        }
        assert_eq!(said.take_hits()[0].offered, u64::MAX);
        for n in 0..1_000 {
            said.hits(hits(&format!("s{n}"), 1, false));
            said.notice(n, Notice { service: format!("s{n}"), ..Notice::default() });
        }
        assert_eq!(said.take_hits().len(), SUBJECTS_MAX);
        assert_eq!(said.take_notices().len(), SUBJECTS_MAX);
    }

    #[test]
    fn the_last_notice_of_a_service_counts() {
        let mut said = Said::default();
        let notice = |service: &str, episode| Notice {
            service: service.into(),
            episode,
            ..Notice::default()
        };
        said.notice(1, notice("shop", 1));
        said.notice(2, notice("blog", 1));
        said.notice(3, notice("shop", 2));
        assert_eq!(said.take_notices(), [(2, notice("blog", 1)), (3, notice("shop", 2))]);
    }
}
