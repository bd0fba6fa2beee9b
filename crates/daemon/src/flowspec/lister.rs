// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Lists the routes of routers and decides which of them are rules, in the speaker's thread: both take as long as
//! routers have sent much.

use ipnet::IpNet;
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;
use tidegate_config::FlowspecConfig;
use tidegate_flowspec::import::Entry;
use tidegate_flowspec::{Error, Family, Importer, Path, Policy, Speaker, Unicast};
use tidegate_model::snapshot::RefusedRoutes;
use tidegate_units::{Clock, MonotonicClock, Nanos};

/// How long all of a list may take: less than what the keeper waits for, with the call for sessions before it.
const LIST_MAX: Duration = Duration::from_millis(500);
/// A round of the speaker that takes so long without a list leaves no time for one: the keeper waits for a sign of
/// life.
const LATE: Nanos = Nanos::from_millis(500);
/// After so many failures in a row lists are rare: their rules have ended by then.
const FAILURES_MAX: u32 = 3;
/// How rare.
const PAUSE: Nanos = Nanos::from_secs(10);

/// What became of a list.
#[derive(Clone, Debug)]
pub(crate) enum News {
    /// When it was asked for, and what it made.
    Listed(Nanos, Arc<Table>),
    /// Why there is none. The one before counts for a while.
    Failed(String),
    /// The speaker has ended, and with it all that it had.
    Ended(String),
}

/// Which routes are rules.
#[derive(Clone, Debug, Default)]
pub(crate) struct Table {
    /// In the order in which a packet meets them; their hits are not counted here.
    pub(crate) entries: Vec<Entry>,
    /// How many are none.
    pub(crate) refused: Vec<RefusedRoutes>,
}

pub(crate) struct Lister {
    prefixes: Vec<IpNet>,
    peer: IpAddr,
    importer: Importer,
    /// Of what the table was made.
    last: (Vec<Path>, Vec<Unicast>),
    table: Arc<Table>,
    failures: u32,
    again: Nanos,
}

impl Lister {
    /// `None`: nothing is imported, or the router is not known.
    pub(crate) fn new(of: &FlowspecConfig) -> Option<Self> {
        let import = of.import.as_ref()?;
        let peer = of.peers.iter().find(|peer| peer.name == import.peer)?;
        let prefixes = import.prefixes.clone();
        let policy = Policy::new(prefixes.clone(), of.own_as, (peer.address, peer.peer_as));
        let policy = Policy { discard: import.discard, established: import.established, ..policy };
        Some(Self {
            prefixes,
            peer: peer.address,
            importer: Importer::new(policy),
            last: <_>::default(),
            table: Arc::default(),
            failures: 0,
            again: Nanos::ZERO,
        })
    }

    /// What routers have sent. `began`: this round of the speaker. `None`: the last ones have failed, and it is not
    /// time yet.
    pub(crate) async fn list(&mut self, speaker: &mut Speaker, began: Nanos) -> Option<News> {
        let Speaker::GoBgp(client) = speaker else { return None };
        let at = MonotonicClock.now();
        if at < self.again {
            return None;
        }
        // No list was made, so none costs too much: it is tried again with the next round.
        if is_late(began, at) {
            return Some(News::Failed("the BGP speaker answers slowly".into()));
        }
        let read = async {
            let mut paths = client.flows(Family::V4, self.peer).await?;
            paths.extend(client.flows(Family::V6, self.peer).await?);
            Ok::<_, Error>((paths, client.unicast(&self.prefixes).await?))
        };
        let read = tokio::time::timeout(LIST_MAX, read).await.unwrap_or(Err(Error::Silent));
        Some(self.news(at, read))
    }

    fn news(&mut self, at: Nanos, read: Result<(Vec<Path>, Vec<Unicast>), Error>) -> News {
        match read {
            Ok((paths, unicast)) => {
                self.failures = 0;
                News::Listed(at, self.decide(paths, unicast))
            }
            Err(why) => {
                self.failures = self.failures.saturating_add(1);
                if self.failures >= FAILURES_MAX {
                    self.again = Nanos(at.0.saturating_add(PAUSE.0));
                }
                News::Failed(format!("the BGP speaker does not list routes: {why}"))
            }
        }
    }

    /// The same routes make the same table. GoBGP lists them in any order.
    fn decide(&mut self, mut paths: Vec<Path>, unicast: Vec<Unicast>) -> Arc<Table> {
        paths.sort_by(|one, other| {
            let key = |path: &Path| (path.family, path.neighbor);
            key(one).cmp(&key(other)).then_with(|| one.nlri.cmp(&other.nlri))
        });
        let routes = (paths, unicast);
        if routes != self.last {
            self.importer.update(&routes.0, &routes.1);
            let refused = self.importer.refused().iter();
            let refused = refused
                .map(|(why, count)| RefusedRoutes { reason: why.name().into(), count: *count });
            let (entries, refused) = (self.importer.entries().to_vec(), refused.collect());
            self.table = Arc::new(Table { entries, refused });
            self.last = routes;
        }
        Arc::clone(&self.table)
    }
}

fn is_late(began: Nanos, at: Nanos) -> bool {
    at.since(began) >= LATE
}

#[cfg(test)]
mod tests {
    use super::*;
    use tidegate_config::{Registry, parse};

    fn lister() -> Lister {
        let text = "interfaces: [{name: eth0}]\nservices:\n  shop: {mode: enforce, listen: [\"192.0.2.11:80\"]}\nflowspec:\n  speaker: gobgp\n  \
                    as: 65001\n  router_id: 192.0.2.11\n  peers: {r: {address: 192.0.2.1, local: 192.0.2.11, as: 65001}}\n  \
                    import: {peer: r, mode: enforce, prefixes: [192.0.2.0/24]}\n";
        let config =
            parse(text, &Registry::new(["fresh_first"], crate::controllers::NAMES)).unwrap();
        Lister::new(config.flowspec.as_ref().unwrap()).unwrap()
    }

    /// Began in our own AS: no unicast route is needed. UDP to an address, 100 packets/s.
    fn path(host: u8) -> Path {
        Path {
            family: Family::V4,
            nlri: vec![9, 1, 32, 192, 0, 2, host, 3, 0x81, 17],
            attributes: vec![
                vec![0x40, 2, 0],
                [&[0xc0, 16, 8, 0x80, 0x0c, 0, 0][..], &100_f32.to_be_bytes()].concat(),
            ],
            neighbor: [192, 0, 2, 1].into(),
        }
    }

    #[test]
    fn the_same_routes_in_another_order_are_not_examined_again() {
        let mut lister = lister();
        let first = lister.decide(vec![path(1), path(2)], Vec::new());
        assert_eq!(first.entries.len(), 2);
        let same = lister.decide(vec![path(2), path(1)], Vec::new());
        assert!(Arc::ptr_eq(&first, &same));
        let fewer = lister.decide(vec![path(2)], Vec::new());
        assert_eq!(fewer.entries.len(), 1);
    }

    #[test]
    fn a_slow_speaker_is_not_asked_and_a_silent_one_not_waited_for() {
        let folder = tempfile::tempdir().unwrap();
        let socket = folder.path().join("api");
        let _silent = std::os::unix::net::UnixListener::bind(&socket).unwrap();
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(async {
            let client = tidegate_flowspec::gobgp::Client::connect(&socket).await.unwrap();
            let (mut lister, mut speaker) = (lister(), Speaker::GoBgp(client));
            let now = MonotonicClock.now();
            let late = lister.list(&mut speaker, now - LATE).await;
            let Some(News::Failed(why)) = late else { panic!("{late:?}") };
            assert_eq!((why.as_str(), lister.failures), ("the BGP speaker answers slowly", 0));
            let silent = lister.list(&mut speaker, MonotonicClock.now()).await;
            let Some(News::Failed(why)) = silent else { panic!("{silent:?}") };
            assert!(why.starts_with("the BGP speaker does not list routes"), "{why}");
            assert_eq!(lister.failures, 1);
        });
    }

    #[test]
    fn after_three_failures_in_a_row_lists_are_rare() {
        let mut lister = lister();
        let second = |n: u64| Nanos::from_secs(n);
        let fail = |lister: &mut Lister, at| {
            let News::Failed(why) = lister.news(at, Err(Error::TooMany)) else { panic!() };
            assert!(why.contains("more than 1024"), "{why}");
        };
        fail(&mut lister, second(1));
        fail(&mut lister, second(2));
        assert!(lister.again <= second(3));
        fail(&mut lister, second(3));
        assert_eq!(lister.again, second(13));
        lister.news(second(13), Ok((Vec::new(), Vec::new())));
        fail(&mut lister, second(14));
        assert!(lister.again <= second(15), "they are counted anew");
    }
}
