// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Request rules and SYN policing on a server with two kinds of work: steps, noise, a capacity that
//! halves. SYN policing refuses nothing while rules hold the load, becomes active when they do not, goes
//! to standby again, and nothing swings.

mod world;

use tidegate_control::{
    BucketController, BucketSpec, Cap, Controller, DefaultBucket, DefaultController, DefaultSpec,
    Detector, Dual, Fixed, Gauge, Interaction, Mode, PaperBucket, PaperBucketSpec, Syn, SynSpec,
};
use tidegate_model::limits::ServiceLimits;
use tidegate_model::signals::Signals;
use tidegate_units::{Rate, Share};
use world::{Second, Spec, World, spread};

const CGI: f64 = 0.2;

/// The laws were not designed with this seed, nor with those that follow. It was taken once and not searched.
const SEED: u64 = 311;

#[derive(Clone, Copy, Debug, PartialEq)]
enum Kind {
    /// Ours for both.
    Default,
    /// The paper's CPU controller with our SYN policing.
    PDefault,
    /// The paper's controllers, coupled.
    PSyn,
}

const KINDS: [Kind; 3] = [Kind::Default, Kind::PDefault, Kind::PSyn];

fn dual(kind: Kind, minimum: f64) -> Dual {
    let spec = BucketSpec { min_rate: Rate::per_second(minimum), ..BucketSpec::default() };
    let bucket: Box<dyn BucketController> = match kind {
        Kind::Default => Box::new(DefaultBucket::new(Gauge::Cpu, spec, DefaultSpec::default())),
        _ => p(spec),
    };
    let syn: Box<dyn Controller> = match kind {
        Kind::PSyn => Box::new(Syn::new(SynSpec::default())),
        _ => Box::new(DefaultController::new(DefaultSpec::default())),
    };
    coupled(bucket, syn)
}

/// P of the CPU with these rates.
fn p(bucket: BucketSpec) -> Box<dyn BucketController> {
    Box::new(PaperBucket::new(PaperBucketSpec { bucket, ..PaperBucketSpec::p(Gauge::Cpu) }))
}

fn coupled(bucket: Box<dyn BucketController>, syn: Box<dyn Controller>) -> Dual {
    let detector = Detector::of_rules(DefaultSpec::default().objective);
    Dual::new(vec![bucket], detector, syn, Interaction::Released)
}

/// What SYN policing did in a run.
#[derive(Debug, Default)]
struct Seen {
    activations: u32,
    active: bool,
    active_ticks: u32,
}

/// Runs the phases (load, seconds), with 20 % CGI; the invariant is looked at after each tick.
fn run(world: &mut World, dual: &mut Dual, phases: &[(f64, u64)], minimum: f64) -> Seen {
    let mut seen = Seen::default();
    for (load, seconds) in phases {
        world.run(dual, (*load, CGI, *seconds), |_, limits| {
            // Active or on standby can be told from the limits alone: on standby there is no rate.
            let active = !limits.why.text.starts_with("SYN policing is on standby");
            if active {
                let rate = limits.buckets[0].rate.map(Rate::get);
                assert_eq!(rate, Some(minimum), "active while a rule could refuse more");
            } else {
                assert_eq!((limits.rate, limits.accept_queue_max_q10), (None, 0));
            }
            seen.activations += u32::from(active && !seen.active);
            seen.active_ticks += u32::from(active);
            seen.active = active;
        });
    }
    seen
}

/// What may still be refused when the crowd has gone: the paper's controller knows no end of a limit,
/// and its bucket holds five.
fn after_share(kind: Kind) -> f64 {
    if kind == Kind::Default { 0.0 } else { 0.01 }
}

fn total(seconds: &[Second], of: impl Fn(&Second) -> u64) -> u64 {
    seconds.iter().map(of).sum()
}

/// Seconds as a table, for a failure that has to be understood.
fn table(world: &World) -> String {
    world
        .seconds
        .iter()
        .enumerate()
        .map(|(t, s)| {
            let Second { offered, syn_refused, cgi_refused, waiting, cpu, .. } = s;
            format!(
                "{t} offered {offered} syn {syn_refused} cgi refused {cgi_refused} done {} \
                 response {:.3} waiting {waiting} cpu {cpu:.2} rate {:?}\n",
                s.done(),
                s.response_s,
                s.cgi_rate
            )
        })
        .collect()
}

#[test]
fn no_syn_is_refused_while_rules_hold_the_load() {
    for (speed, minimum) in [(1.0, 10.0), (10.0, 10.0), (0.2, 2.0)] {
        let spec = Spec::default().times(speed);
        let capacity = spec.capacity(CGI);
        for kind in KINDS {
            // The paper's gains are those of the paper's machine.
            if kind != Kind::Default && speed != 1.0 {
                continue;
            }
            for load in [1.2, 1.5, 1.75] {
                let load = load * capacity;
                assert!(load < 0.95 * spec.held_by_rules(CGI, minimum));
                let (mut world, mut dual) = (World::new(spec, SEED), dual(kind, minimum));
                let phases = [(0.5 * capacity, 20), (load, 60), (0.5 * capacity, 20)];
                let seen = run(&mut world, &mut dual, &phases, minimum);
                let name = format!("{kind:?} x{speed} load {load:.0}\n{}", table(&world));
                assert_eq!(total(&world.seconds, |s| s.syn_refused), 0, "{name}");
                assert_eq!(seen.active_ticks, 0, "{name}");
                let late = &world.seconds[50..80];
                let static_share = total(late, |s| s.static_done) as f64
                    / total(late, |s| s.offered - s.cgi_offered) as f64;
                assert!(static_share > 0.97, "{static_share} {name}");
                let (response, _) = spread(late.iter().map(|s| s.response_s));
                assert!(response < 0.35, "{response} {name}");
                let after = &world.seconds[95..];
                let refused = total(after, |s| s.cgi_refused) as f64;
                assert!(
                    refused <= after_share(kind) * total(after, |s| s.cgi_offered) as f64,
                    "{name}"
                );
            }
        }
    }
}

#[test]
fn the_default_uses_the_cpu_up_and_does_not_swing() {
    for speed in [1.0, 10.0] {
        let spec = Spec::default().times(speed);
        let load = 1.5 * spec.capacity(CGI);
        let (mut world, mut dual) = (World::new(spec, SEED), dual(Kind::Default, 10.0));
        run(&mut world, &mut dual, &[(0.5 * load, 20), (load, 100)], 10.0);
        let late = &world.seconds[60..];
        let (cpu, _) = spread(late.iter().map(|s| s.cpu));
        assert!(cpu > 0.95, "{cpu}\n{}", table(&world));
        let pairs = late.chunks(2).map(|two| total(two, |s| s.cgi_done) as f64);
        let (_, cv) = spread(pairs);
        assert!(cv < 0.35, "{cv}\n{}", table(&world));
    }
}

#[test]
fn beyond_the_rules_syn_policing_becomes_active_once() {
    let spec = Spec::default();
    let capacity = spec.capacity(CGI);
    for kind in KINDS {
        let (mut world, mut dual) = (World::new(spec, SEED), dual(kind, 10.0));
        let phases = [(0.5 * capacity, 20), (3.0 * capacity, 60), (0.5 * capacity, 60)];
        let seen = run(&mut world, &mut dual, &phases, 10.0);
        let name = format!("{kind:?} {seen:?}\n{}", table(&world));
        assert!(seen.activations == 1 && !seen.active, "{name}");
        let crowd = &world.seconds[40..80];
        let best = spec.held_by_rules(CGI, 10.0) * (1.0 - CGI) * crowd.len() as f64;
        let served = total(crowd, |s| s.static_done) as f64;
        // The paper's SYN controller comes back from what the transient made of it by 6/s a second:
        // in the 40 s that are looked at it serves 0.88 to 0.92.
        let least = if kind == Kind::PSyn { 0.85 } else { 0.95 };
        assert!(served > least * best, "{served} of {best} {name}");
        let after = &world.seconds[120..];
        assert_eq!(total(after, |s| s.syn_refused), 0, "{name}");
        let refused = total(after, |s| s.cgi_refused) as f64;
        assert!(refused <= after_share(kind) * total(after, |s| s.cgi_offered) as f64, "{name}");
    }
}

#[test]
fn a_capacity_that_halves_is_made_up_for_by_rules() {
    let spec = Spec::default();
    for kind in KINDS {
        let (mut world, mut dual) = (World::new(spec, SEED), dual(kind, 10.0));
        run(&mut world, &mut dual, &[(300.0, 30)], 10.0);
        world.speed(0.5);
        // 240 static requests need 0.75 of what is left, 10 of CGI 0.14.
        let seen = run(&mut world, &mut dual, &[(300.0, 60)], 10.0);
        world.speed(1.0);
        run(&mut world, &mut dual, &[(300.0, 60)], 10.0);
        let name = format!("{kind:?} {seen:?}\n{}", table(&world));
        assert_eq!(total(&world.seconds, |s| s.syn_refused), 0, "{name}");
        let (response, _) = spread(world.seconds[60..90].iter().map(|s| s.response_s));
        assert!(response < 0.5, "{response} {name}");
    }
}

/// Where the load is what rules can just hold, SYN policing is needed now and then: how often it
/// becomes active is bounded by the time that going to standby takes.
#[test]
fn at_the_edge_it_does_not_flap() {
    let spec = Spec::default();
    for kind in KINDS {
        for share in [0.97, 1.0, 1.03] {
            let load = share * spec.held_by_rules(CGI, 10.0);
            let (mut world, mut dual) = (World::new(spec, SEED), dual(kind, 10.0));
            let seen = run(&mut world, &mut dual, &[(300.0, 10), (load, 300)], 10.0);
            assert!(seen.activations <= 12, "{kind:?} {share} {seen:?}");
            let (response, _) = spread(world.seconds[60..].iter().map(|s| s.response_s));
            let name = format!("{kind:?} {share} {seen:?}\n{}", table(&world));
            assert!(response < 0.5, "a backlog stands: {response} {name}");
        }
    }
}

/// A machine that stands still for a second or is slow for some may need SYN policing, and a backlog
/// that drains slowly behind rules as well. It is not active for long after it, whatever activated it: with the
/// paper's controllers it refused for 40 to 60 s, because a rate that a moment had lowered comes back
/// by 6/s a second.
#[test]
fn after_a_hiccup_it_goes_to_standby_again() {
    let spec = Spec::default();
    for kind in KINDS {
        let mut activated = 0;
        for (share, most_s) in [(0.6, 5.0), (0.75, 5.0), (0.85, 6.0), (0.9, 20.0)] {
            let load = share * spec.held_by_rules(CGI, 10.0);
            for (speed, stall_s) in [(0.02, 1), (0.02, 2), (0.3, 5), (0.6, 8)] {
                for seed in SEED..SEED + 4 {
                    let (mut world, mut dual) = (World::new(spec, seed), dual(kind, 10.0));
                    run(&mut world, &mut dual, &[(300.0, 10), (load, 60)], 10.0);
                    world.speed(speed);
                    let stall = run(&mut world, &mut dual, &[(load, stall_s)], 10.0);
                    world.speed(1.0);
                    let after = run(&mut world, &mut dual, &[(load, 60)], 10.0);
                    let name = format!("{kind:?} {share} {speed} for {stall_s} s, seed {seed}");
                    let active_s = f64::from(after.active_ticks) / 10.0;
                    assert!(active_s <= most_s && !after.active, "{name}: {active_s} s");
                    activated += stall.activations + after.activations;
                }
            }
        }
        assert!(activated > 0, "{kind:?}: no hiccup was one");
    }
}

/// An operator's cap is in force whether SYN policing is active or not. It is no sign of an overload: with a
/// CPU that is half free it lowers no rule and activates nothing.
#[test]
fn a_cap_always_holds_and_lowers_no_rule() {
    let spec = Spec::default();
    let capacity = spec.capacity(CGI);
    for kind in KINDS {
        let rate = Rate::per_second((0.5 * capacity).floor());
        let cap = Cap { rate, burst: 20 };
        let controller: Box<dyn Controller> = match kind {
            Kind::PSyn => Box::new(Syn::new(SynSpec { rate_max: rate, ..SynSpec::default() })),
            _ => Box::new(Fixed::new(rate, cap.burst)),
        };
        let bucket = BucketSpec { min_rate: Rate::per_second(10.0), ..BucketSpec::default() };
        let dual = coupled(p(bucket), controller);
        let (mut world, mut dual) = (World::new(spec, SEED), dual.capped(Some(cap)));
        let mut active = 0;
        for (load, seconds) in [(0.4 * capacity, 20), (3.0 * capacity, 60), (0.4 * capacity, 20)] {
            world.run(&mut dual, (load, CGI, seconds), |_, limits| {
                assert!(limits.rate.is_some_and(|limit| limit <= rate), "{:?}", limits.why.text);
                active += u32::from(!limits.why.text.starts_with("SYN policing is on standby"));
            });
        }
        let name = format!("{kind:?} {active}\n{}", table(&world));
        let crowd = &world.seconds[25..80];
        let (admitted, _) =
            spread(crowd.iter().map(|s| (s.offered - s.syn_refused) as f64 / rate.get()));
        assert!(admitted < 1.05, "{admitted} {name}");
        if kind != Kind::PSyn {
            assert_eq!((active, total(crowd, |s| s.cgi_refused)), (0, 0), "{name}");
        }
    }
}

/// Sees a third of the CPU, because the server waits for something else, and peaks of it.
struct Waiting {
    dual: Dual,
    ticks: u32,
}

impl Controller for Waiting {
    fn tick(&mut self, signals: &Signals, mode: Mode) -> ServiceLimits {
        let mut seen = signals.clone();
        self.ticks += 1;
        if let Some(cpu) = &mut seen.resource.cpu
            && self.ticks % 20 >= 3
        {
            cpu.value = Share::new(cpu.value.get() / 3.0);
        }
        self.dual.tick(&seen, mode)
    }
}

/// Where it is not the CPU that is short, a CPU with room is no reason for standby, nor, on standby, to stay
/// so; also where the accept queue is so large that what the law aims at is a small part of it.
#[test]
fn a_slow_dependency_keeps_it_active() {
    for accept in [1024, 8192] {
        let spec = Spec { accept, ..Spec::default() };
        for kind in KINDS {
            let dual = match kind {
                Kind::PSyn => small_reference(accept),
                _ => dual(kind, 10.0),
            };
            let (mut world, mut dual) = (World::new(spec, SEED), Waiting { dual, ticks: 0 });
            let capacity = spec.capacity(CGI);
            let (mut activations, mut active_before, mut active_ticks) = (0, false, 0);
            for (load, seconds) in [(0.5 * capacity, 20), (3.0 * capacity, 180)] {
                world.run(&mut dual, (load, CGI, seconds), |_, limits| {
                    let active = !limits.why.text.starts_with("SYN policing is on standby");
                    activations += u32::from(active && !active_before);
                    active_ticks += u32::from(active);
                    active_before = active;
                });
            }
            let name = format!("{kind:?} {accept} {activations} {active_ticks}\n{}", table(&world));
            assert!(activations == 1 && active_before && active_ticks > 1_500, "{name}");
        }
    }
}

/// The paper's controllers with its reference of 100 connections, whatever the queue holds.
fn small_reference(accept: usize) -> Dual {
    let spec = BucketSpec { min_rate: Rate::per_second(10.0), ..BucketSpec::default() };
    let reference = Share::new(100.0 / accept as f64);
    let syn = Box::new(Syn::new(SynSpec { reference, ..SynSpec::default() }));
    coupled(p(spec), syn)
}
