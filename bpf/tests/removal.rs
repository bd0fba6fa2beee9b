// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Taking everything off without a daemon: what a crash left, on every hook, in namespaces, of older
//! versions; and nothing of others.

#![allow(clippy::unwrap_used, reason = "a test may")]

mod netns;

use netns::{AttachMode, BpfFs, Net, one_token, plan, says};
use std::fs;
use std::path::Path;
use tidegate_bpf::testing::tcx_programs;
use tidegate_bpf::{Dataplane, Whose, remove_all};
use tidegate_policy::Action;
use tidegate_units::{Clock, MonotonicClock, Nanos};

/// Hooks and pins of a process that was killed.
fn killed(net: &Net, fs: &BpfFs, attach: AttachMode) {
    let mut plan = plan(vec![net.interface(attach)], Action::Reject);
    plan.settings.pins = Some(fs.pins());
    let mut plane = Dataplane::start(&plan).unwrap();
    plane.set_limits(&[one_token(Action::Reject)], &[], 1).unwrap();
    plane.heartbeat().unwrap();
    // As after SIGKILL: nobody detaches anything.
    std::mem::forget(plane);
}

fn hooked(net: &Net) -> bool {
    let [ingress, egress] = tcx_programs(&net.interface(AttachMode::Tcx)).unwrap();
    let tcx = ingress.iter().chain(&egress).any(|name| name.starts_with("tg_"));
    let link = says(&net.server, &["ip", "-d", "link", "show", "s0"]);
    let filters = |side| says(&net.server, &["tc", "filter", "show", "dev", "s0", side]);
    tcx || link.contains("prog/xdp") || filters("ingress").contains("tg_")
}

#[test]
fn what_a_killed_process_left_goes_at_every_hook_and_in_a_namespace() {
    for attach in [AttachMode::Tcx, AttachMode::XdpGeneric, AttachMode::Clsact] {
        let (net, fs) = (Net::new(), BpfFs::new());
        killed(&net, &fs, attach);
        assert!(hooked(&net), "{attach:?}");
        // A version that this one knows nothing of.
        let older = fs.pins().join("v1");
        fs::create_dir(&older).unwrap();
        let now = MonotonicClock.now();

        let told = remove_all(&fs.pins(), (Whose::Pins, now), true).unwrap();
        assert!(hooked(&net) && older.exists(), "a look changes nothing");
        let done = remove_all(&fs.pins(), (Whose::Pins, now), false).unwrap();
        assert_eq!(told.removed, done.removed, "what is said is what is done");
        assert!(done.left.is_empty(), "{:?}", done.left);
        assert!(!hooked(&net) && !fs.pins().exists(), "{attach:?}: {:?}", done.removed);
        let hooks = done.removed.iter().filter(|text| text.contains("s0"));
        assert!(hooks.count() >= 2, "each is named: {:?}", done.removed);

        let again = remove_all(&fs.pins(), (Whose::Pins, now), false).unwrap();
        assert_eq!((again.removed.len(), again.left.len()), (0, 0), "nothing is left");
    }
}

/// Two dataplanes, one with a foreign file among its pins: only what belongs to the pins goes.
#[test]
fn what_belongs_to_others_stays() {
    let (ours, theirs) = ((Net::new(), BpfFs::new()), (Net::new(), BpfFs::new()));
    killed(&ours.0, &ours.1, AttachMode::Tcx);
    killed(&theirs.0, &theirs.1, AttachMode::Tcx);
    fs::create_dir(ours.1.pins().join("somebody")).unwrap();
    let done = remove_all(&ours.1.pins(), (Whose::Pins, MonotonicClock.now()), false).unwrap();
    assert!(!hooked(&ours.0) && hooked(&theirs.0), "{:?}", done.removed);
    assert!(ours.1.pins().join("somebody").exists());
    assert!(done.left.len() == 1 && done.left[0].contains("not made by tidegate"), "{done:?}");
    let cleared = remove_all(&theirs.1.pins(), (Whose::Pins, MonotonicClock.now()), false);
    assert!(!cleared.unwrap().removed.is_empty() && !hooked(&theirs.0));
}

/// Whose pins are gone is found only by what it is, and only when nobody renews its lease. Said and not
/// done: other tests of this machine have hooks without a daemon, too.
#[test]
fn an_orphan_is_one_whose_lease_has_ended() {
    for attach in [AttachMode::Tcx, AttachMode::Clsact] {
        let (net, fs) = (Net::new(), BpfFs::new());
        killed(&net, &fs, attach);
        let elsewhere = fs.pins().join("none");
        let found = |whose, now| {
            let found = remove_all(&elsewhere, (whose, now), true).unwrap();
            let of = |place: &Path| {
                let place = place.to_str().unwrap();
                found.removed.iter().filter(|text| text.contains(place)).count()
            };
            (of(&net.server), of(&fs.pins()) > 0)
        };
        let now = MonotonicClock.now();
        let held = found(Whose::Orphans, now);
        assert_eq!(held, (0, false), "its lease holds: somebody may be in charge");
        let later = now + Nanos::from_secs(11);
        assert_eq!(found(Whose::Orphans, later), (2, true), "{attach:?}: both hooks, and the pins");
        let lock = std::fs::File::open(fs.pins()).unwrap();
        lock.lock().unwrap();
        assert_eq!(found(Whose::Orphans, later), (2, false), "who holds its pins' lock lives");
        drop(lock);
        assert_eq!(found(Whose::Pins, later), (0, false), "{attach:?}");
        let told = remove_all(&elsewhere, (Whose::Pins, later), true).unwrap();
        assert!(told.orphans >= 2, "who does not ask for them is told of both: {told:?}");
        remove_all(&fs.pins(), (Whose::Pins, now), false).unwrap();
        assert!(!hooked(&net));
    }
}
