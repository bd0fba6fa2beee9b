// SPDX-License-Identifier: Apache-2.0 OR MIT
//! NetDraino between the senses, which know the peers, and the limits: a congested router tells the owners of
//! its services what comes for them, and an overloaded server answers with limits. Connections and datagrams have
//! notices and limits of their own. What decides is
//! [`tidegate_control::fleet::remote`].

use crate::links::Links;
use crate::plane::Said;
use tidegate_config::{Config, TargetConfig, When};
use tidegate_control::fleet::remote::{Answer, Flow, Inbound, Node, Reply, TTL};
use tidegate_model::remote::{Hits, Notice, RemoteLimit, Scope, Unit};
use tidegate_model::snapshot::RemoteState;
use tidegate_peer::node::Notices;
use tidegate_peer::{OutgoingLimit, Plain};
use tidegate_sense::Sensed;
use tidegate_units::{Nanos, Rate};

/// How often a congested router says so, the first time at once. A limit holds for twice as long, and a server
/// forgets a router after three times.
const NOTICE_EVERY: Nanos = Nanos::SECOND;
/// So soon after the last one where a server begins to say by marks that it is overloaded.
const NOTICE_MARKED: Nanos = Nanos::from_millis(200);
/// It begins when nothing was heard for so long: more notices would use up the changes that grants allow.
const MARKS_FOR: Nanos = Nanos::from_secs(3);

/// Both sides.
#[derive(Default)]
pub(crate) struct Pushback {
    /// As a router: when it said last that it is congested.
    noticed: Option<Nanos>,
    /// When marks of a server were heard last, and whether they begin.
    heard: Option<Nanos>,
    marked: bool,
    /// As a server: by service.
    given: Vec<Given>,
}

/// The limits of one unit that a service gives to congested routers.
struct Given {
    service: String,
    index: usize,
    unit: Unit,
    /// What the service can take, where that stands in the configuration; `None`: its own limit says it.
    takes: Option<Rate>,
    to: Vec<Router>,
    answer: Answer,
}

struct Router {
    name: String,
    scope: Scope,
    before: Option<usize>,
    last: Option<(Nanos, Reply)>,
}

impl Pushback {
    /// Follows another configuration. What stays keeps what is known of it.
    pub(crate) fn follow(&mut self, config: &Config) {
        let mut old = std::mem::take(&mut self.given);
        for (index, service) in config.services.iter().enumerate() {
            let to = routers(config, &service.name);
            if to.is_empty() {
                continue;
            }
            self.give((&service.name, index), (Unit::Connections, None), (to, &mut old));
            if service.datagrams.is_some() {
                let to = routers(config, &service.name);
                let unit = (Unit::Datagrams, service.datagrams);
                self.give((&service.name, index), unit, (to, &mut old));
            }
        }
    }

    fn give(
        &mut self,
        (service, index): (&str, usize),
        (unit, takes): (Unit, Option<Rate>),
        (to, old): (Vec<Router>, &mut Vec<Given>),
    ) {
        let key = |router: &Router| (router.name.clone(), router.scope.clone(), router.before);
        let same = |given: &Given| {
            let routers = given.to.iter().map(key).eq(to.iter().map(key));
            (given.service.as_str(), given.unit) == (service, unit) && routers
        };
        self.given.push(match old.iter().position(same) {
            Some(at) => Given { index, takes, ..old.swap_remove(at) },
            None => {
                let before: Vec<Option<usize>> = to.iter().map(|router| router.before).collect();
                let min_rate = Rate::per_second(tidegate_model::RATE_MIN);
                let answer = Answer::new(&before, min_rate);
                Given { service: service.to_owned(), index, unit, takes, to, answer }
            }
        });
    }

    /// As a router: what the owners of its services are told. Nothing while it is not congested, whoever has marked
    /// packets.
    pub(crate) fn notices(
        &mut self,
        now: Nanos,
        (links, inbound): (&Links, [&Inbound; 2]),
        said: &mut Said,
    ) {
        let Some(episode) = links.episode() else {
            self.noticed = None;
            return;
        };
        if self.is_due(now) {
            said.notices = inbound.iter().flat_map(|of| of.notices(episode)).collect();
        }
    }

    /// As a router: a server has said by marks that it is overloaded.
    pub(crate) fn marked(&mut self, now: Nanos) {
        self.marked |= self.heard.is_none_or(|at| now.since(at) >= MARKS_FOR);
        self.heard = Some(now);
    }

    fn is_due(&mut self, now: Nanos) -> bool {
        let every = if self.marked { NOTICE_MARKED } else { NOTICE_EVERY };
        let due = self.noticed.is_none_or(|at| now.since(at) >= every);
        if due {
            (self.noticed, self.marked) = (Some(now), false);
        }
        due
    }

    /// As a server: what came from routers.
    pub(crate) fn hear(&mut self, now: Nanos, notices: &Notices, hits: &[(String, Hits)]) {
        for given in &mut self.given {
            let unit = given.unit;
            let own = notices.iter().filter(|(.., notice)| notice.unit == unit);
            for (name, number, notice) in own {
                if let Some(at) = given.router(name, |scope| reaches(scope, notice)) {
                    given.answer.notice(now, at, (*number, notice));
                }
            }
            for (name, hits) in hits.iter().filter(|(_, hits)| hits.unit == unit) {
                if let Some(at) = given.router(name, |scope| *scope == hits.scope) {
                    given.answer.hear(now, at, hits);
                }
            }
        }
    }

    /// As a server: the answers. `own` is what each service limits itself to; `None`: it refuses nobody (shadow
    /// mode, kill switch), and then nobody else is to refuse for it.
    pub(crate) fn say(
        &mut self,
        (now, period): (Nanos, Nanos),
        own: impl Fn(usize) -> Option<Option<Rate>>,
        (sensed, datagrams): (&[Sensed], &[Option<Flow>]),
        said: &mut Said,
    ) {
        for given in &mut self.given {
            let counts = sensed.get(given.index).and_then(|s| s.signals.balance.counts);
            let arrived = match given.unit {
                Unit::Connections => counts.map(|counts| {
                    let of = counts.value;
                    (of.offered, of.offered.saturating_sub(of.repeated))
                }),
                Unit::Requests => None,
                Unit::Datagrams => {
                    let flow = datagrams.get(given.index).copied().flatten();
                    flow.map(|flow| (flow.offered, flow.offered))
                }
            };
            let own = own(given.index).map(|own| given.takes.or(own));
            let replies = given.answer.tick((now, period), own.flatten(), arrived);
            if own.is_none() {
                continue;
            }
            said.limits.extend(replies.into_iter().filter_map(|reply| given.reply(now, reply)));
        }
    }

    /// The limits that a service gave to routers.
    pub(crate) fn states(&self, now: Nanos, index: usize) -> Vec<RemoteState> {
        let given = self.given.iter().filter(|given| given.index == index);
        given.flat_map(|given| given.states(now)).collect()
    }
}

fn reaches(scope: &Scope, notice: &Notice) -> bool {
    scope.reaches(&notice.service, &notice.listens)
}

fn routers(config: &Config, service: &str) -> Vec<Router> {
    let targets = || config.cluster.iter().flat_map(|cluster| &cluster.report_to);
    let pushed = |target: &TargetConfig| {
        let limits = target.limits.iter();
        let of = limits.filter(|limit| limit.service == service && limit.when == When::Congested);
        of.map(|limit| limit.scope.clone()).collect::<Vec<_>>()
    };
    let all: Vec<(&TargetConfig, Scope)> =
        targets().flat_map(|t| pushed(t).into_iter().map(move |scope| (t, scope))).collect();
    let place = |name: &String| all.iter().position(|(target, _)| target.name == *name);
    // A router in between that takes no limit of this service says nothing.
    let before = |target: &TargetConfig| {
        let mut behind = target.behind.as_ref()?;
        for _ in 0..targets().count() {
            if let Some(place) = place(behind) {
                return Some(place);
            }
            behind = targets().find(|other| other.name == *behind)?.behind.as_ref()?;
        }
        None
    };
    let router = |(target, scope): &(&TargetConfig, Scope)| Router {
        name: target.name.clone(),
        scope: scope.clone(),
        before: before(target),
        last: None,
    };
    all.iter().map(router).collect()
}

impl Given {
    fn router(&self, name: &str, is: impl Fn(&Scope) -> bool) -> Option<usize> {
        self.to.iter().position(|router| router.name == name && is(&router.scope))
    }

    fn reply(&mut self, now: Nanos, reply: Reply) -> Option<OutgoingLimit> {
        let router = self.to.get_mut(reply.router)?;
        if router.last.is_none_or(|(at, _)| now.since(at) >= TTL) {
            let (router, rate) = (&router.name, reply.rate);
            let of = if self.unit.is_usual() { "" } else { " in datagrams" };
            tracing::info!(service = self.service, router, %rate, "limits a congested router{of}");
        }
        router.last = Some((now, reply));
        let limit = RemoteLimit {
            scope: router.scope.clone(),
            restriction: self.unit.limit(reply.rate),
            validity: TTL,
            sequence: 0,
            priority: 0,
        };
        let answers = Some((reply.whole, reply.notice));
        Some(OutgoingLimit { target: router.name.clone(), limit, answers, plain: Plain::Same })
    }

    fn states(&self, now: Nanos) -> Vec<RemoteState> {
        let state = |(router, node): (&Router, &Node)| {
            let last = router.last.filter(|(at, _)| now.since(*at) < TTL);
            let rate = last.map(|(_, reply)| reply.rate);
            RemoteState {
                peer: router.name.clone(),
                role: "to".into(),
                scope: router.scope.to_string(),
                unit: self.unit,
                restriction: rate.map(|rate| self.unit.limit(rate)),
                priority: 0,
                rate,
                left: last.map(|(at, _)| TTL.since(now.since(at))),
                steps: 0,
                sequence: 0,
                age: node.age(now),
                offered: node.offered,
                refused: node.refused,
                would_refuse: 0,
                why: String::new(),
            }
        };
        self.to.iter().zip(self.answer.feedback().nodes()).map(state).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What anyone can put into packets makes one notice in three seconds at most.
    #[test]
    fn marks_that_begin_bring_a_notice_sooner_and_those_that_go_on_do_not() {
        let ms = Nanos::from_millis;
        let mut pushback = Pushback::default();
        assert!(pushback.is_due(ms(5_000)), "congestion begins");
        pushback.marked(ms(5_100));
        assert!(!pushback.is_due(ms(5_100)) && pushback.is_due(ms(5_200)), "not at once");
        assert!(!pushback.is_due(ms(6_100)) && pushback.is_due(ms(6_200)), "once a second");
        assert!(pushback.is_due(ms(7_300)));
        pushback.marked(ms(8_200));
        assert!(pushback.is_due(ms(8_200)), "nothing was said for 3 s");
        let mut notices = 0;
        for at in (8_300..18_200).step_by(100) {
            pushback.marked(ms(at));
            notices += u32::from(pushback.is_due(ms(at)));
        }
        assert_eq!(notices, 9, "marks in each tick");
    }
}
