// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Programs that outlive the process which loaded them, and who uses them again.

#![allow(clippy::unwrap_used, reason = "a test may")]

mod netns;

use netns::{AttachMode, BpfFs, Net, one_token, plan, within};
use std::net::{TcpListener, TcpStream};
use std::path::PathBuf;
use std::process::Command;
use std::time::Duration;
use tidegate_bpf::{Dataplane, Plan};
use tidegate_policy::Action;
use tidegate_units::Nanos;

const SERVER: &str = "10.77.0.1:80";

fn pinned(net: &Net, fs: &BpfFs) -> Plan {
    let mut plan = plan(vec![net.interface(AttachMode::Tcx)], Action::Reject);
    plan.settings.pins = Some(fs.pins());
    plan
}

/// The pins of programs, sorted.
fn pins(fs: &BpfFs) -> Vec<PathBuf> {
    let entries = std::fs::read_dir(fs.pins().join("programs")).unwrap();
    let mut pins: Vec<PathBuf> = entries.map(|entry| entry.unwrap().path()).collect();
    pins.sort();
    pins
}

/// The kernel's numbers of the programs that are pinned, in the order of the pins.
fn ids(fs: &BpfFs) -> Vec<String> {
    let show = |path: &PathBuf| {
        let output = Command::new("bpftool").args(["prog", "show", "pinned"]).arg(path).output();
        let text = String::from_utf8(output.unwrap().stdout).unwrap();
        text.split(':').next().unwrap().to_string()
    };
    pins(fs).iter().map(show).collect()
}

fn connects(net: &Net) -> bool {
    let server = SERVER.parse().unwrap();
    within(&net.client, || TcpStream::connect_timeout(&server, Duration::from_millis(500)).is_ok())
}

/// A process that is gone: nothing is detached, and the next one finds what it has left.
fn run(plan: &Plan) -> Dataplane {
    let mut dataplane = Dataplane::start(plan).unwrap();
    dataplane.set_limits(&[one_token(Action::Reject)], &[], 2).unwrap();
    dataplane
}

#[test]
fn the_next_process_uses_the_programs_that_are_there_and_they_work() {
    let (net, fs) = (Net::new(), BpfFs::new());
    let _listener = within(&net.server, || TcpListener::bind(SERVER).unwrap());
    drop(run(&pinned(&net, &fs)));
    let before = ids(&fs);
    assert_eq!(before.len(), 3, "tc, egress and heartbeat: {:?}", pins(&fs));
    let second = run(&pinned(&net, &fs));
    assert_eq!(ids(&fs), before);
    assert!(connects(&net) && !connects(&net), "one token");
    assert!(second.detach().is_empty());
    assert!(!fs.pins().exists(), "nothing stays");
}

#[test]
fn other_settings_are_other_programs_and_those_of_before_go() {
    let (net, fs) = (Net::new(), BpfFs::new());
    let _listener = within(&net.server, || TcpListener::bind(SERVER).unwrap());
    drop(run(&pinned(&net, &fs)));
    let before = ids(&fs);
    let mut plan = pinned(&net, &fs);
    plan.settings.flow_timeout = Nanos(plan.settings.flow_timeout.0 * 2);
    let second = Dataplane::begin(&plan).unwrap();
    assert_eq!(ids(&fs).len(), 6, "both, until the commit");
    drop(second);
    let second = run(&plan);
    let after = ids(&fs);
    assert!(
        after.len() == 3 && after.iter().all(|id| !before.contains(id)),
        "{before:?} {after:?}"
    );
    // Other maps: programs over those of before would count where nobody reads.
    drop(second);
    plan.config.tables.connections *= 2;
    let third = run(&plan);
    let anew = ids(&fs);
    assert!(anew.len() == 3 && anew.iter().all(|id| !after.contains(id)), "{after:?} {anew:?}");
    assert!(connects(&net) && !connects(&net), "one token");
    third.detach();
}

/// It has not seen the handshakes of the time in between: the program says since when it sees them.
#[test]
fn a_hook_that_is_put_on_anew_has_a_new_program() {
    let (net, fs) = (Net::new(), BpfFs::new());
    let _listener = within(&net.server, || TcpListener::bind(SERVER).unwrap());
    drop(run(&pinned(&net, &fs)));
    let before = ids(&fs);
    let ingress = std::fs::read_dir(fs.pins().join("links")).unwrap();
    let mut links = ingress.map(|entry| entry.unwrap().path());
    let link = links.find(|path| path.to_str().unwrap().ends_with("tcx_in")).unwrap();
    let detached = Command::new("bpftool").args(["link", "detach", "pinned"]).arg(link).status();
    assert!(detached.unwrap().success());
    let second = run(&pinned(&net, &fs));
    let after = ids(&fs);
    let same = before.iter().filter(|id| after.contains(id)).count();
    assert_eq!((after.len(), same), (3, 2), "egress and heartbeat: {before:?} {after:?}");
    assert!(connects(&net) && !connects(&net), "one token");
    second.detach();
}

#[test]
fn what_is_no_program_of_ours_is_not_used() {
    let (net, fs) = (Net::new(), BpfFs::new());
    let _listener = within(&net.server, || TcpListener::bind(SERVER).unwrap());
    drop(run(&pinned(&net, &fs)));
    let before = ids(&fs);
    let (pins, version) = (pins(&fs), std::fs::read_dir(fs.pins()).unwrap());
    let maps = version.map(|entry| entry.unwrap().path()).find(|path| !path.ends_with("programs"));
    let map = std::fs::read_dir(maps.unwrap()).unwrap().next().unwrap().unwrap().path();
    std::fs::remove_file(&pins[0]).unwrap();
    std::fs::hard_link(&map, &pins[0]).unwrap_or_else(|error| panic!("{map:?}: {error}"));
    let second = run(&pinned(&net, &fs));
    let after = ids(&fs);
    assert_eq!(after[1..], before[1..], "the others are used again");
    assert_ne!(after[0], before[0], "a map lay there");
    assert!(connects(&net) && !connects(&net), "one token");
    second.detach();
}
