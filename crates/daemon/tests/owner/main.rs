// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The owner's logic, without kernel and clock.
#![allow(clippy::unwrap_used, reason = "helpers of tests, too")]

mod adopted;
mod kept;
mod overrides;
mod places;
mod pushback;
mod record;
mod remote;
mod remote_requests;
mod requests;
mod sources;
mod world;

use tidegate_api::protocol::{ErrorKind, Handover, Reply};
use tidegate_daemon::owner::SAMPLES_MAX;
use tidegate_model::Mode;
use tidegate_model::limits::ServiceLimits;
use tidegate_model::snapshot::Sample;
use tidegate_units::{Clock, Nanos, Rate};
use world::*;

#[test]
fn limits_are_written_when_they_change_and_their_number_only_grows() {
    let mut world = World::new(ONE);
    for offered in [50, 50, 50, 70, 70, 50] {
        world.tick(Some(offered));
    }
    assert_eq!(world.generations(), [1, 2, 3]);
    assert_eq!(world.snapshot().limits_generation, 3);
    assert_eq!(world.memory.lock().unwrap().heartbeats, 6, "the lease is renewed at every tick");
}

#[test]
fn the_lease_is_renewed_before_anything_that_could_be_slow() {
    let mut world = World::new(ONE);
    world.tick(Some(5));
    assert_eq!(world.memory.lock().unwrap().order, ["heartbeat", "sense", "limits"]);
}

#[test]
fn a_write_that_fails_is_repeated_under_a_new_number() {
    let mut world = World::new(ONE);
    world.memory.lock().unwrap().refuse_limits = true;
    world.tick(Some(50));
    assert!(world.generations().is_empty() && world.warns("limits: cannot be written"));
    world.memory.lock().unwrap().refuse_limits = false;
    world.tick(Some(50));
    world.tick(Some(50));
    assert_eq!(world.generations(), [2]);
}

#[test]
fn missing_signals_never_tighten_whatever_the_controller_says() {
    let mut world = World::new(ONE);
    world.tick(Some(500));
    assert_eq!(world.rate(), Some(500.0));
    for _ in 0..50 {
        world.tick(None);
        assert_eq!(world.rate(), Some(500.0), "the controller wanted 1/s without any signal");
    }
    world.tick(Some(300));
    assert_eq!(world.rate(), Some(300.0), "with signals it may");
}

#[test]
fn without_any_signal_from_the_start_there_is_no_limit() {
    let mut world = World::new(ONE);
    world.tick(None);
    assert_eq!(world.rate(), None);
}

#[test]
fn a_reload_that_is_wrong_changes_nothing_and_is_remembered_until_one_succeeds() {
    let dir = tempfile::tempdir().unwrap();
    let mut world = World::new(ONE);
    world.tick(Some(50));
    let before = world.owner.config().clone();
    let keep = Ok;
    let wrong = ["nonsense: true", "", "interfaces: [{name: lo}]\nservices: {}\n", "\u{0}"];
    for text in wrong {
        let error = world.owner.reload(&file(&dir, text), &registry(), &keep).unwrap_err();
        assert_eq!(error.kind, ErrorKind::ConfigInvalid, "{text:?}");
        assert_eq!(world.owner.config(), &before);
        assert!(world.memory.lock().unwrap().applied.is_empty(), "{text:?} reached the dataplane");
        assert!(world.warns("reload"));
    }
    let missing = dir.path().join("nothing");
    assert!(world.owner.reload(&missing, &registry(), &keep).is_err());
    assert_eq!(world.snapshot().config_generation, 1);

    let good = ONE.replace("*:80", "*:81");
    let reply = world.owner.reload(&file(&dir, &good), &registry(), &keep).unwrap();
    let Reply::Reload { generation: 2, changes, .. } = reply else { panic!("{reply:?}") };
    assert_eq!(changes.len(), 1, "{changes:?}");
    assert!(!world.warns("reload"), "a success ends the warning");
    assert_eq!(world.memory.lock().unwrap().applied.len(), 1);
}

#[test]
fn a_reload_that_the_dataplane_refuses_goes_back() {
    let dir = tempfile::tempdir().unwrap();
    let mut world = World::new(ONE);
    world.tick(Some(50));
    let before = world.owner.config().clone();
    world.memory.lock().unwrap().refuse_applies = 1;
    let path = file(&dir, &ONE.replace("*:80", "*:81"));
    let error = world.owner.reload(&path, &registry(), &Ok).unwrap_err();
    assert_eq!(error.kind, ErrorKind::Failed);
    assert_eq!(world.owner.config(), &before);
    assert_eq!(world.memory.lock().unwrap().applied, [before], "the old one is put in force again");
    world.tick(Some(50));
    assert_eq!(world.snapshot().config_generation, 1);
    assert_eq!(world.generations(), [1, 2], "going there and back forgot the limits");
    assert!(!world.warns("dataplane"));
}

#[test]
fn going_back_is_tried_until_it_works_and_the_limits_are_written_again() {
    let dir = tempfile::tempdir().unwrap();
    let mut world = World::new(ONE);
    world.tick(Some(50));
    let before = world.owner.config().clone();
    world.memory.lock().unwrap().refuse_applies = 3;
    let path = file(&dir, &ONE.replace("*:80", "*:81"));
    let error = world.owner.reload(&path, &registry(), &Ok).unwrap_err();
    assert!(!error.message.contains("nothing was changed"), "{error}");
    assert!(error.details[0].contains("going back failed"), "{error:?}");
    assert!(world.warns("dataplane: cannot go back"), "{:?}", world.snapshot().warnings);
    world.tick(Some(50));
    assert_eq!(world.generations(), [1, 2], "the next tick writes all the same");
    for _ in 0..20 {
        world.tick(Some(50));
    }
    assert_eq!(world.memory.lock().unwrap().applied, [before], "at the second try, and once");
    assert_eq!(world.generations(), [1, 2, 3, 4], "each try may have forgotten the limits");
    assert!(!world.warns("dataplane"), "{:?}", world.snapshot().warnings);
    assert!(world.warns("reload: "), "the file is still refused");
}

#[test]
fn a_reload_that_succeeds_ends_going_back() {
    let dir = tempfile::tempdir().unwrap();
    let mut world = World::new(ONE);
    world.tick(Some(50));
    world.memory.lock().unwrap().refuse_applies = 2;
    let path = file(&dir, &ONE.replace("*:80", "*:81"));
    world.owner.reload(&path, &registry(), &Ok).unwrap_err();
    world.owner.reload(&path, &registry(), &Ok).unwrap();
    assert!(!world.warns("dataplane"), "{:?}", world.snapshot().warnings);
    for _ in 0..20 {
        world.tick(Some(50));
    }
    let applied = world.memory.lock().unwrap().applied.clone();
    assert_eq!(applied, [world.owner.config().clone()], "the old one does not come back");
}

#[test]
fn a_reload_writes_the_limits_again_and_keeps_those_of_services_that_stay() {
    let dir = tempfile::tempdir().unwrap();
    let mut world = World::new(ONE);
    world.tick(Some(500));
    let two = format!("{ONE}  blog: {{mode: shadow, listen: ['*:81']}}\n");
    world.owner.reload(&file(&dir, &two), &registry(), &Ok).unwrap();
    let snapshot = world.tick(Some(500));
    assert_eq!(snapshot.services.len(), 2);
    assert_eq!(world.memory.lock().unwrap().written.last().unwrap().services.len(), 2);
    assert_eq!(world.generations(), [1, 2]);
}

#[test]
fn a_service_that_is_put_first_resets_none_of_those_below() {
    let dir = tempfile::tempdir().unwrap();
    let mut world = World::new(ONE);
    world.tick(Some(500));
    let first = "  blog: {mode: shadow, listen: ['*:81']}\n  shop:";
    let two = ONE.replace("  shop:", first);
    world.owner.reload(&file(&dir, &two), &registry(), &Ok).unwrap();
    let names: Vec<_> = world.owner.config().services.iter().map(|s| s.name.as_str()).collect();
    assert_eq!(names, ["blog", "shop"]);
    let limits = &world.owner.handover().limits;
    assert_eq!(limits["shop"].rate.map(Rate::get), Some(500.0), "its limit stays");
    assert_eq!(limits["blog"].rate, None);
}

#[test]
fn the_kill_switch_works_at_once_and_the_controller_knows() {
    let mut world = World::new(ONE);
    world.tick(Some(50));
    let reply = world.owner.release(true).unwrap();
    assert_eq!(reply, Reply::Release { on: true, before: false, lasts: None });
    assert!(world.memory.lock().unwrap().released, "without waiting for a tick");
    assert!(world.snapshot().released);
    let snapshot = world.tick(Some(50));
    assert!(world.warns("everything passes"));
    assert_eq!(snapshot.services[0].limits.why.text, "Shadow", "nothing is shed: as in shadow");
    world.owner.release(false).unwrap();
    assert!(!world.tick(Some(50)).released);
}

#[test]
fn a_kill_switch_that_cannot_be_set_is_not_said_to_be() {
    let mut world = World::new(ONE);
    world.tick(Some(50));
    world.memory.lock().unwrap().refuse_release = true;
    assert!(world.owner.release(true).is_err());
    assert!(!world.snapshot().released);
}

#[test]
fn a_kill_switch_thrown_without_a_daemon_stays_thrown() {
    let plane = FakePlane::default();
    plane.0.lock().unwrap().released = true;
    let mut world = World::with(ONE, None, plane);
    assert!(world.tick(Some(5)).released);
}

#[test]
fn a_mode_is_changed_in_the_dataplane_and_a_wrong_name_is_explained() {
    let mut world = World::new(ONE);
    world.tick(Some(50));
    let reply = world.owner.set_mode("shop", Mode::Shadow).unwrap();
    let (mode, before) = (Mode::Shadow, Mode::Enforce);
    let wanted = Reply::Mode { service: "shop".into(), mode, percent: None, before, lasts: None };
    assert_eq!(reply, wanted);
    assert_eq!(world.memory.lock().unwrap().shadows, [(0, true)]);
    assert!(world.memory.lock().unwrap().applied.is_empty(), "the rest is not touched");
    assert_eq!(world.snapshot().services[0].mode, "shadow");
    let error = world.owner.set_mode("shp", Mode::Shadow).unwrap_err();
    assert_eq!(error.kind, ErrorKind::UnknownService);
    assert!(error.message.contains("shop"), "{error}");
    world.memory.lock().unwrap().refuse_shadow = true;
    assert!(world.owner.set_mode("shop", Mode::Enforce).is_err());
    assert_eq!(world.memory.lock().unwrap().shadows[1..], [(0, false), (0, true)], "put back");
    assert_eq!(world.owner.handover().modes, [("shop".into(), Mode::Shadow)].into());
    assert_eq!(world.owner.config().services[0].mode, Mode::Shadow, "nothing changed");
}

#[test]
fn other_interfaces_without_privileges_are_refused_before_anything_is_applied() {
    let dir = tempfile::tempdir().unwrap();
    let mut world = World::new(ONE);
    world.memory.lock().unwrap().unprivileged = true;
    let other = ONE.replace("name: lo", "name: eth7");
    let error = world.owner.reload(&file(&dir, &other), &registry(), &Ok).unwrap_err();
    assert!(error.message.contains("privileges"), "{error}");
    assert!(world.memory.lock().unwrap().applied.is_empty());
    let ports = ONE.replace("*:80", "*:81");
    world.owner.reload(&file(&dir, &ports), &registry(), &Ok).unwrap();
}

#[test]
fn a_late_tick_is_counted_and_said() {
    let mut world = World::new(ONE);
    world.tick(Some(5));
    world.tick(Some(5));
    assert!(!world.warns("late"));
    world.clock.advance(Nanos::from_secs(3));
    world.tick(Some(5));
    assert!(world.warns("1 late so far"), "{:?}", world.snapshot().warnings);
}

#[test]
fn a_controller_that_panics_releases_its_service_only() {
    let two = format!("{ONE}  bad: {{mode: enforce, listen: ['*:81']}}\n");
    let mut world = World::new(&two);
    for tick in 1..=6 {
        let snapshot = world.tick(Some(50));
        assert_eq!(snapshot.services[0].limits.rate.map(Rate::get), Some(50.0));
        assert_eq!(snapshot.services[1].limits.rate, None);
        assert_eq!(world.memory.lock().unwrap().heartbeats, tick);
    }
    assert!(world.warns("bad: control"), "{:?}", world.snapshot().warnings);
}

#[test]
fn what_a_predecessor_decided_holds_until_there_is_an_own_opinion() {
    let rate =
        |rate: f64| ServiceLimits { rate: Some(Rate::per_second(rate)), ..Default::default() };
    let left = || Handover {
        generation: 41,
        limits: [("shop".into(), rate(77.0))].into(),
        ..Handover::default()
    };
    let mut world = World::with(ONE, Some(left()), FakePlane::default());
    world.tick(Some(0));
    assert_eq!((world.rate(), world.generations()), (Some(77.0), vec![42]));
    world.tick(Some(2000));
    assert_eq!(world.rate(), Some(2000.0), "the new controller sheds: its word counts");

    let mut world = World::with(ONE, Some(left()), FakePlane::default());
    for _ in 0..29 {
        world.tick(Some(0));
    }
    assert_eq!(world.rate(), Some(77.0));
    world.tick(Some(0));
    world.tick(Some(0));
    assert_eq!(world.rate(), None, "not for longer than 3 s");
}

#[test]
fn an_owner_that_is_being_succeeded_only_renews_the_lease_and_can_go_on() {
    let mut world = World::new(ONE);
    world.tick(Some(50));
    *world.offered.lock().unwrap() = Some(90);
    for _ in 0..5 {
        world.owner.tick_leaving();
    }
    assert_eq!(world.memory.lock().unwrap().heartbeats, 6);
    assert_eq!(world.generations(), [1], "nothing is decided");
    world.owner.resume();
    world.tick(Some(90));
    assert_eq!(world.memory.lock().unwrap().applied.len(), 1, "its own configuration is back");
    assert_eq!(world.generations(), [1, 2]);
}

/// Hooks that another process took and that cannot be had back are told for as long as it is so.
#[test]
fn hooks_that_a_failed_take_over_left_are_told() {
    let mut world = World::new(ONE);
    world.tick(Some(50));
    world.memory.lock().unwrap().lost = vec!["interface eth7: tcx (in) is not ours".into()];
    world.owner.resume();
    for _ in 0..500 {
        world.tick(Some(50));
    }
    assert!(world.warns("take-over: interface eth7"), "{:?}", world.snapshot().warnings);
    world.memory.lock().unwrap().lost.clear();
    world.owner.resume();
    assert!(!world.warns("take-over"), "{:?}", world.snapshot().warnings);
}

#[test]
fn hooks_that_are_lost_are_told_while_it_lasts() {
    let mut world = World::new(ONE);
    world.memory.lock().unwrap().unhooked = vec!["interface eth7 is not attached".into()];
    for _ in 0..500 {
        world.tick(Some(50));
    }
    assert!(world.warns("hooks: interface eth7"), "{:?}", world.snapshot().warnings);
    world.memory.lock().unwrap().unhooked.clear();
    for _ in 0..200 {
        world.tick(Some(50));
    }
    assert!(!world.warns("hooks"), "{:?}", world.snapshot().warnings);
}

#[test]
fn a_service_whose_limits_are_refused_is_told_while_it_lasts() {
    let mut world = World::new(ONE);
    world.memory.lock().unwrap().refused = vec![("shop".into(), "no such schedule".into())];
    world.tick(Some(50));
    for _ in 0..500 {
        world.tick(Some(50));
    }
    assert!(world.warns("shop: limits: refused"), "{:?}", world.snapshot().warnings);
    world.memory.lock().unwrap().refused.clear();
    // Limits that are written anew, and taken.
    for _ in 0..200 {
        world.tick(Some(60));
    }
    assert!(!world.warns("shop: limits"), "{:?}", world.snapshot().warnings);
}

#[test]
fn a_client_is_explained_from_its_prefix_and_the_samples() {
    let mut world = World::new(ONE);
    let sample = |client: &str| Sample {
        at: world.clock.now(),
        client: client.into(),
        service: "shop".into(),
        class: "partners".into(),
        verdict: "reject".into(),
        reason: "rate".into(),
        ..Sample::default()
    };
    world.memory.lock().unwrap().samples =
        vec![sample("198.51.100.7:4000"), sample("203.0.113.9:4001")];
    world.tick(Some(50));
    let text = |reason: &str| format!("text of {reason}");
    let got = world.owner.explain(&text, "198.51.100.7".parse().unwrap(), None);
    assert_eq!((got.services[0].class.as_str(), got.services[0].priority), ("partners", 0));
    assert_eq!(got.samples.len(), 1);
    assert_eq!(got.samples[0].text, "text of rate");
}

#[test]
fn the_ring_of_samples_is_bounded() {
    let mut world = World::new(ONE);
    let sample = Sample { client: "192.0.2.1:1".into(), ..Sample::default() };
    world.memory.lock().unwrap().samples = vec![sample; 3 * SAMPLES_MAX];
    for _ in 0..30 {
        world.tick(Some(5));
    }
    let left = world.memory.lock().unwrap().samples.len();
    assert_eq!(left, 0, "all were taken");
    let seen = world.owner.explain(&|_| String::new(), "192.0.2.1".parse().unwrap(), None);
    assert!(!seen.samples.is_empty() && seen.samples.len() <= SAMPLES_MAX);
}

#[test]
fn a_clean_stop_takes_everything_off() {
    let mut world = World::new(ONE);
    world.tick(Some(5));
    let World { owner, memory, .. } = world;
    owner.detach().unwrap();
    assert!(memory.lock().unwrap().detached);
}

#[test]
fn reserves_follow_the_weights_of_the_configuration() {
    let mut world = World::new(ONE);
    world.tick(Some(50));
    let written = world.memory.lock().unwrap().written.last().unwrap().services[0].clone();
    assert_eq!(written.reserve, world.owner.config().services[0].reserve_tokens(written.burst));
    assert!(written.reserve[7] > 0 && written.reserve[0] == 0, "{:?}", written.reserve);
}
