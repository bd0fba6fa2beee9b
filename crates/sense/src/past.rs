// SPDX-License-Identifier: Apache-2.0 OR MIT
//! To which service a connection belongs, and whether a hook should have seen it.
//!
//! Not counted: what comes from this host itself or from its containers (it goes by the loopback device or
//! by a bridge, and by no hook), and sources that are exempt, whose SYNs no service counts.

use crate::bypass::{Found, Seen};
use crate::connections::Connection;
use crate::rounds::Step;
use crate::service::Service;
use crate::space::Space;
use crate::ways::{Way, WaySource};
use std::collections::{BTreeMap, BTreeSet};
use tidegate_model::Listen;
use tidegate_units::Nanos;

/// Most clients of a list that are asked for. What the others are is taken from these.
const CLIENTS_MAX: usize = 256;

/// What connections of one list are to a service.
#[derive(Debug, Default)]
struct Tally {
    /// By round: those that a hook should have seen, and those that were not asked for.
    rounds: BTreeMap<u64, (u64, u64)>,
    asked: u64,
    outside: u64,
}

/// Services whose servers cannot be told apart: they have a place in common.
pub(crate) fn kin(services: &[Service], of: usize) -> Vec<usize> {
    let same = |other: &Service| {
        let places = |service: &Service| -> BTreeSet<_> {
            service.source.listen.iter().flat_map(|listen| listen.entries()).collect()
        };
        let own = &services[of];
        other.space == own.space && !places(other).is_disjoint(&places(own))
    };
    (0..services.len()).filter(|other| *other == of || same(&services[*other])).collect()
}

/// Who knows what clients are, and where hooks are.
pub(crate) struct Ground<'a> {
    pub(crate) ways: &'a mut dyn WaySource,
    /// Interfaces of our own network namespace.
    pub(crate) hooked: &'a [String],
}

/// One tick of all services. `seen`: what hooks saw of each since the tick before; `None`: not known.
pub(crate) fn tick(
    now: Nanos,
    (services, spaces): (&mut [Service], &mut [Space]),
    seen: &[Option<Seen>],
    ground: &mut Ground<'_>,
) -> Vec<Found> {
    for service in services.iter_mut() {
        let seen: Option<Seen> = service.kin.iter().map(|of| seen[*of]).sum();
        service.bypass.saw(now, seen.as_ref());
    }
    for (at, space) in spaces.iter_mut().enumerate() {
        let here = |service: &Service| service.space == at;
        let all = services.iter().zip(seen).filter(|(service, _)| here(service));
        let syns = all.filter_map(|(_, seen)| seen.as_ref()).map(Seen::syns).sum();
        let mute = services.iter().any(|service| here(service) && service.bypass.is_mute());
        space.saw(syns, mute);
        let of_space = services.iter().filter(|service| here(service));
        let ports = of_space.flat_map(|of| &of.listeners).map(|listener| listener.port).collect();
        let step = space.step(now, &ports);
        let mut of_space: Vec<_> = services.iter_mut().filter(|service| here(service)).collect();
        take(now, &step, &mut of_space, (space.namespace.is_none(), ground));
    }
    services.iter().map(|service| service.bypass.found(now)).collect()
}

/// Gives what was listed to the services of a namespace. `own`: it is ours, and the way to a client says by
/// which interface it comes.
fn take(
    now: Nanos,
    step: &Step,
    services: &mut [&mut Service],
    (own, ground): (bool, &mut Ground<'_>),
) {
    if let Some(number) = step.begins {
        services.iter_mut().for_each(|service| service.bypass.begin(now, number));
    }
    let mut tallies: Vec<Tally> = services.iter().map(|_| Tally::default()).collect();
    let mut clients = BTreeMap::new();
    for (round, connection) in &step.new {
        let fits: Vec<u8> = services.iter().map(|of| fit(of, step.port, connection)).collect();
        let best = fits.iter().copied().max().unwrap_or_default();
        let client = connection.remote;
        if best == 0 || client == connection.local || client.is_loopback() {
            continue;
        }
        let asks = clients.contains_key(&client) || clients.len() < CLIENTS_MAX;
        let way =
            asks.then(|| &*clients.entry(client).or_insert_with(|| ground.ways.way(now, client)));
        for ((service, tally), _) in
            services.iter_mut().zip(&mut tallies).zip(&fits).filter(|(_, fit)| **fit == best)
        {
            if service.source.exempt.iter().any(|net| net.contains(&client)) {
                continue;
            }
            tally.add(*round, way);
            if let Some(Way::Outside(name)) = way {
                let name = if own { name.as_str() } else { "" };
                let hooked = ground.hooked.iter().any(|of| of == name);
                service.bypass.client(now, client, (name, hooked));
            }
        }
    }
    for (service, tally) in services.iter_mut().zip(&tallies) {
        tally.give(|round, connections| service.bypass.count(round, connections));
        if step.ends {
            service.bypass.end();
        }
    }
}

/// How closely a service describes where a connection ends: as the hooks choose.
fn fit(service: &Service, port: u16, connection: &Connection) -> u8 {
    let listen = service.source.listen.iter();
    listen.map(|listen| Listen::matches(*listen, connection.local, port)).max().unwrap_or_default()
}

impl Tally {
    fn add(&mut self, round: u64, way: Option<&Way>) {
        let of_round = self.rounds.entry(round).or_default();
        match way {
            None => of_round.1 += 1,
            Some(way) => {
                let outside = u64::from(matches!(way, Way::Outside(_)));
                (self.asked, self.outside) = (self.asked + 1, self.outside + outside);
                of_round.0 += outside;
            }
        }
    }

    /// Those that were not asked for are what the others are.
    fn give(&self, mut count: impl FnMut(u64, u64)) {
        for (round, (outside, rest)) in &self.rounds {
            count(*round, outside + rest * self.outside / self.asked.max(1));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sense::ServiceSource;
    use std::net::IpAddr;

    /// Addresses that begin with 10 are containers', those with 203 cannot be asked for.
    #[derive(Default)]
    struct Fake(usize);

    impl WaySource for Fake {
        fn way(&mut self, _: Nanos, address: IpAddr) -> Way {
            self.0 += 1;
            match address {
                IpAddr::V4(ip) if ip.octets()[0] == 10 => Way::Inside,
                IpAddr::V4(ip) if ip.octets()[0] == 203 => Way::Unknown,
                _ => Way::Outside(if self.0.is_multiple_of(2) { "eth0" } else { "eth1" }.into()),
            }
        }
    }

    const QUIET: Seen = Seen { passed: 0, replied: Some(0), proved: 0, unreplied: 0, unproved: 0 };

    fn services(listens: &[&[&str]]) -> Vec<Service> {
        let source = |listen: &&[&str]| ServiceSource {
            listen: listen.iter().map(|text| text.parse().unwrap()).collect(),
            exempt: vec!["198.51.100.0/24".parse().unwrap()],
            ..ServiceSource::default()
        };
        listens.iter().map(source).map(Service::new).collect()
    }

    /// What each service is told of after some rounds in which the same connections are new.
    fn after(
        listens: &[&[&str]],
        own: bool,
        to: &str,
        from: impl Fn(usize) -> IpAddr,
    ) -> Vec<Found> {
        let mut services = services(listens);
        let (hooked, mut ways) = (["eth0".to_owned()], Fake::default());
        let mut ground = Ground { ways: &mut ways, hooked: &hooked };
        let local = to.parse().unwrap();
        let new = |number| {
            let of = |n| Connection { local, remote: from(n), remote_port: n as u16 };
            (0..10).map(|n| (number, of(n))).collect()
        };
        let mut found = Vec::new();
        for number in 1..=5 {
            let now = Nanos::from_secs(number);
            let mut all: Vec<_> = services.iter_mut().collect();
            all.iter_mut().for_each(|of| of.bypass.saw(now, Some(&QUIET)));
            let step = Step { begins: Some(number), new: new(number), port: 80, ends: true };
            take(now, &step, &mut all, (own, &mut ground));
            let now = now + Nanos::from_millis(100);
            all.iter_mut().for_each(|of| of.bypass.saw(now, Some(&QUIET)));
            found = services.iter().map(|of| of.bypass.found(now)).collect();
        }
        found
    }

    fn told(listens: &[&[&str]], to: &str) -> Vec<bool> {
        let found = after(listens, true, to, |_| [192, 0, 2, 9].into());
        found.iter().map(|found| found.bypassed.is_some()).collect()
    }

    #[test]
    fn a_connection_belongs_to_the_service_that_the_hooks_choose() {
        let both: [&[&str]; 2] = [&["*:80"], &["192.0.2.1:80"]];
        assert_eq!(told(&both, "192.0.2.1"), [false, true], "exact before any");
        assert_eq!(told(&both, "192.0.2.2"), [true, false]);
        let families: [&[&str]; 2] = [&["0.0.0.0:80"], &["[::]:80", "*:81"]];
        assert_eq!(told(&families, "192.0.2.1"), [true, false]);
        assert_eq!(told(&families, "2001:db8::1"), [false, true]);
        assert_eq!(told(&[&["*:81"]], "192.0.2.1"), [false], "another port");
        let twins: [&[&str]; 2] = [&["192.0.2.1:80"], &["192.0.2.1:80", "*:81"]];
        assert_eq!(told(&twins, "192.0.2.1"), [true, true], "nobody can say which");
    }

    #[test]
    fn what_comes_from_this_host_its_containers_or_an_exempt_source_is_no_evidence() {
        for (from, told) in [
            ("192.0.2.9", true),
            ("192.0.2.1", false),
            ("127.0.0.1", false),
            ("10.0.0.7", false),
            ("203.0.113.9", false),
            ("198.51.100.3", false),
        ] {
            let from: IpAddr = from.parse().unwrap();
            let found = after(&[&["*:80"]], true, "192.0.2.1", |_| from);
            assert_eq!(found[0].bypassed.is_some(), told, "{from}");
        }
        // Containers beside others are taken off.
        let mixed = |n| if n % 2 == 0 { [10, 0, 0, 7].into() } else { [192, 0, 2, 9].into() };
        let found = after(&[&["*:80"]], true, "192.0.2.1", mixed);
        assert_eq!(found[0].bypassed.as_ref().unwrap().connections, 20, "half of 40");
    }

    #[test]
    fn an_interface_without_hooks_is_named_first_and_only_in_our_own_namespace() {
        let from = |n| [192, 0, 2, 10 + n as u8].into();
        let name = |own| {
            let found = after(&[&["*:80"]], own, "192.0.2.1", from);
            found[0].bypassed.clone().unwrap().interface
        };
        assert_eq!((name(true).as_str(), name(false).as_str()), ("eth1", ""));
    }

    #[test]
    fn clients_that_were_not_asked_for_are_what_the_others_are() {
        let mut tally = Tally::default();
        for n in 0..300 {
            let way = if n % 4 == 0 { Way::Inside } else { Way::Outside(String::new()) };
            tally.add(7, (n < 200).then_some(&way));
        }
        let mut given = Vec::new();
        tally.give(|round, connections| given.push((round, connections)));
        assert_eq!(given, [(7, 225)]);
    }

    #[test]
    fn services_with_a_place_in_common_are_compared_together() {
        let listens: [&[&str]; 4] = [&["*:80"], &["0.0.0.0:80"], &["192.0.2.1:80"], &["*:81"]];
        let services = services(&listens);
        let of = |service| kin(&services, service);
        assert_eq!([of(0), of(1), of(2), of(3)], [vec![0, 1], vec![0, 1], vec![2], vec![3]]);
    }
}
