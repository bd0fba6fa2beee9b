// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Attaching, adopting, upgrading, and what belongs to others.

#![allow(clippy::unwrap_used, reason = "a test may")]

mod netns;
#[path = "support/pinned.rs"]
mod pinned;

use netns::{AttachMode, BpfFs, Net, foreign_object, links, one_token, plan, says, sh, within};
use std::io::{BufRead, BufReader, ErrorKind};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;
use tidegate_bpf::{ABI_VERSION, Dataplane, Error, Hook, Plan, foreign_program};
use tidegate_config::Attach;
use tidegate_model::totals::Totals;
use tidegate_policy::Action;

const SERVER: &str = "10.77.0.1:80";

fn server() -> SocketAddr {
    SERVER.parse().unwrap()
}

fn connect(net: &Net) -> std::io::Result<TcpStream> {
    within(&net.client, || TcpStream::connect_timeout(&server(), Duration::from_millis(500)))
}

fn pinned(net: &Net, fs: &BpfFs) -> Plan {
    let mut plan = plan(vec![net.interface(AttachMode::Xdp)], Action::Reject);
    plan.settings.pins = Some(fs.pins());
    plan
}

/// What bpftool says of the links pinned below a directory: their ids.
fn link_ids(pins: &Path) -> Vec<String> {
    let id = |text: &str| text.split(':').next().unwrap_or_default().to_owned();
    links(pins).iter().map(|(_, text)| id(text)).collect()
}

/// The number of the XDP program on s0.
fn xdp_id(net: &Net) -> Option<u32> {
    let text = says(&net.server, &["ip", "-d", "link", "show", "s0"]);
    let (_, rest) = text.split_once("prog/xdp id ")?;
    rest.split_whitespace().next()?.parse().ok()
}

fn xdp_attached(net: &Net) -> bool {
    xdp_id(net).is_some()
}

#[test]
fn a_new_process_adopts_links_limits_and_counters_and_uninstall_leaves_nothing() {
    let (net, fs) = (Net::new(), BpfFs::new());
    let plan = pinned(&net, &fs);
    let _listener = within(&net.server, || TcpListener::bind(server()).unwrap());
    let mut first = Dataplane::start(&plan).unwrap();
    first.set_limits(&[one_token(Action::Reject)], &[], 41).unwrap();
    let kept = connect(&net).unwrap();
    assert_eq!(first.totals(0).unwrap().open, 1);
    let ids = link_ids(&fs.pins());
    assert_eq!(ids.len(), 2, "ingress and egress");
    drop(first);
    let refused = connect(&net).unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::ConnectionRefused, "limits hold without a process");

    let second = Dataplane::start(&plan).unwrap();
    assert_eq!(link_ids(&fs.pins()), ids, "the same links, updated");
    assert!(second.generation() >= 41);
    assert_eq!(second.totals(0).unwrap().open, 1, "connections are still known");
    assert_eq!(second.totals(0).unwrap().refused, 1);
    assert_eq!(connect(&net).unwrap_err().kind(), ErrorKind::ConnectionRefused);
    drop(kept);
    second.detach();
    assert!(!xdp_attached(&net));
    assert!(!fs.pins().exists(), "no pins left");
    connect(&net).unwrap();
}

#[test]
fn another_abi_version_gets_fresh_state_and_the_same_link() {
    let (net, fs) = (Net::new(), BpfFs::new());
    let plan = pinned(&net, &fs);
    let mut first = Dataplane::start(&plan).unwrap();
    first.set_limits(&[one_token(Action::Reject)], &[], 41).unwrap();
    drop(first);
    let ids = link_ids(&fs.pins());
    // As if a version 0 had been here.
    let ours = fs.pins().join(format!("v{ABI_VERSION}"));
    std::fs::rename(&ours, fs.pins().join("v0")).unwrap();
    let second = Dataplane::start(&plan).unwrap();
    assert!(second.generation() < 41, "fresh");
    assert_eq!(link_ids(&fs.pins()), ids, "no gap");
    assert!(!fs.pins().join("v0").exists() && ours.exists());
    second.detach();
}

#[test]
fn an_interface_that_is_no_longer_planned_is_let_go() {
    let (net, fs) = (Net::new(), BpfFs::new());
    let mut plan = pinned(&net, &fs);
    let mut dataplane = Dataplane::start(&plan).unwrap();
    let ours = xdp_id(&net).unwrap();
    assert_eq!(foreign_program(ours).unwrap(), None, "a check beside a daemon finds no fault");
    plan.config.interfaces[0].attach = Attach::Tcx;
    dataplane.apply(&plan).unwrap();
    assert!(!xdp_attached(&net), "moved to tcx");
    assert_eq!(dataplane.hooks()[0].ingress, Some(Hook::Tcx));
    plan.config.interfaces.clear();
    dataplane.apply(&plan).unwrap();
    assert!(link_ids(&fs.pins()).is_empty());
    dataplane.detach();
}

/// Puts an XDP program that is not ours on s0.
fn foreign(net: &Net, directory: &Path) {
    let object = foreign_object(directory);
    net.server_sh(&format!("ip link set dev s0 xdpdrv obj {} sec xdp", object.display()));
}

#[test]
fn a_foreign_xdp_program_is_never_replaced() {
    let net = Net::new();
    let directory = tempfile::tempdir().unwrap();
    foreign(&net, directory.path());
    let refused = Dataplane::start(&plan(vec![net.interface(AttachMode::Xdp)], Action::Drop));
    let text = match refused {
        Err(error @ Error::Foreign { .. }) => error.to_string(),
        other => panic!("{other:?}"),
    };
    assert!(text.contains("stranger") && text.contains("tcx"), "{text}");
    let id = xdp_id(&net).unwrap();
    assert_eq!(foreign_program(id).unwrap().as_deref(), Some("stranger"), "a check finds it");

    let auto = plan(vec![net.interface(AttachMode::Auto)], Action::Drop);
    let dataplane = Dataplane::start(&auto).unwrap();
    assert_eq!(dataplane.hooks()[0].ingress, Some(Hook::Tcx));
    drop(dataplane);
    assert!(xdp_attached(&net), "the stranger is still there");
}

/// Runs `work` in a thread that may not change the network, as a daemon after its start.
fn without_net_admin<T: Send>(work: impl FnOnce() -> T + Send) -> T {
    use rustix::thread::{CapabilitySet, capabilities, set_capabilities};
    std::thread::scope(|scope| {
        let thread = scope.spawn(|| {
            let mut sets = capabilities(None).unwrap();
            sets.effective.remove(CapabilitySet::NET_ADMIN);
            set_capabilities(None, sets).unwrap();
            work()
        });
        thread.join().unwrap()
    })
}

#[test]
fn a_filter_that_cannot_be_taken_off_limits_nothing_and_is_named() {
    let (net, fs) = (Net::new(), BpfFs::new());
    let mut plan = pinned(&net, &fs);
    plan.config.interfaces[0].attach = Attach::Tcx;
    plan.settings.clsact = true;
    let mut dataplane = Dataplane::start(&plan).unwrap();
    dataplane.set_limits(&[one_token(Action::Reject)], &[], 2).unwrap();
    let _listener = within(&net.server, || TcpListener::bind(server()).unwrap());
    let _first = connect(&net).unwrap();
    connect(&net).unwrap_err();

    let left = without_net_admin(|| dataplane.detach());
    assert!(net.filters().contains("tg_"), "nothing stayed: the case proves nothing");
    let _second = connect(&net).unwrap();
    assert_eq!(left.len(), 2, "{left:?}");
    for text in &left {
        let command = text.split('`').nth(1).unwrap_or_else(|| panic!("{text}: no command"));
        sh(command);
    }
    assert_eq!(net.filters(), "", "the commands remove it");

    let mut next = Dataplane::start(&plan).unwrap();
    assert!(!next.released().unwrap());
    next.set_limits(&[one_token(Action::Reject)], &[], 3).unwrap();
    let _third = connect(&net).unwrap();
    connect(&net).unwrap_err();
    assert!(next.detach().is_empty());
    assert_eq!(net.filters(), "");
}

#[test]
fn a_filter_that_is_gone_already_is_no_problem() {
    let net = Net::new();
    let dataplane =
        Dataplane::start(&plan(vec![net.interface(AttachMode::Clsact)], Action::Drop)).unwrap();
    net.server_sh("tc qdisc del dev s0 clsact");
    assert!(dataplane.detach().is_empty());
}

#[test]
fn only_an_operators_release_outlives_a_clean_stop_whose_pins_stayed() {
    let fs = BpfFs::new();
    let mut plan = plan(vec![], Action::Drop);
    plan.settings.pins = Some(fs.pins());
    for (left, released) in [(1_u32, true), (2, false)] {
        drop(Dataplane::start(&plan).unwrap());
        let entries = std::fs::read_dir(fs.pins()).unwrap().map(|e| e.unwrap().path());
        let control = entries.map(|path| path.join("tg_control")).find(|path| path.exists());
        pinned::write_at(&control.unwrap(), 4, &left.to_ne_bytes());
        assert_eq!(Dataplane::start(&plan).unwrap().released().unwrap(), released, "{left}");
    }
}

/// Between two versions only the place of the switch is the same, not what is around it.
#[test]
fn an_operators_release_outlives_another_abi_version_and_needs_none_of_its_own() {
    let fs = BpfFs::new();
    let mut plan = plan(vec![], Action::Drop);
    plan.settings.pins = Some(fs.pins());
    let (ours, other) = (fs.pins().join(format!("v{ABI_VERSION}")), fs.pins().join("v2"));
    for (left, released) in [(0_u32, false), (1, true), (2, false)] {
        let first = Dataplane::start(&plan).unwrap();
        std::fs::rename(&ours, &other).unwrap();
        pinned::write_at(&other.join("tg_control"), 4, &left.to_ne_bytes());
        drop(first);
        let second = Dataplane::start(&plan).unwrap();
        assert_eq!(second.released().unwrap(), released, "{left}");
        assert!(!other.exists() && ours.exists());
        second.release(false).unwrap();
        second.detach();
    }
    drop(Dataplane::start(&plan).unwrap());
    std::fs::rename(&ours, &other).unwrap();
    tidegate_bpf::release(&fs.pins(), true).unwrap();
    assert!(Dataplane::start(&plan).unwrap().released().unwrap(), "thrown without a daemon");
}

/// How often the switch is thrown, and how often it may get lost: between a read and the write
/// right behind it there is no lock.
const THROWS: usize = 15;
const LOST_MAX: usize = 3;

#[test]
fn a_switch_that_is_thrown_during_a_reload_stays_thrown() {
    let fs = BpfFs::new();
    let mut plan = plan(vec![], Action::Drop);
    plan.settings.pins = Some(fs.pins());
    let mut dataplane = Dataplane::start(&plan).unwrap();
    let mut lost = 0;
    for _ in 0..THROWS {
        dataplane.release(false).unwrap();
        let (begun, begins) = std::sync::mpsc::channel();
        std::thread::scope(|scope| {
            scope.spawn(|| {
                for round in 0..20 {
                    dataplane.apply(&plan).unwrap();
                    if round == 2 {
                        begun.send(()).unwrap();
                    }
                }
            });
            begins.recv().unwrap();
            tidegate_bpf::release(&fs.pins(), true).unwrap();
        });
        lost += usize::from(!dataplane.released().unwrap());
    }
    assert!(lost <= LOST_MAX, "{lost} of {THROWS} were undone");
}

#[test]
fn a_foreign_clsact_filter_is_never_replaced_and_not_called_xdp() {
    let net = Net::new();
    let directory = tempfile::tempdir().unwrap();
    let object = foreign_object(directory.path());
    net.server_sh(&format!(
        "tc qdisc add dev s0 clsact
         tc filter add dev s0 ingress pref 29799 handle 0x7467 bpf direct-action obj {} sec xdp",
        object.display()
    ));
    let refused = Dataplane::start(&plan(vec![net.interface(AttachMode::Clsact)], Action::Drop));
    let text = match refused {
        Err(error @ Error::ForeignFilter { .. }) => error.to_string(),
        other => panic!("{other:?}"),
    };
    assert!(text.contains("stranger") && !text.contains("XDP"), "{text}");
    assert!(net.filters().contains("stranger") && !net.filters().contains("tg_"));
}

#[test]
fn without_pins_nothing_outlives_the_process() {
    for mode in [AttachMode::Xdp, AttachMode::Clsact] {
        let net = Net::new();
        let mut dataplane =
            Dataplane::start(&plan(vec![net.interface(mode)], Action::Reject)).unwrap();
        dataplane.set_limits(&[one_token(Action::Reject)], &[], 2).unwrap();
        let _listener = within(&net.server, || TcpListener::bind(server()).unwrap());
        let _first = connect(&net).unwrap();
        connect(&net).unwrap_err();
        drop(dataplane);
        let _second = connect(&net).unwrap();
    }
}

#[test]
fn an_interface_that_does_not_exist_is_named() {
    let net = Net::new();
    let mut interface = net.interface(AttachMode::Auto);
    interface.config.name = "nosuch0".into();
    let error = Dataplane::start(&plan(vec![interface], Action::Drop)).unwrap_err().to_string();
    assert!(error.contains("nosuch0"), "{error}");
}

#[test]
fn pins_must_lie_on_a_bpf_filesystem() {
    let directory = tempfile::tempdir().unwrap();
    let mut plan = plan(vec![], Action::Drop);
    plan.settings.pins = Some(directory.path().join("pins"));
    let error = Dataplane::start(&plan).unwrap_err().to_string();
    assert!(error.contains("not on a BPF filesystem"), "{error}");
}

const CHILD: &str = "TIDEGATE_TEST_CHILD_PINS";

/// The process that is killed below: the same binary, with the namespace and pins given.
#[test]
fn child_that_holds_the_dataplane() {
    let Some(pins) = std::env::var_os(CHILD) else {
        return;
    };
    let namespace = std::env::var_os("TIDEGATE_TEST_CHILD_NETNS").map(PathBuf::from);
    let interface = AttachMode::Xdp.interface("s0", namespace);
    let mut plan = plan(vec![interface], Action::Reject);
    plan.settings.pins = Some(pins.into());
    let mut dataplane = Dataplane::start(&plan).unwrap();
    dataplane.set_limits(&[one_token(Action::Reject)], &[], 5).unwrap();
    println!("\nready");
    loop {
        std::thread::park();
    }
}

#[test]
fn the_hook_survives_kill_9_and_connections_with_it() {
    let (net, fs) = (Net::new(), BpfFs::new());
    let mut child = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "child_that_holds_the_dataplane", "--nocapture"])
        .env(CHILD, fs.pins())
        .env("TIDEGATE_TEST_CHILD_NETNS", &net.server)
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let lines = BufReader::new(child.stdout.take().unwrap()).lines();
    assert!(lines.map_while(Result::ok).any(|line| line == "ready"));
    let _listener = within(&net.server, || TcpListener::bind(server()).unwrap());
    let _admitted = connect(&net).unwrap();
    child.kill().unwrap();
    child.wait().unwrap();
    assert!(xdp_attached(&net));
    assert_eq!(connect(&net).unwrap_err().kind(), ErrorKind::ConnectionRefused, "limits hold");
    let plan = pinned(&net, &fs);
    let successor = Dataplane::start(&plan).unwrap();
    assert_eq!(successor.totals(0).unwrap().open, 1);
    assert_eq!(connect(&net).unwrap_err().kind(), ErrorKind::ConnectionRefused);
    successor.detach();
}
