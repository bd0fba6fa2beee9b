// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Request rules that go back to shadow by themselves, and how they come back.

use crate::kept::FakeStore;
use crate::world::*;
use tidegate_api::protocol::Reply;
use tidegate_daemon::state::Keeper;
use tidegate_model::Mode;
use tidegate_model::record::{By, Event, What};

const RULES: &str = "    requests:
      buckets: {a: {resource: cpu}}
      rules: [{path: /, bucket: a}]
";

fn with_rules() -> String {
    format!("{ONE}{RULES}")
}

/// A process whose hooks judge requests, and which keeps what was decided.
fn start(text: &str, commands: &FakeStore) -> World {
    let keeper = Keeper::new(Box::new(FakeStore::default()), "test".into());
    let keeper = keeper.with_commands(Box::new(commands.clone()));
    let plane = FakePlane::default();
    plane.0.lock().unwrap().at_kernel = true;
    World::with_keeper(text, None, plane, Some(keeper))
}

/// Seconds in which so many of ten requests in a tick are refused by the first bucket, and the others answered.
fn go(world: &mut World, seconds: u32, refused: u64) {
    let answered = 10 - refused;
    let mut memory = world.memory.lock().unwrap();
    memory.flow = Some((0, answered, 4));
    (memory.bucket_refused, memory.bucket_answered) = (vec![refused], Some(answered));
    drop(memory);
    (0..10 * seconds).for_each(|_| drop(world.tick(Some(10))));
}

/// Half of the usual clients are refused, after half a minute in which nobody was.
fn gone_wrong(text: &str, commands: &FakeStore) -> World {
    let mut world = start(text, commands);
    go(&mut world, 30, 0);
    go(&mut world, 10, 5);
    world
}

/// The mode of the service, that of its rules as the snapshot has it, and whether a warning says so.
fn state(world: &World) -> (Mode, String, bool) {
    let snapshot = world.snapshot();
    let rules = snapshot.services[0].requests.as_ref().map(|requests| requests.mode.clone());
    let mode = world.owner.config().services[0].mode;
    (mode, rules.unwrap_or_default(), world.warns("shop: guard of request rules: they went back"))
}

/// Whether the rules' own mode is what the file says.
fn untouched(world: &World) -> bool {
    world.memory.lock().unwrap().rules_modes.is_empty()
}

fn wanted(rules: &str, warns: bool) -> (Mode, String, bool) {
    (Mode::Enforce, rules.to_owned(), warns)
}

fn events(world: &World) -> Vec<(Mode, By)> {
    let Reply::History { events, .. } = world.owner.history() else { panic!("no history") };
    let of_rules = |event: Event| match event.what {
        What::RulesMode { mode, by, .. } => Some((mode, by)),
        _ => None,
    };
    events.into_iter().filter_map(of_rules).collect()
}

/// Connections stay limited: only what the rules refuse is taken back. An operator's word ends it, and holds.
#[test]
fn rules_that_do_harm_and_no_good_go_back_to_shadow_and_nothing_else_does() {
    for back in [Mode::Enforce, Mode::Shadow] {
        let mut world = start(&with_rules(), &FakeStore::default());
        go(&mut world, 30, 0);
        go(&mut world, 3, 5);
        assert_eq!(state(&world), wanted("enforce", false), "not at once");
        go(&mut world, 7, 5);
        assert_eq!(state(&world), wanted("shadow", true));
        assert!(world.warns("50/s were refused"), "{:?}", world.snapshot().warnings);
        assert_eq!(world.memory.lock().unwrap().rules_modes, [(0, Some(Mode::Shadow))]);
        assert_eq!(events(&world), [(Mode::Shadow, By::Guard)]);
        // In shadow that goes on, and nothing more happens.
        go(&mut world, 20, 5);
        assert_eq!(world.memory.lock().unwrap().rules_modes.len(), 1);

        world.owner.set_mode("shop", back).unwrap();
        world.tick(Some(10));
        assert_eq!(state(&world), (back, back.name().to_owned(), false));
        assert_eq!(world.memory.lock().unwrap().rules_modes[1..], [(0, None)]);
        assert_eq!(events(&world)[1..], [(Mode::Enforce, By::Operator)]);
        go(&mut world, 30, 0);
        go(&mut world, 20, 5);
        assert_eq!(state(&world).0, back, "the operator has decided");
        assert_eq!(world.memory.lock().unwrap().rules_modes.len(), 2);
    }
}

#[test]
fn the_mode_of_the_file_brings_them_back_and_they_are_guarded_again() {
    let mut world = gone_wrong(&with_rules(), &FakeStore::default());
    world.owner.mode_of_file("shop").unwrap();
    world.tick(Some(10));
    assert_eq!(state(&world), wanted("enforce", false));
    go(&mut world, 30, 0);
    go(&mut world, 10, 5);
    assert_eq!(state(&world), wanted("shadow", true), "nobody has said that they refuse");
    // What the dataplane does not take is told, and they stay where they are.
    world.memory.lock().unwrap().refuse_rules = true;
    world.owner.mode_of_file("shop").unwrap();
    assert!(world.warns("they stay in shadow"), "{:?}", world.snapshot().warnings);
    assert_eq!(state(&world).1, "shadow");
    world.owner.mode_of_file("shop").unwrap();
    world.tick(Some(10));
    assert_eq!(state(&world).1, "enforce");
    assert!(!world.warns("guard"), "{:?}", world.snapshot().warnings);
}

/// What an operator limits by hand, counts only, or has at a gateway is not the guard's.
#[test]
fn rules_that_refuse_what_an_operator_wants_are_left_alone() {
    let file = with_rules();
    let bucket = |control: &str| {
        file.replace("{resource: cpu}", &format!("{{resource: cpu, control: {{{control}}}}}"))
    };
    for text in [
        bucket("name: fixed, rate: 50"),
        bucket("ceiling: 500"),
        file.replace("    requests:\n", "    requests:\n      mode: shadow\n"),
        file.replace("mode: enforce", "mode: shadow"),
    ] {
        let world = gone_wrong(&text, &FakeStore::default());
        assert!(untouched(&world) && !world.warns("guard"), "{text}");
    }
    let mut world = World::new(&file);
    go(&mut world, 30, 0);
    go(&mut world, 10, 5);
    assert!(untouched(&world), "the gate has its own numbers");
    let mut world = start(&file, &FakeStore::default());
    go(&mut world, 30, 0);
    world.owner.release(true).unwrap();
    go(&mut world, 10, 5);
    assert!(untouched(&world), "everything passes");
}

#[test]
fn other_rules_have_nothing_that_is_usual() {
    let dir = tempfile::tempdir().unwrap();
    for (other, ends) in [(false, true), (true, false)] {
        let mut world = start(&with_rules(), &FakeStore::default());
        go(&mut world, 30, 0);
        let text = if other { with_rules().replace("path: /,", "path: /a,") } else { with_rules() };
        world.owner.reload(&file(&dir, &text), &registry(), &Ok).unwrap();
        go(&mut world, 10, 5);
        assert_eq!(state(&world).2, ends, "other rules: {other}");
    }
}

/// No operator has decided. A file that says shadow itself, or has no rules, has no use for the guard's word.
#[test]
fn a_reload_a_take_over_and_a_restart_keep_them_in_shadow() {
    let dir = tempfile::tempdir().unwrap();
    let file_of = with_rules();
    let own = file_of.replace("    requests:\n", "    requests:\n      mode: shadow\n");
    let other = file_of.replace("path: /,", "path: /a,");
    for (text, keeps) in [(&file_of, true), (&other, true), (&own, false), (&ONE.to_owned(), false)]
    {
        let mut world = gone_wrong(&file_of, &FakeStore::default());
        let reply = world.owner.reload(&file(&dir, text), &registry(), &Ok).unwrap();
        let Reply::Reload { kept, .. } = reply else { panic!("{reply:?}") };
        assert_eq!(kept.iter().any(|said| said.contains("keeps its request rules")), keeps);
        world.tick(Some(10));
        let rules = if text == ONE { "" } else { "shadow" };
        assert_eq!(state(&world), wanted(rules, keeps), "reloaded: {text}");

        let commands = FakeStore::default();
        let world = gone_wrong(&file_of, &commands);
        let left = world.owner.handover();
        let succeeded = World::with(text, Some(left), FakePlane::default());
        drop(world);
        for mut next in [succeeded, start(text, &commands)] {
            next.tick(Some(10));
            assert_eq!(state(&next), wanted(rules, keeps), "{text}");
            assert_eq!(next.owner.handover().rules_guarded.len(), usize::from(keeps));
            next.owner.mode_of_file("shop").unwrap();
            next.tick(Some(10));
            let after = if keeps { "enforce" } else { rules };
            assert_eq!(state(&next), wanted(after, false), "{text}");
        }
    }
}
