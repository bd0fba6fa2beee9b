// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What Linux 6.1 refuses and the kernel that runs the tests does not: so that it shows without a
//! machine of that age (`cargo xtask guest` is one).
//!
//! Two rules of its verifier, on the instructions as every compiler makes them:
//! - a loop is closed by a jump. An instruction that merely goes on to one that is being explored is
//!   a "back-edge". clang 14 makes one where a loop reads what was read before it: it keeps that for the
//!   first turn, and moves the loop's head into its middle (hence `volatile` in two policies);
//! - the stacks of the functions of a call chain, each rounded up to 32 bytes, fit into 512 together.

#![allow(clippy::unwrap_used, reason = "a test may")]

mod support;

use std::collections::BTreeMap;
use support::object::{
    COMPILERS, Insn, instructions, mark_objects, objects, require_root, router_objects,
};

const CLASS_MASK: u8 = 0x07;
const CLASS_LDX: u8 = 0x01;
const CLASS_ST: u8 = 0x02;
const CLASS_STX: u8 = 0x03;
const CLASS_JMP: u8 = 0x05;
const CLASS_JMP32: u8 = 0x06;
const OP_MASK: u8 = 0xf0;
const OP_JA: u8 = 0x00;
const OP_CALL: u8 = 0x80;
const OP_EXIT: u8 = 0x90;
/// `call` of a function of the program, in the source register.
const PSEUDO_CALL: u8 = 1;
/// 64 bit `mov` of a register, and `add` of a constant.
const MOV64_X: u8 = 0xbf;
/// See [`MOV64_X`].
const ADD64_K: u8 = 0x07;
const FRAME_POINTER: u8 = 10;
/// Both of one instruction: a 64 bit constant takes two slots.
const LD_IMM64: u8 = 0x18;
const PSEUDO_FUNC: u8 = 4;

const STACK_MAX: u32 = 512;
const STACK_ROUND: u32 = 32;

/// Where an instruction goes on, in the order in which the verifier looks at it, and whether that may
/// close a loop.
fn edges(insns: &[Insn], at: usize) -> Vec<(usize, bool)> {
    let insn = &insns[at];
    let offset = |by: i64| usize::try_from(at as i64 + 1 + by).unwrap();
    let class = insn.code & CLASS_MASK;
    if class != CLASS_JMP && class != CLASS_JMP32 {
        let mut next = vec![(at + 1, false)];
        if insn.code == LD_IMM64 && insn.src == PSEUDO_FUNC {
            next.push((offset(insn.imm.into()), false));
        }
        return next;
    }
    match insn.code & OP_MASK {
        OP_EXIT => Vec::new(),
        OP_CALL if insn.src == PSEUDO_CALL => {
            vec![(at + 1, false), (offset(insn.imm.into()), false)]
        }
        OP_CALL => vec![(at + 1, false)],
        OP_JA => vec![(offset(insn.off.into()), true)],
        _ => vec![(at + 1, true), (offset(insn.off.into()), true)],
    }
}

/// The first edge that closes a loop and is no jump.
fn back_edge(insns: &[Insn]) -> Option<(usize, usize)> {
    const ON_THE_WAY: u8 = 1;
    const DONE: u8 = 2;
    let mut state = vec![0_u8; insns.len()];
    let mut stack = vec![(0, 0)];
    state[0] = ON_THE_WAY;
    while let Some((at, tried)) = stack.pop() {
        let Some((next, may_loop)) = edges(insns, at).get(tried).copied() else {
            state[at] = DONE;
            continue;
        };
        stack.push((at, tried + 1));
        match state[next] {
            ON_THE_WAY if !may_loop => return Some((at, next)),
            0 => {
                state[next] = ON_THE_WAY;
                stack.push((next, 0));
            }
            _ => {}
        }
    }
    None
}

/// Starts of the functions, the main one first.
fn functions(insns: &[Insn]) -> Vec<usize> {
    let called = |(at, insn): (usize, &Insn)| {
        let call = insn.code == CLASS_JMP | OP_CALL && insn.src == PSEUDO_CALL
            || insn.code == LD_IMM64 && insn.src == PSEUDO_FUNC;
        call.then(|| usize::try_from(at as i64 + 1 + i64::from(insn.imm)).unwrap())
    };
    let mut starts: Vec<usize> = insns.iter().enumerate().filter_map(called).collect();
    starts.push(0);
    starts.sort_unstable();
    starts.dedup();
    starts
}

/// Bytes of its own stack that a function uses.
fn own_stack(insns: &[Insn]) -> u32 {
    let mut most = 0;
    let mut see = |offset: i64| most = most.max(u32::try_from(-offset).unwrap_or(0));
    for (at, insn) in insns.iter().enumerate() {
        let base = match insn.code & CLASS_MASK {
            CLASS_LDX => insn.src,
            CLASS_ST | CLASS_STX => insn.dst,
            _ => 0,
        };
        if base == FRAME_POINTER {
            see(insn.off.into());
        }
        if insn.code == MOV64_X && insn.src == FRAME_POINTER {
            let next = insns[at + 1..].iter().find(|next| next.dst == insn.dst);
            if let Some(next) = next.filter(|next| next.code == ADD64_K) {
                see(next.imm.into());
            }
        }
    }
    most
}

/// The most that a chain of calls takes, each stack rounded up.
fn deepest(insns: &[Insn]) -> u32 {
    let starts = functions(insns);
    let body = |index: usize| {
        let end = starts.get(index + 1).copied().unwrap_or(insns.len());
        starts[index]..end
    };
    // What is called has been added up before: the verifier forbids recursion.
    fn of(
        index: usize,
        insns: &[Insn],
        starts: &[usize],
        body: &dyn Fn(usize) -> std::ops::Range<usize>,
        known: &mut BTreeMap<usize, u32>,
    ) -> u32 {
        if let Some(depth) = known.get(&index) {
            return *depth;
        }
        let range = body(index);
        let mut callees = 0;
        for at in range.clone() {
            for (next, _) in edges(insns, at) {
                if let Ok(callee) = starts.binary_search(&next)
                    && callee != index
                    && next != at + 1
                {
                    callees = callees.max(of(callee, insns, starts, body, known));
                }
            }
        }
        let own = own_stack(&insns[range]).max(1).next_multiple_of(STACK_ROUND);
        known.insert(index, own + callees);
        own + callees
    }
    of(0, insns, &starts, &body, &mut BTreeMap::new())
}

#[test]
fn what_every_compiler_makes_is_what_linux_6_1_takes() {
    require_root();
    let mut wrong = Vec::new();
    for compiler in COMPILERS {
        let (made, router) = (objects(compiler), router_objects(compiler));
        let marks = mark_objects(compiler);
        let hooks = [
            ("xdp", made.xdp),
            ("tc", made.tc),
            ("egress", made.egress),
            ("heartbeat", made.heartbeat),
            ("replay", made.replay),
            ("request_in", made.request_in),
            ("request_out", made.request_out),
            ("sweep", made.sweep),
            ("router_in", router.ingress),
            ("router_out", router.egress),
            ("router_sweep", router.sweep),
            ("mark_in", marks.ingress),
            ("mark_out", marks.egress),
        ];
        for (hook, bytes) in hooks {
            for insns in instructions(&bytes) {
                if let Some((from, to)) = back_edge(&insns) {
                    wrong.push(format!("{hook} by {compiler}: back-edge from {from} to {to}"));
                }
                let depth = deepest(&insns);
                println!("{hook:<12}{compiler:<10}{:>6} instructions, stack {depth}", insns.len());
                if depth > STACK_MAX {
                    wrong.push(format!("{hook} by {compiler}: a stack of {depth}"));
                }
            }
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

fn insn(code: u8, dst: u8, src: u8, off: i16, imm: i32) -> Insn {
    Insn { code, dst, src, off, imm }
}

/// `r1 = 0` and `exit`.
fn zero() -> Insn {
    insn(0xb7, 1, 0, 0, 0)
}

/// See [`zero`].
fn exit() -> Insn {
    insn(CLASS_JMP | OP_EXIT, 0, 0, 0, 0)
}

#[test]
fn a_loop_may_be_closed_by_a_jump_and_not_by_going_on() {
    // 0: r1 = 0; 1: if r1 == 0 goto 0; 2: exit
    assert_eq!(back_edge(&[zero(), insn(0x15, 1, 0, -2, 0), exit()]), None);
    // 0: goto 2; 1: r1 = 0; 2: if r1 == 0 goto 1; 3: exit
    let rotated = [insn(0x05, 0, 0, 1, 0), zero(), insn(0x15, 1, 0, -2, 0), exit()];
    assert_eq!(back_edge(&rotated), Some((1, 2)));
}

#[test]
fn stacks_add_up_along_the_calls_and_are_rounded() {
    let call = |by| insn(CLASS_JMP | OP_CALL, 0, PSEUDO_CALL, 0, by);
    let store = |off| insn(0x62, FRAME_POINTER, 0, off, 0);
    // main: 40 bytes, calls one of 8 and one of 264 bytes, which is passed by its address.
    let program = [
        store(-40),
        call(2),
        call(3),
        exit(),
        store(-8),
        exit(),
        insn(MOV64_X, 2, FRAME_POINTER, 0, 0),
        insn(ADD64_K, 2, 0, 0, -264),
        exit(),
    ];
    assert_eq!(functions(&program), [0, 4, 6]);
    assert_eq!(deepest(&program), 64 + 288);
}
