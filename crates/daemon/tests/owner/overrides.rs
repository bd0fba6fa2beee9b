// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What commands set against the file: how long it holds, and that nothing ends it in silence.

use crate::kept::FakeStore;
use crate::world::*;
use tidegate_api::protocol::Reply;
use tidegate_daemon::owner::{keep_canaries, keep_modes};
use tidegate_daemon::state::Keeper;
use tidegate_model::record::{By, Event, What};
use tidegate_model::snapshot::ModeSet;
use tidegate_model::{Canary, Mode};
use tidegate_units::Nanos;

fn mode(world: &World) -> Mode {
    world.owner.config().services[0].mode
}

fn kept(reply: Reply) -> Vec<String> {
    let Reply::Reload { kept, .. } = reply else { panic!("{reply:?}") };
    kept
}

#[test]
fn a_mode_that_was_set_survives_a_take_over_and_reloads_that_say_so() {
    let dir = tempfile::tempdir().unwrap();
    let mut world = World::new(ONE);
    assert_eq!(world.owner.handover().modes, [].into(), "what the file says is not handed over");
    world.owner.set_mode("shop", Mode::Shadow).unwrap();
    let left = world.owner.handover();
    assert_eq!(keep_modes(config(ONE), &left.modes).services[0].mode, Mode::Shadow);
    let mut next = World::with(ONE, Some(left), FakePlane::default());
    assert_eq!(next.owner.handover().modes.len(), 1, "and the take-over after that");
    let reply = next.owner.reload(&file(&dir, ONE), &registry(), &Ok).unwrap();
    let said = kept(reply);
    assert!(said[0].starts_with("shop: keeps shadow") && said[0].contains("enforce"), "{said:?}");
    assert_eq!(mode(&next), Mode::Shadow);
    next.tick(Some(5));
    let set = next.snapshot().services[0].mode_set.clone();
    assert_eq!(set, Some(ModeSet { file: "enforce".into(), ..ModeSet::default() }));
    // The file's again; then a reload has nothing to say.
    next.owner.mode_of_file("shop").unwrap();
    assert_eq!((mode(&next), next.snapshot().services[0].mode_set.clone()), (Mode::Enforce, None));
    let reply = next.owner.reload(&file(&dir, ONE), &registry(), &Ok).unwrap();
    assert!(kept(reply).is_empty());
    assert!(next.owner.mode_of_file("shp").is_err());
}

#[test]
fn a_file_that_says_the_same_takes_over_from_the_command() {
    let dir = tempfile::tempdir().unwrap();
    let mut world = World::new(ONE);
    world.owner.set_mode("shop", Mode::Shadow).unwrap();
    let shadow = ONE.replace("mode: enforce", "mode: shadow");
    let reply = world.owner.reload(&file(&dir, &shadow), &registry(), &Ok).unwrap();
    assert!(kept(reply).is_empty());
    world.owner.reload(&file(&dir, ONE), &registry(), &Ok).unwrap();
    assert_eq!(mode(&world), Mode::Enforce, "nothing of the command is left");
}

#[test]
fn a_reload_that_is_refused_ends_no_mode() {
    let dir = tempfile::tempdir().unwrap();
    let mut world = World::new(ONE);
    world.owner.set_mode("shop", Mode::Shadow).unwrap();
    world.memory.lock().unwrap().refuse_applies = 1;
    let shadow = ONE.replace("mode: enforce", "mode: shadow").replace("*:80", "*:81");
    world.owner.reload(&file(&dir, &shadow), &registry(), &Ok).unwrap_err();
    assert_eq!(world.owner.handover().modes.len(), 1);
}

#[test]
fn what_is_set_for_a_time_ends_with_it_also_after_a_take_over() {
    let mut world = World::new(ONE);
    world.tick(Some(5));
    let second = Nanos::SECOND;
    let reply =
        world.owner.set_mode_for("shop", (Mode::Shadow, Canary::ALL), Some(second)).unwrap();
    assert!(matches!(reply, Reply::Mode { lasts: Some(Nanos::SECOND), .. }), "{reply:?}");
    world.owner.release_for(true, Some(second)).unwrap();
    let left = world.owner.handover();
    let plane = FakePlane::default();
    plane.0.lock().unwrap().released = true;
    let next = World::with(ONE, Some(left), plane);
    for mut world in [world, next] {
        for _ in 0..9 {
            let snapshot = world.tick(Some(5));
            assert!(snapshot.released && snapshot.release_left.is_some());
            assert!(world.warns("released: everything passes for "));
        }
        // It is refused, and tried again.
        world.memory.lock().unwrap().refuse_release = true;
        world.memory.lock().unwrap().refuse_shadow = true;
        assert!(world.tick(Some(5)).released);
        assert!(world.warns("shop: mode") && world.warns("kill switch"));
        world.memory.lock().unwrap().refuse_release = false;
        world.memory.lock().unwrap().refuse_shadow = false;
        let snapshot = world.tick(Some(5));
        assert_eq!((snapshot.released, snapshot.release_left), (false, None));
        assert_eq!(
            (&*snapshot.services[0].mode, &snapshot.services[0].mode_set),
            ("enforce", &None)
        );
        assert!(!world.memory.lock().unwrap().released);
    }
}

/// A canary is a mode of its own: it is kept by a reload and by whoever takes over, and a file that says
/// enforce does not end it. Its controller knows that its limits have little effect.
#[test]
fn a_canary_survives_a_reload_and_a_take_over() {
    let dir = tempfile::tempdir().unwrap();
    let mut world = World::new(ONE);
    let canary = Canary::of_percent(5.0).unwrap();
    world.owner.set_mode_for("shop", (Mode::Enforce, canary), None).unwrap();
    assert_eq!(world.memory.lock().unwrap().canaries, [canary]);
    let left = world.owner.handover();
    let kept_by_next = keep_canaries(keep_modes(config(ONE), &left.modes), &left.canaries);
    assert_eq!(kept_by_next.services[0].canary, canary);
    let mut next = World::with(ONE, Some(left), FakePlane::default());
    let said = kept(next.owner.reload(&file(&dir, ONE), &registry(), &Ok).unwrap());
    assert!(said[0].contains("keeps enforce for 5 % of the sources"), "{said:?}");
    next.tick(Some(5));
    let set = next.snapshot().services[0].mode_set.clone().unwrap();
    assert_eq!((set.percent, &*set.file), (Some(5.0), "enforce"));
    next.owner.set_mode("shop", Mode::Enforce).unwrap();
    assert!(next.owner.config().services[0].canary.is_all(), "the last word counts");
}

/// A policy that refuses half of the usual clients of a calm server ends in shadow, with an event and a
/// warning; not where an operator has said by command that it is enforced.
#[test]
fn refusals_that_do_harm_and_no_good_end_in_shadow() {
    let go = |world: &mut World, seconds: u32, flow| {
        world.memory.lock().unwrap().flow = Some(flow);
        (0..10 * seconds).for_each(|_| drop(world.tick(Some(10))));
    };
    let (calm, wrong) = ((0, 10, 4), (5, 5, 2));
    let mut world = World::new(ONE);
    go(&mut world, 30, calm);
    go(&mut world, 3, wrong);
    assert_eq!(mode(&world), Mode::Enforce, "not at once");
    go(&mut world, 7, wrong);
    assert_eq!(mode(&world), Mode::Shadow);
    assert!(world.warns("shop: guard: went back to shadow"), "{:?}", world.snapshot().warnings);
    let Reply::History { events, .. } = world.owner.history() else { panic!("no history") };
    let guard = |event: &&Event| matches!(event.what, What::Mode { by: By::Guard, .. });
    assert_eq!(events.iter().filter(guard).count(), 1);
    world.owner.set_mode("shop", Mode::Enforce).unwrap();
    world.tick(Some(10));
    assert!(!world.warns("shop: guard"), "somebody has seen it");
    go(&mut world, 30, calm);
    go(&mut world, 20, wrong);
    assert_eq!(mode(&world), Mode::Enforce, "so the operator has decided");
    // Whose tools reload the file every now and then does not lose that word.
    let dir = tempfile::tempdir().unwrap();
    world.owner.reload(&file(&dir, ONE), &registry(), &Ok).unwrap();
    go(&mut world, 30, calm);
    go(&mut world, 20, wrong);
    assert_eq!(mode(&world), Mode::Enforce, "also after a reload");
}

#[test]
fn the_last_word_counts() {
    let mut world = World::new(ONE);
    world.tick(Some(5));
    world.owner.release_for(true, Some(Nanos::SECOND)).unwrap();
    world.owner.release(true).unwrap();
    world.owner.set_mode_for("shop", (Mode::Shadow, Canary::ALL), Some(Nanos::SECOND)).unwrap();
    world.owner.set_mode("shop", Mode::Shadow).unwrap();
    (0..30).for_each(|_| drop(world.tick(Some(5))));
    assert!(world.snapshot().released && mode(&world) == Mode::Shadow, "until further notice");
    // Switched off past the daemon: the time of before says nothing of the next.
    world.owner.release_for(true, Some(Nanos::SECOND)).unwrap();
    world.memory.lock().unwrap().released = false;
    world.tick(Some(5));
    world.memory.lock().unwrap().released = true;
    (0..30).for_each(|_| drop(world.tick(Some(5))));
    assert!(world.snapshot().released);
}

/// A process that keeps what commands set; what it would learn goes nowhere that the next one looks.
fn start(text: &str, commands: &FakeStore) -> World {
    let keeper = Keeper::new(Box::new(FakeStore::default()), "test".into());
    let keeper = keeper.with_commands(Box::new(commands.clone()));
    World::with_keeper(text, None, FakePlane::default(), Some(keeper))
}

fn shop(world: &World) -> (Mode, f64, Option<ModeSet>) {
    let service = &world.owner.config().services[0];
    (service.mode, service.canary.percent(), world.snapshot().services[0].mode_set.clone())
}

/// The process is killed, or stopped and started: it finds what commands had set, and ends it at the moment that
/// was said.
#[test]
fn what_commands_set_outlives_a_restart_and_ends_when_it_was_said() {
    let commands = FakeStore::default();
    let mut world = start(ONE, &commands);
    world.tick(Some(5));
    let canary = Canary::of_percent(5.0).unwrap();
    let hour = Nanos::from_secs(3600);
    world.owner.set_mode_for("shop", (Mode::Enforce, canary), Some(hour)).unwrap();
    world.owner.release_for(true, Some(Nanos::from_secs(600))).unwrap();
    // No tick has come since: a kill is not told.
    drop(world);
    commands.age_by(Nanos::from_secs(100));
    let mut next = start(ONE, &commands);
    next.tick(Some(5));
    let (mode, percent, set) = shop(&next);
    assert_eq!((mode, percent), (Mode::Enforce, 5.0));
    let left = set.and_then(|set| set.left).unwrap();
    assert!(left < Nanos::from_secs(3501) && left > Nanos::from_secs(3498), "{left}");
    assert!(next.snapshot().released, "thrown again: the dataplane is new");
    let left = next.snapshot().release_left.unwrap();
    assert!(left < Nanos::from_secs(501) && left > Nanos::from_secs(498), "{left}");
    // A clean stop forgets what was learned, and no command.
    next.owner.detach().unwrap();
    commands.age_by(Nanos::from_secs(700));
    let mut last = start(ONE, &commands);
    last.tick(Some(5));
    assert!(!last.snapshot().released && last.snapshot().release_left.is_none());
    assert_eq!(shop(&last).1, 5.0);
    last.owner.mode_of_file("shop").unwrap();
    drop(last);
    let mut fresh = start(ONE, &commands);
    fresh.tick(Some(5));
    assert_eq!(shop(&fresh), (Mode::Enforce, 100.0, None), "the file's word was asked for");
}

#[test]
fn after_a_restart_an_edited_file_a_time_that_is_over_and_another_boot_win() {
    let commands = FakeStore::default();
    let mut world = start(ONE, &commands);
    world
        .owner
        .set_mode_for("shop", (Mode::Shadow, Canary::ALL), Some(Nanos::from_secs(60)))
        .unwrap();
    world.tick(Some(5));
    drop(world);
    let told = |world: &World, words: &str| {
        world.snapshot().warnings.iter().any(|warning| warning.contains(words))
    };
    // Whoever edits the file and restarts wants what it says.
    let before = commands.copy();
    let edited = ONE.replace("mode: enforce", "mode: shadow");
    let mut next = start(&edited, &before);
    next.tick(Some(5));
    assert_eq!(shop(&next).2, None);
    assert!(told(&next, "the file was edited since"), "{:?}", next.snapshot().warnings);
    let before = commands.copy();
    before.age_by(Nanos::from_secs(61));
    let mut next = start(ONE, &before);
    next.tick(Some(5));
    assert_eq!(shop(&next), (Mode::Enforce, 100.0, None));
    assert!(told(&next, "is over"), "{:?}", next.snapshot().warnings);
    let before = commands.copy();
    before.boot_again("another");
    let mut next = start(ONE, &before);
    next.tick(Some(5));
    assert_eq!(shop(&next), (Mode::Enforce, 100.0, None));
    assert!(next.snapshot().warnings.is_empty(), "as it should be after a boot");
}

/// What cannot be kept is told, and holds in this process.
#[test]
fn a_full_disk_and_a_damaged_file_are_told() {
    let commands = FakeStore::default();
    commands.fill();
    let mut world = start(ONE, &commands);
    world.owner.set_mode("shop", Mode::Shadow).unwrap();
    world.tick(Some(5));
    assert_eq!(shop(&world).0, Mode::Shadow);
    let warned = |world: &World, words: &str| world.warns(words);
    assert!(warned(&world, "commands"), "{:?}", world.snapshot().warnings);
    drop(world);
    commands.put(b"tidegate-commands 1 3 0000000000000000\n{}x");
    let mut next = start(ONE, &commands);
    next.tick(Some(5));
    assert_eq!(shop(&next).0, Mode::Enforce);
    assert!(warned(&next, "commands"), "{:?}", next.snapshot().warnings);
}

/// A service that went back to shadow by itself, and what keeps its mode.
fn misfired() -> (World, FakeStore) {
    let commands = FakeStore::default();
    let mut world = start(ONE, &commands);
    for (seconds, flow) in [(30, (0, 10, 4)), (10, (5, 5, 2))] {
        world.memory.lock().unwrap().flow = Some(flow);
        (0..10 * seconds).for_each(|_| drop(world.tick(Some(10))));
    }
    assert!(world.warns("shop: guard: went back to shadow"), "{:?}", world.snapshot().warnings);
    (world, commands)
}

/// No operator has decided: the next process, however it comes, says so as the one before.
#[test]
fn a_restart_and_a_take_over_know_that_the_guard_went_back_to_shadow() {
    let (world, commands) = misfired();
    let left = world.owner.handover();
    let succeeded = World::with(ONE, Some(left), FakePlane::default());
    drop(world);
    for mut next in [succeeded, start(ONE, &commands)] {
        (0..150).for_each(|_| drop(next.tick(Some(5))));
        let (mode, _, set) = shop(&next);
        assert_eq!(mode, Mode::Shadow);
        assert!(set.is_some_and(|set| set.guard && set.file == "enforce"));
        assert!(next.warns("shop: guard: went back to shadow"), "{:?}", next.snapshot().warnings);
        next.owner.set_mode("shop", Mode::Shadow).unwrap();
        next.tick(Some(5));
        assert!(!next.warns("shop: guard"), "now an operator has decided");
        assert!(shop(&next).2.is_some_and(|set| !set.guard));
    }
}

#[test]
fn a_reload_that_ends_the_guards_word_ends_its_warning() {
    let dir = tempfile::tempdir().unwrap();
    let shadow = ONE.replace("mode: enforce", "mode: shadow");
    let gone = ONE.replace("shop", "store");
    for (text, ends) in [(ONE, false), (&*shadow, true), (&*gone, true)] {
        let (mut world, _) = misfired();
        world.owner.reload(&file(&dir, text), &registry(), &Ok).unwrap();
        assert_eq!(world.warns("shop: guard"), !ends, "{text}");
    }
}

/// No command could end a warning about a service that is gone.
#[test]
fn what_the_guard_did_is_over_for_a_process_whose_file_has_no_use_for_it() {
    let shadow = ONE.replace("mode: enforce", "mode: shadow");
    let gone = ONE.replace("shop", "store");
    for text in [&shadow, &gone] {
        let (world, commands) = misfired();
        let left = world.owner.handover();
        let succeeded = World::with(text, Some(left), FakePlane::default());
        drop(world);
        for mut next in [succeeded, start(text, &commands)] {
            next.tick(Some(5));
            assert!(!next.warns("guard"), "{text}: {:?}", next.snapshot().warnings);
            assert_eq!((shop(&next).2, next.owner.handover().guarded.len()), (None, 0), "{text}");
        }
    }
}
