// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The bus over which routers share: as the configuration wants it, and what the history and the warnings are told.

use tidegate_config::{BusConfig, BusTls};
use tidegate_model::record::What;
use tidegate_model::sharing::BusState;
use tidegate_units::Nanos;

/// A connection that has been lost for so long is an event: one that comes and goes within that is none.
const LOST_AFTER: Nanos = Nanos::from_secs(10);

/// A bus as the peers know it.
pub(crate) fn bus_config(config: &BusConfig) -> tidegate_peer::BusConfig {
    let tls = config.tls.as_ref();
    let own = |tls: &BusTls| Some((tls.certificate.clone()?, tls.key.clone()?));
    tidegate_peer::BusConfig {
        servers: config.servers.iter().map(ToString::to_string).collect(),
        subject: config.subject.to_string(),
        authority: tls.map(|tls| tls.ca_file.clone()),
        certificate: tls.and_then(own),
        credentials: config.credentials_file.clone(),
    }
}

/// The subject and sentence of a warning, while there is no connection, or the server complains.
pub(crate) fn warning(state: &BusState) -> Option<(String, String)> {
    let text = match (state.up, state.problem.as_str()) {
        (true, "") => return None,
        (true, problem) => format!("the server says: {problem}"),
        (false, "") => "there is no connection yet".to_owned(),
        (false, why) => format!("no connection: {why}; each router keeps its share"),
    };
    Some(("cluster.bus".to_owned(), text))
}

/// What the history was told last.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Told {
    #[default]
    Nothing,
    Connected,
    Lost,
}

/// Looks for begin and end of the connection.
#[derive(Debug, Default)]
pub(crate) struct BusWatch(Told);

impl BusWatch {
    /// What has happened, once a tick.
    pub(crate) fn look(&mut self, state: Option<&BusState>) -> Option<What> {
        let Some(BusState { subject, up, lasts, problem, .. }) = state else {
            self.0 = Told::Nothing;
            return None;
        };
        let subject = subject.clone();
        match (up, self.0) {
            (true, Told::Nothing | Told::Lost) => {
                self.0 = Told::Connected;
                Some(What::BusConnected { subject })
            }
            (false, Told::Nothing | Told::Connected) if *lasts >= LOST_AFTER => {
                self.0 = Told::Lost;
                Some(What::BusLost { subject, why: problem.clone(), lasts: *lasts })
            }
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn state(up: bool, s: u64) -> BusState {
        let (lasts, problem) = (Nanos::from_secs(s), if up { "" } else { "refused" }.to_owned());
        BusState { subject: "t".into(), up, lasts, problem, ..BusState::default() }
    }

    /// One that comes and goes fills no history.
    #[test]
    fn only_what_lasts_is_told() {
        let mut watch = BusWatch::default();
        let mut told = Vec::new();
        let seen = [
            (false, 9),
            (true, 0),
            (false, 3),
            (true, 5),
            (false, 9),
            (false, 10),
            (false, 11),
            (true, 0),
            (true, 99),
        ];
        for (up, s) in seen {
            told.extend(watch.look(Some(&state(up, s))).map(|what| (s, what.sentence())));
        }
        let said: Vec<(u64, &str)> = told.iter().map(|(s, said)| (*s, said.as_str())).collect();
        let lost =
            "the bus (t) has not been connected for 10.00 s: refused; each router keeps its share";
        let there = "the bus is connected: routers share over t";
        assert_eq!(said, [(0, there), (10, lost), (0, there)]);
        // Never connected is told, too; and none is no bus that was lost.
        assert!(BusWatch::default().look(Some(&state(false, 10))).is_some());
        assert_eq!((watch.look(None), watch.0), (None, Told::Nothing));
    }

    #[test]
    fn a_warning_says_why_and_ends_with_the_connection() {
        let said = |up, s| warning(&state(up, s)).map(|(_, text)| text);
        let lost = said(false, 12).unwrap_or_default();
        assert_eq!(lost, "no connection: refused; each router keeps its share");
        assert_eq!(said(true, 1), None);
        let complains = BusState { problem: "no right".into(), ..state(true, 1) };
        assert_eq!(warning(&complains).unwrap_or_default().1, "the server says: no right");
    }
}
