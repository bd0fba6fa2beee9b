// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The border at the ingress hooks, in the kernel: which marks and options of packets from outside are cleared, and that
//! all else stays as it is, to the bit.

#![allow(clippy::unwrap_used, reason = "a test may")]

mod support;

use std::process::Stdio;
use support::border::{MARKS, behind, cases};
use support::checksum;
use support::netns::{AttachMode, Net, inside, plan as planned, wait_for};
use support::object::require_root;
use support::packet::{Packet, eth, syn4};
use support::plane::Kernel;
use support::random::{Dice, seed};
use tidegate_bpf::testing::{Outcome, TestHook, TestPlane, plans};
use tidegate_bpf::{Dataplane, Plan};
use tidegate_config::{ClassConfig, InBandConfig, InterfaceConfig};
use tidegate_policy::Action;

static HOOKS: [TestHook; 2] = [TestHook::Xdp, TestHook::Tc];
/// Packets that are made at random.
const RANDOM: usize = 20_000;

fn marks() -> Option<InBandConfig> {
    let in_band = InBandConfig { router_bit: 1, server_bit: 2, mark: false, option: None };
    assert_eq!(in_band.marks(), MARKS);
    Some(in_band)
}

fn plan(border: bool) -> Plan {
    let mut shop = plans::service("shop", &["*:80"]);
    shop.classes = vec![ClassConfig {
        name: "voice".into(),
        sources: Vec::new(),
        dscp: Some(46),
        priority: 1,
        weight: 1,
    }];
    let mut plan = plans::plan(vec![shop]);
    plan.config.interfaces =
        vec![InterfaceConfig { border, trust_dscp: true, ..InterfaceConfig::default() }];
    plan.config.in_band = marks();
    plan
}

fn loaded(border: bool) -> TestPlane {
    require_root();
    TestPlane::load(&plan(border)).unwrap()
}

/// Those to which the kernel gives a frame in a test run.
fn hooks(frame: &[u8]) -> &'static [TestHook] {
    &HOOKS[..Kernel::hooks_for(frame).len()]
}

fn passed(plane: &TestPlane, hook: TestHook, frame: &[u8]) -> Vec<u8> {
    let run = plane.run(hook, frame).unwrap();
    assert_eq!(run.outcome, Outcome::Pass, "{hook:?}");
    run.packet
}

#[test]
fn marks_and_options_from_outside_are_cleared_and_nothing_else_changes() {
    let (border, inside) = (loaded(true), loaded(false));
    assert_eq!(border.cleared().unwrap(), 0);
    for (what, before, after) in cases() {
        let (before, after) = (before.bytes(), after.bytes());
        assert_eq!(behind(&before), after, "{what}: what a person and the reference say");
        for &hook in hooks(&before) {
            let cleared = border.cleared().unwrap();
            assert_eq!(passed(&border, hook, &before), after, "{hook:?}: {what}");
            let more = border.cleared().unwrap() - cleared;
            assert_eq!(more, u64::from(before != after), "{hook:?}: {what}: it is counted");
            assert_eq!(passed(&inside, hook, &before), before, "{hook:?}, no border: {what}");
        }
    }
}

#[test]
fn a_wrong_checksum_stays_wrong_by_as_much() {
    let plane = loaded(true);
    for sum in [0, 1, 0x1234, 0xfffe, 0xffff] {
        let frame = eth().ipv4().dscp(2).options(&[158, 4, 9, 9]).sum(sum).udp(9, 80).bytes();
        for hook in HOOKS {
            let out = passed(&plane, hook, &frame);
            assert_eq!(out, behind(&frame), "{hook:?}: {sum:#x}");
            assert!(!checksum::holds(&out[14..38]), "{hook:?}: {sum:#x}");
        }
    }
}

/// A header with options of every kind, right and wrong.
fn any(dice: &mut Dice) -> Packet {
    let mut options = Vec::new();
    let room = 4 * dice.below(11);
    while options.len() < room {
        let kind = *dice.pick(&[0, 1, 1, 7, 68, 158, 158, 158]);
        options.push(kind);
        if kind > 1 {
            let length = *dice.pick(&[0, 1, 2, 3, 4, 4, 8, 11, 12, 40, 255]);
            options.push(length);
            let more = usize::from(length).saturating_sub(2).min(12);
            options.extend(dice.bytes(more));
        }
    }
    options.truncate(room);
    let mut packet = eth();
    for _ in 0..dice.below(3) {
        packet = packet.vlan(7);
    }
    let dscp = *dice.pick(&[0, 2, 4, 6, 6, 1, 8, 46, 63]);
    packet = packet.ipv4().dscp(dscp).ecn(dice.u8() & 3).id(dice.u32() as u16).options(&options);
    if dice.one_in(4) {
        packet = packet.sum(dice.u32() as u16);
    }
    packet = if dice.one_in(2) { packet.tcp(9, 80).ack(1) } else { packet.udp(9, 80) };
    if dice.one_in(8) { packet.cut(14 + dice.below(60)) } else { packet }
}

#[test]
fn whatever_comes_is_behind_the_border_what_the_reference_says() {
    let plane = loaded(true);
    let seed = seed();
    let mut dice = Dice::new(seed);
    let mut changed = 0;
    for n in 0..RANDOM {
        let frame = any(&mut dice).bytes();
        let (hooks, expected) = (hooks(&frame), behind(&frame));
        let hook = hooks[n % hooks.len()];
        let found = plane.run(hook, &frame).unwrap();
        assert_eq!(found.packet, expected, "{hook:?}, seed {seed}: packet {n}: {frame:02x?}");
        changed += u32::from(frame != expected);
    }
    assert!(changed > RANDOM as u32 / 4, "{changed}");
}

/// It is cleared before the packet is evaluated, and the packet is evaluated as any other.
#[test]
fn what_was_marked_is_evaluated_as_any_other() {
    for hook in HOOKS {
        let plane = loaded(true);
        let classes = |packet: Packet| {
            let before = plane.counts().unwrap();
            passed(&plane, hook, &packet.bytes());
            let after = plane.counts().unwrap();
            let new = after.into_iter().filter(|count| !before.contains(count));
            new.map(|count| count.class).collect::<Vec<usize>>()
        };
        assert_eq!(classes(syn4()).len(), 1, "{hook:?}");
        let voice = classes(eth().ipv4().dscp(46).tcp(40_001, 80).syn());
        let marked = classes(eth().ipv4().dscp(6).tcp(40_002, 80).syn());
        assert_eq!((voice.len(), marked.len()), (1, 1), "{hook:?}");
        assert_ne!(voice, marked, "{hook:?}: a class stays, a mark does not");
    }
}

/// Sends datagrams to 10.77.0.1:9, with TOS 8, 0x18 and 0xb8, and one with option 158.
const SENDS: &str = r"
import socket
def sends(tos, options):
    s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    s.setsockopt(socket.IPPROTO_IP, socket.IP_TOS, tos)
    if options: s.setsockopt(socket.IPPROTO_IP, socket.IP_OPTIONS, options)
    s.sendto(b'x', ('10.77.0.1', 9))
for tos in [0x08, 0x18, 0xb8]: sends(tos, b'')
sends(0x08, bytes([158, 12, 192, 0, 2, 1, 32, 0, 0, 1, 1, 1]))
";
/// Prints TOS and options of four datagrams.
const RECEIVES: &str = r"
import socket
IP_RECVOPTS = 6
s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
s.setsockopt(socket.IPPROTO_IP, socket.IP_RECVTOS, 1)
s.setsockopt(socket.IPPROTO_IP, IP_RECVOPTS, 1)
s.bind(('10.77.0.1', 9))
s.settimeout(10)
print('ready', flush=True)
for _ in range(4):
    _, said, _, _ = s.recvmsg(64, 512)
    tos = next(data[0] for level, kind, data in said if kind == socket.IP_TOS)
    options = b''.join(data for level, kind, data in said if kind == IP_RECVOPTS)
    print(tos, options.hex(), flush=True)
";

fn received(net: &Net) -> Vec<String> {
    use std::io::{BufRead, BufReader};
    let mut receives = inside(&net.server, &["python3", "-c", RECEIVES]);
    let mut receives = receives.stdout(Stdio::piped()).spawn().unwrap();
    let mut lines = BufReader::new(receives.stdout.take().unwrap()).lines();
    assert_eq!(lines.next().unwrap().unwrap(), "ready");
    assert!(inside(&net.client, &["python3", "-c", SENDS]).status().unwrap().success());
    let found: Vec<String> = lines.map(Result::unwrap).collect();
    wait_for("it ends", || receives.try_wait().unwrap().is_some());
    found
}

/// With a real stack on both sides, which verifies the checksum.
#[test]
fn a_server_behind_the_border_sees_no_mark_until_the_border_is_taken_back() {
    require_root();
    let option = "9e0cc0000201200000010101";
    for mode in [AttachMode::Xdp, AttachMode::XdpGeneric, AttachMode::Tcx, AttachMode::Clsact] {
        let net = Net::new();
        let marked = ["8", "24", "184", &format!("8 {option}")].map(|line| line.to_owned());
        let seen = |net: &Net| -> Vec<String> {
            received(net).iter().map(|line| line.trim().to_owned()).collect()
        };
        assert_eq!(seen(&net), marked, "{mode:?}: without a daemon");
        let mut plan = planned(vec![net.interface(mode)], Action::Drop);
        plan.config.interfaces[0].border = true;
        plan.config.in_band = marks();
        let mut dataplane = Dataplane::start(&plan).unwrap();
        let cleared = ["0", "0", "184", "0 010101010101010101010101"];
        assert_eq!(seen(&net), cleared, "{mode:?}");
        plan.config.interfaces[0].border = false;
        plan.config.in_band = None;
        dataplane.apply(&plan).unwrap();
        assert_eq!(seen(&net), marked, "{mode:?}: a reload without it");
    }
}
