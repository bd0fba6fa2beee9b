// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What the hooks are told of rules of a router when lists, writes and reads fail.

use super::*;
use crate::outlet::{Kept, Refused};
use crate::plane::PlaneError;
use tidegate_config::{Config, Registry, parse};
use tidegate_flowspec::Rule;
use tidegate_model::limits::Limits;
use tidegate_model::snapshot::RefusedRoutes;

/// Hooks that take more than so many rules not at all.
struct Hooks {
    most: usize,
    clears: bool,
    imported: Imported,
    readable: bool,
}

const FAILURE: &str = "no room";

impl Outlet for Hooks {
    fn set_imported(&mut self, imported: &Imported) -> Result<(), PlaneError> {
        if imported.rules.len() > self.most {
            return Err(PlaneError(FAILURE.into()));
        }
        self.imported = imported.clone();
        Ok(())
    }

    fn clear_imported(&mut self) -> Result<(), PlaneError> {
        if !self.clears {
            return Err(PlaneError("gone".into()));
        }
        self.imported = Imported::default();
        Ok(())
    }

    fn imported_hits(&self) -> Result<Vec<ImportedHits>, PlaneError> {
        if self.readable { Ok(Vec::new()) } else { Err(PlaneError(FAILURE.into())) }
    }

    fn set_limits(&mut self, _: &Config, _: &Limits, _: &Kept) -> Result<Vec<Refused>, PlaneError> {
        Ok(Vec::new())
    }

    fn generation(&self) -> u64 {
        0
    }

    crate::outlet::says_nothing_else!();
}

/// The rules of a router, and hooks, in virtual time.
struct World {
    import: Import,
    hooks: Hooks,
    now: Nanos,
}

impl World {
    fn new() -> Self {
        let text = "interfaces: [{name: eth0}]\nservices:\n  shop: {mode: enforce, listen: [\"192.0.2.11:80\"]}\nflowspec:\n  speaker: gobgp\n  \
                    as: 65001\n  router_id: 192.0.2.11\n  peers: {r: {address: 192.0.2.1, local: 192.0.2.11, as: 65001}}\n  \
                    import: {peer: r, mode: enforce, prefixes: [192.0.2.0/24]}\n";
        let config =
            parse(text, &Registry::new(["fresh_first"], crate::controllers::NAMES)).unwrap();
        let import = Import::new(config.flowspec.as_ref().unwrap()).unwrap();
        let hooks =
            Hooks { most: 256, clears: true, imported: Imported::default(), readable: true };
        Self { import, hooks, now: Nanos::from_secs(100) }
    }

    /// A round, a second later; what was told of it.
    fn round(&mut self, news: Option<News>) -> Vec<String> {
        self.now = Nanos(self.now.0 + Nanos::SECOND.0);
        self.import.tick(self.now, news, &mut self.hooks);
        self.import.events(self.now).iter().map(What::sentence).collect()
    }

    /// A list of so many rules.
    fn list(&self, count: u16) -> Option<News> {
        let entry = |slot: u16| {
            let destination = format!("192.0.2.{slot}/32").parse().unwrap();
            let packets = Some(Rate::per_second(100.0));
            let (rule, generation, bytes) = (Rule::to(destination), 1, None);
            Entry { slot, generation, rule, bytes, packets, hits: <_>::default() }
        };
        let entries = (0..count).map(entry).collect();
        let refused = vec![RefusedRoutes { reason: "action".into(), count: 2 }];
        Some(News::Listed(self.now, Arc::new(Table { entries, refused })))
    }

    fn rules(&self) -> (usize, usize) {
        (self.hooks.imported.rules.len(), self.import.state().rules.len())
    }
}

#[test]
fn rules_that_cannot_be_written_are_none_and_not_those_of_before() {
    let mut world = World::new();
    let told = world.round(world.list(2));
    assert_eq!((world.rules(), told.len()), ((2, 2), 2), "{told:?}");
    world.hooks.most = 2;
    let told = world.round(world.list(3));
    assert_eq!(told, ["2 rule(s) of the router r ended"]);
    assert_eq!(world.rules(), (0, 0), "status says what is in force");
    let wrong = "rules of the router are not written: no room";
    assert_eq!((world.import.problem(), world.import.state().problem.as_str()), (wrong, wrong));
    assert!(world.round(world.list(3)).is_empty(), "it is not told again");
    world.hooks.most = 3;
    let told = world.round(world.list(3));
    assert_eq!((world.rules(), world.import.problem()), ((3, 3), ""));
    assert_eq!(told[1], "2 more rule(s) of the router r begin or change", "{told:?}");
}

#[test]
fn rules_that_cannot_be_ended_are_told() {
    let mut world = World::new();
    world.round(world.list(2));
    (world.hooks.most, world.hooks.clears) = (0, false);
    assert!(world.round(world.list(1)).is_empty(), "they have not ended");
    assert_eq!(world.rules().0, 2);
    assert_eq!(world.import.problem(), "rules of the router hold on, whatever it says: gone");
    world.hooks.clears = true;
    assert_eq!(world.round(world.list(1)), ["2 rule(s) of the router r ended"]);
    // It waits a second until it tries again.
    world.hooks.most = 1;
    let soon = Nanos(world.now.0 + Nanos::from_millis(100).0);
    world.import.tick(soon, None, &mut world.hooks);
    assert_eq!(world.rules().0, 0);
    world.round(None);
    assert_eq!((world.rules().0, world.import.problem()), (1, ""));
}

#[test]
fn ports_of_ssh_and_exempt_ones_are_told_with_the_rules() {
    let text = |ports: &str| {
        format!(
            "interfaces: [{{name: eth0}}]\nexempt: {{ports: [{ports}]}}\nservices:\n  git: {{mode: enforce, \
             listen: [\"192.0.2.12:22\"]}}\nflowspec:\n  speaker: gobgp\n  as: 65001\n  router_id: 192.0.2.11\n  \
             peers: {{r: {{address: 192.0.2.1, local: 192.0.2.11, as: 65001}}}}\n  \
             import: {{peer: r, mode: enforce, prefixes: [192.0.2.0/24]}}\n"
        )
    };
    let config = |ports: &str| {
        let registry = Registry::new(["fresh_first"], crate::controllers::NAMES);
        parse(&text(ports), &registry).unwrap()
    };
    let mut hooks = World::new().hooks;
    let mut flowspec = crate::flowspec::Flowspec::default();
    flowspec.follow(&config("443"));
    flowspec.never_limit(&[22]);
    flowspec.enforce(Nanos::from_secs(1), &mut hooks);
    assert_eq!(hooks.imported.never, [22, 443], "though a service has it elsewhere");
    flowspec.follow(&config("443, 8443"));
    flowspec.enforce(Nanos::from_secs(2), &mut hooks);
    assert_eq!(hooks.imported.never, [22, 443, 8443]);
    // The end of the import is the end of all rules, also of those of an earlier process.
    let mut without = config("443");
    without.flowspec = None;
    flowspec.follow(&without);
    flowspec.enforce(Nanos::from_secs(3), &mut hooks);
    assert_eq!(hooks.imported, Imported::default());
    hooks.imported.shadow = true;
    crate::flowspec::Flowspec::default().enforce(Nanos::from_secs(1), &mut hooks);
    assert_eq!(hooks.imported, Imported::default());
}

#[test]
fn a_failed_list_is_told_once_and_ends_rules_after_a_while() {
    let mut world = World::new();
    world.round(world.list(2));
    let failed = || Some(News::Failed("too many".into()));
    assert_eq!(world.round(failed()), ["routes of the router r are not known: too many"]);
    assert_eq!((world.rules(), world.import.problem()), ((2, 2), "too many"), "for a while");
    let told = world.round(failed());
    assert_eq!(told, ["2 rule(s) of the router r ended"]);
    let state = world.import.state();
    assert!(!state.heard && state.rules.is_empty() && state.refused.len() == 1, "{state:?}");
    world.round(world.list(2));
    assert_eq!((world.rules(), world.import.problem()), ((2, 2), ""), "it is over");
    // The end of the speaker is the end of its routes, at once.
    let told = world.round(Some(News::Ended("ended".into())));
    assert_eq!(told, ["routes of the router r are not known: ended"]);
    assert!(world.rules() == (0, 0) && !world.import.state().heard);
    assert!(world.round(Some(News::Failed("too many".into()))).is_empty(), "it flaps");
}

#[test]
fn counters_that_cannot_be_read_are_a_problem_until_they_can() {
    let mut world = World::new();
    world.hooks.readable = false;
    world.round(world.list(1));
    assert!(world.import.problem().contains("counters of imported rules"));
    world.hooks.readable = true;
    world.round(world.list(1));
    assert_eq!(world.import.problem(), "");
}

#[test]
fn of_many_rules_sixteen_are_named() {
    let mut world = World::new();
    let told = world.round(world.list(16));
    assert_eq!(told.len(), 16, "{told:?}");
    let told = world.round(world.list(34));
    assert_eq!(told, ["18 more rule(s) of the router r begin or change"]);
}

#[test]
fn a_router_without_a_session_is_a_problem_after_a_while() {
    let mut world = World::new();
    let round = |world: &mut World, session, list| {
        world.import.meet(world.now, session);
        world.round(list)
    };
    for _ in 0..20 {
        // GoBGP tries again after 5 s, and the list is there and empty.
        let (list, problem) = (world.list(0), world.import.problem());
        assert_eq!(problem, "");
        assert!(round(&mut world, Some(false), list).is_empty());
        assert!(!world.import.state().heard);
    }
    let list = world.list(0);
    let told = round(&mut world, Some(false), list);
    assert_eq!(told, ["routes of the router r are not known: there is no session"]);
    assert_eq!(world.import.state().problem, "there is no session with the router r");
    assert!(round(&mut world, Some(false), None).is_empty(), "it is not told again");
    let list = world.list(2);
    assert_eq!(round(&mut world, Some(true), list).len(), 2);
    assert!(world.import.problem().is_empty() && world.import.state().heard);
}

/// It is an event as soon as ten minutes are over, and only once.
#[test]
fn a_session_that_is_lost_again_and_for_good_is_told() {
    let mut world = World::new();
    let mut told = Vec::new();
    for second in 0..2000 {
        world.import.meet(world.now, Some((60..100).contains(&second)));
        let list = world.list(0);
        told.extend(world.round(list).into_iter().map(|_| second));
    }
    assert_eq!(told, [20, 620]);
}

#[test]
fn a_successor_that_did_not_come_leaves_no_rules_and_takes_none_along() {
    let mut world = World::new();
    world.round(world.list(2));
    // It begins without rules, and gives up within a second.
    world.hooks.imported = Imported::default();
    world.import.resume();
    world.round(world.list(2));
    assert_eq!(world.rules(), (2, 2));
    // Where nothing is imported those of the successor end.
    let mut flowspec = crate::flowspec::Flowspec::default();
    flowspec.enforce(Nanos::from_secs(1), &mut world.hooks);
    assert_eq!(world.hooks.imported, Imported::default());
    world.hooks.imported.shadow = true;
    world.hooks.clears = false;
    flowspec.resume();
    flowspec.enforce(Nanos::from_secs(2), &mut world.hooks);
    let (_, problem) = flowspec.problems().unwrap();
    assert_eq!(problem, "rules of an earlier import hold on, though there is none: gone");
    world.hooks.clears = true;
    flowspec.enforce(Nanos::from_secs(3), &mut world.hooks);
    assert_eq!((flowspec.problems(), &world.hooks.imported), (None, &Imported::default()));
}
