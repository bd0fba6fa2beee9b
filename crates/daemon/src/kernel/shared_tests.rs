// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Two routers to one server that tell each other what they see.

use super::limiting::mode;
use super::*;
use tidegate_model::sharing::RouterReports;

/// Two routers, and whether they hear each other.
struct Two {
    worlds: [World; 2],
    heard: bool,
}

impl Two {
    fn new() -> Self {
        let mut worlds = [World::at(Vec::new()), World::at(Vec::new())];
        for (world, other) in worlds.iter_mut().zip(["r1", "r0"]) {
            *world = World::new(1);
            world.crowds.share_with(&[other.to_owned()]);
            world.crowds.intend(&world.fake, &mode("shadow"), world.now).unwrap();
        }
        Self { worlds, heard: true }
    }

    /// So many seconds with so much at each; what happened at the first.
    fn run(&mut self, seconds: u64, each: [Came; 2]) -> Vec<String> {
        let mut told = Vec::new();
        for _ in 0..seconds {
            let mut said = [Vec::new(), Vec::new()];
            for (at, world) in self.worlds.iter_mut().enumerate() {
                let events = world.run(1, |_| each[at]);
                if at == 0 {
                    told.extend(events.into_iter().map(|(_, sentence)| sentence));
                }
                said[at] = world.crowds.share(world.now, Vec::new()).unwrap();
            }
            if !self.heard {
                continue;
            }
            for (from, reports) in said.into_iter().enumerate() {
                let to = &mut self.worlds[1 - from];
                let (router, at) = (format!("r{from}"), to.now);
                to.crowds.share(to.now, vec![RouterReports { router, at, reports }]);
            }
        }
        told
    }

    fn crowd(&self, at: usize) -> CrowdState {
        self.worlds[at].crowd()
    }
}

/// Both find it and show their parts; one that is not heard is told.
#[test]
fn routers_divide_a_limit_and_tell_who_is_lost() {
    let mut two = Two::new();
    let heard = two.run(120, [CALM, CALM]);
    assert!(heard.len() == 1 && heard[0].starts_with("the router r1 shares"), "{heard:?}");
    let third = Came { admitted: 5, begun: 5, completed: (2, SLOW), ..NOTHING };
    let told = two.run(40, [CROWD, third]);
    assert!(told.iter().any(|one| one.contains("flash crowd began")), "{told:?}");
    let parts = [0, 1].map(|at| two.crowd(at).part.unwrap());
    for (part, share) in parts.iter().zip([0.667, 0.333]) {
        assert!(part.routers == 2 && (part.share - share).abs() < 0.05, "{part:?}");
    }
    let limits = [0, 1].map(|at| two.crowd(at).limit.unwrap());
    // Of 50 that complete in a second.
    assert!((40.0..=55.0).contains(&limits.iter().sum::<f64>()), "{limits:?}");
    assert!(limits[0] > 1.5 * limits[1], "{limits:?}");
    let others = two.worlds[0].crowds.others(two.worlds[0].now);
    assert!(others[0].destinations == 1 && others[0].crowds == 1, "{others:?}");
    two.heard = false;
    let lost = two.run(15, [CROWD, third]);
    assert!(lost.len() == 1 && lost[0].contains("r1 has not been heard for"), "{lost:?}");
    two.heard = true;
    assert_eq!(two.run(5, [CROWD, third]).len(), 1, "heard again");
}

/// What comes to each is not enough to watch it; together it is.
#[test]
fn what_several_see_is_watched_together() {
    let two = Two::new();
    let crowds = &two.worlds[0].crowds;
    assert_eq!(crowds.busy_from(), BUSY / 2.0);
    assert_eq!(World::new(1).crowds.busy_from(), BUSY);
    let address = SocketAddr::from(([192, 0, 2, 0], 80));
    let mut two = Two::new();
    let now = two.worlds[0].now;
    assert!(!two.worlds[0].crowds.others_tell_of(&address, now));
    two.run(3, [CALM, CALM]);
    let world = &two.worlds[0];
    assert!(world.crowds.others_tell_of(&address, world.now));
}

/// Other routers say that there is a crowd: where responses are as fast as usual nobody believes it.
#[test]
fn a_crowd_of_others_is_none_here() {
    let mut two = Two::new();
    two.run(120, [CALM, CALM]);
    assert_eq!(two.run(60, [CALM, CROWD]), [""; 0]);
    assert!(two.worlds[0].crowds.now(two.worlds[0].now).is_empty());
    assert!(two.crowd(1).limit.is_some());
}
