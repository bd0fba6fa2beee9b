// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The interfaces to the servers of a router: which are congested. What decides is
//! [`tidegate_control::congestion`].

use tidegate_config::Config;
use tidegate_control::congestion::{Arrivals, LinkWatch, Turn};
use tidegate_model::record::What;
use tidegate_model::signals::LinkUse;
use tidegate_model::snapshot::LinkState;
use tidegate_units::Nanos;

/// All of them, in the order of the configuration.
#[derive(Default)]
pub(crate) struct Links {
    links: Vec<Link>,
    turns: Vec<What>,
    /// The last round.
    now: Nanos,
}

struct Link {
    name: String,
    watch: LinkWatch,
    /// Of the interface, where it was seen in the last round.
    number: Option<u32>,
    problem: String,
}

impl Links {
    /// Follows another configuration; an interface that stays keeps what is known of it.
    pub(crate) fn follow(&mut self, config: &Config) {
        let mut old = std::mem::take(&mut self.links);
        for wanted in config.links() {
            let before = old.iter().position(|link| link.name == wanted.name);
            self.links.push(match before {
                Some(at) => old.swap_remove(at),
                None => Link {
                    name: wanted.name.clone(),
                    watch: LinkWatch::default(),
                    number: None,
                    problem: String::new(),
                },
            });
        }
        // What began ends, also where nobody looks any more.
        for mut link in old {
            let turn = link.watch.leave(self.now);
            self.turns.extend(turn.map(|turn| link.event(turn)));
        }
    }

    /// A round.
    pub(crate) fn tick(
        &mut self,
        now: Nanos,
        uses: Result<Vec<LinkUse>, String>,
        arrivals: Arrivals,
    ) {
        self.now = now;
        for link in &mut self.links {
            let seen =
                uses.as_ref().map(|uses| uses.iter().find(|seen| seen.interface == link.name));
            link.number = seen.as_ref().ok().and_then(|seen| seen.map(|seen| seen.identity.0));
            let (turn, problem) = match seen {
                Err(why) => (link.watch.unseen(now), why.clone()),
                Ok(None) => (link.watch.unseen(now), "there is no such interface".into()),
                Ok(Some(seen)) => (link.watch.tick(now, seen, arrivals), String::new()),
            };
            link.problem = problem;
            self.turns.extend(turn.map(|turn| link.event(turn)));
        }
    }

    /// What began and ended since the last call.
    pub(crate) fn turns(&mut self) -> Vec<What> {
        std::mem::take(&mut self.turns)
    }

    /// How often links have become congested, if one is.
    pub(crate) fn episode(&self) -> Option<u32> {
        let any = self.links.iter().any(|link| link.watch.is_congested());
        any.then(|| self.links.iter().map(|link| link.watch.episodes()).sum())
    }

    /// Numbers of the interfaces that are.
    pub(crate) fn congested(&self) -> Vec<u32> {
        let links = self.links.iter().filter(|link| link.watch.is_congested());
        links.filter_map(|link| link.number).collect()
    }

    /// For people.
    pub(crate) fn states(&self, now: Nanos) -> Vec<LinkState> {
        let state = |link: &Link| LinkState {
            interface: link.name.clone(),
            problem: link.problem.clone(),
            ..link.watch.state(now)
        };
        self.links.iter().map(state).collect()
    }

    /// What is wrong: a subject and a sentence.
    pub(crate) fn problems(&self) -> impl Iterator<Item = (String, String)> {
        let wrong = self.links.iter().filter(|link| !link.problem.is_empty());
        wrong.map(|link| {
            let text = format!("its congestion is not known: {}", link.problem);
            (format!("interface {}", link.name), text)
        })
    }
}

impl Link {
    fn event(&self, turn: Turn) -> What {
        let interface = self.name.clone();
        let what = match turn {
            Turn::Began => What::CongestionBegan { interface, signs: self.watch.signs() },
            Turn::Ended(lasted) => What::CongestionEnded { interface, lasted },
        };
        tracing::info!(interface = self.name, "{}", what.sentence());
        what
    }
}
