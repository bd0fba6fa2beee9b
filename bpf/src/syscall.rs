// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What libbpf-rs does not wrap: links of XDP and tcx with flags, clsact by query, test runs with
//! a context. One function a call, each returning an `io::Result`.

use libbpf_sys as sys;
use std::ffi::{CStr, CString};
use std::io;
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use zerocopy::{FromBytes, IntoBytes};

/// Native mode only (`XDP_FLAGS_DRV_MODE`).
pub(crate) const XDP_NATIVE: u32 = 1 << 2;
/// Generic mode (`XDP_FLAGS_SKB_MODE`).
pub(crate) const XDP_GENERIC: u32 = 1 << 1;

fn check(result: i32) -> io::Result<i32> {
    if result < 0 { Err(io::Error::from_raw_os_error(-result)) } else { Ok(result) }
}

fn c_path(path: &Path) -> io::Result<CString> {
    CString::new(path.as_os_str().as_bytes()).map_err(|_| io::ErrorKind::InvalidInput.into())
}

fn owned(fd: i32) -> io::Result<OwnedFd> {
    // SAFETY: a file descriptor that the call just made for us; nobody else has it.
    check(fd).map(|fd| unsafe { OwnedFd::from_raw_fd(fd) })
}

/// Pins a map, program or link.
pub(crate) fn pin(fd: BorrowedFd<'_>, path: &Path) -> io::Result<()> {
    let path = c_path(path)?;
    // SAFETY: a live descriptor and a terminated string.
    check(unsafe { sys::bpf_obj_pin(fd.as_raw_fd(), path.as_ptr()) }).map(drop)
}

/// Opens what is pinned.
pub(crate) fn open_pin(path: &Path) -> io::Result<OwnedFd> {
    let path = c_path(path)?;
    // SAFETY: a terminated string.
    owned(unsafe { sys::bpf_obj_get(path.as_ptr()) })
}

/// Where a program goes.
pub(crate) struct Place<'a> {
    /// An interface of the calling thread's namespace.
    pub(crate) ifindex: u32,
    pub(crate) kind: sys::bpf_attach_type,
    pub(crate) flags: u32,
    /// Where in the chain of tcx.
    pub(crate) order: Order<'a>,
}

/// A place in the chain of tcx.
#[derive(Clone, Copy)]
pub(crate) enum Order<'a> {
    /// XDP has no chain; at tcx, behind all that are there.
    None,
    /// Before all that are there.
    First,
    /// Right behind this link.
    Behind(BorrowedFd<'a>),
}

/// Attaches a program.
pub(crate) fn link_create(program: BorrowedFd<'_>, place: &Place<'_>) -> io::Result<OwnedFd> {
    let mut options = sys::bpf_link_create_opts {
        sz: size_of::<sys::bpf_link_create_opts>() as sys::size_t,
        flags: place.flags,
        ..Default::default()
    };
    match place.order {
        Order::None => {}
        // Relative to nothing: the head of the chain.
        Order::First => options.flags |= sys::BPF_F_BEFORE,
        Order::Behind(link) => {
            options.flags |= sys::BPF_F_AFTER | sys::BPF_F_LINK;
            options.__bindgen_anon_1.tcx.relative_fd = link.as_raw_fd() as u32;
        }
    }
    let (program, ifindex) = (program.as_raw_fd(), place.ifindex as i32);
    // SAFETY: live descriptors and options that outlive the call.
    owned(unsafe { sys::bpf_link_create(program, ifindex, place.kind, &options) })
}

/// Atomically puts another program into a link.
pub(crate) fn link_update(link: BorrowedFd<'_>, program: BorrowedFd<'_>) -> io::Result<()> {
    // SAFETY: live descriptors; no options.
    check(unsafe { sys::bpf_link_update(link.as_raw_fd(), program.as_raw_fd(), std::ptr::null()) })
        .map(drop)
}

/// Takes a link off its interface, whoever else holds it.
pub(crate) fn link_detach(link: BorrowedFd<'_>) -> io::Result<()> {
    // SAFETY: a live descriptor.
    check(unsafe { sys::bpf_link_detach(link.as_raw_fd()) }).map(drop)
}

/// Where a program that lets everything pass shall go.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Pass {
    Xdp,
    Tcx(Side),
    Clsact,
}

/// `r = K`, `call` and `exit` (linux/bpf.h).
const MOV64_K: u8 = 0xb7;
const CALL: u8 = 0x85;
/// `bpf_redirect`, and its flag `BPF_F_INGRESS`.
const FUNC_REDIRECT: i32 = 23;
const INGRESS: i32 = 1;
const EXIT: u8 = 0x95;
/// `XDP_PASS`.
const XDP_PASS: i32 = 2;
/// `TCX_NEXT`, and for clsact `TC_ACT_UNSPEC`: on to whoever comes next.
const TC_NEXT: i32 = -1;

/// Loads a program that lets everything pass. A program of ours can take its place in a link: the
/// kernel compares types, attach types and (for large frames) that both take fragments.
pub(crate) fn load_pass(place: Pass) -> io::Result<OwnedFd> {
    let verdict = if place == Pass::Xdp { XDP_PASS } else { TC_NEXT };
    load_verdict(place, c"tg_standby", verdict)
}

/// Loads a program that has the same verdict for every packet.
pub(crate) fn load_verdict(place: Pass, name: &CStr, verdict: i32) -> io::Result<OwnedFd> {
    load(place, name, &[constant(0, verdict), exit()])
}

/// Loads a program that moves every packet to the same side of another interface.
pub(crate) fn load_redirect(side: Side, name: &CStr, ifindex: u32) -> io::Result<OwnedFd> {
    let flags = if side == Side::Ingress { INGRESS } else { 0 };
    let call = sys::bpf_insn { code: CALL, imm: FUNC_REDIRECT, ..Default::default() };
    let code = [constant(1, ifindex.cast_signed()), constant(2, flags), call, exit()];
    load(Pass::Tcx(side), name, &code)
}

fn constant(register: u8, value: i32) -> sys::bpf_insn {
    let mut insn = sys::bpf_insn { code: MOV64_K, imm: value, ..Default::default() };
    insn.set_dst_reg(register);
    insn
}

fn exit() -> sys::bpf_insn {
    sys::bpf_insn { code: EXIT, ..Default::default() }
}

fn load(place: Pass, name: &CStr, code: &[sys::bpf_insn]) -> io::Result<OwnedFd> {
    let (kind, expected_attach_type, prog_flags) = match place {
        Pass::Xdp => (sys::BPF_PROG_TYPE_XDP, sys::BPF_XDP, sys::BPF_F_XDP_HAS_FRAGS),
        Pass::Tcx(side) => (sys::BPF_PROG_TYPE_SCHED_CLS, side.tcx(), 0),
        Pass::Clsact => (sys::BPF_PROG_TYPE_SCHED_CLS, 0, 0),
    };
    let mut options = sys::bpf_prog_load_opts {
        sz: size_of::<sys::bpf_prog_load_opts>() as sys::size_t,
        expected_attach_type,
        prog_flags,
        ..Default::default()
    };
    let (name, licence) = (name.as_ptr(), c"Dual BSD/GPL".as_ptr());
    let length = code.len() as sys::size_t;
    // SAFETY: terminated strings, instructions of the length that is told, and options with their
    // size; all outlive the call.
    owned(unsafe { sys::bpf_prog_load(kind, name, licence, code.as_ptr(), length, &mut options) })
}

/// What a link is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct LinkInfo {
    /// Unique as long as it lives.
    pub(crate) id: u32,
    /// `BPF_LINK_TYPE_…`.
    pub(crate) kind: u32,
    /// Interface; 0: it is gone.
    pub(crate) ifindex: u32,
    /// Id of the program that it runs.
    pub(crate) program: u32,
}

impl LinkInfo {
    /// Whether it is at XDP or tcx: all that we make.
    pub(crate) const fn is_of_interface(&self) -> bool {
        matches!(self.kind, sys::BPF_LINK_TYPE_XDP | sys::BPF_LINK_TYPE_TCX)
    }
}

/// The number of the link that comes after this one; `None`: it is the last. Of all namespaces.
pub(crate) fn next_link(after: u32) -> io::Result<Option<u32>> {
    let mut next = 0;
    // SAFETY: a place for one number.
    match check(unsafe { sys::bpf_link_get_next_id(after, &mut next) }) {
        Ok(_) => Ok(Some(next)),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(error),
    }
}

/// Opens a link by its number.
pub(crate) fn link_by_id(id: u32) -> io::Result<OwnedFd> {
    // SAFETY: no pointers.
    owned(unsafe { sys::bpf_link_get_fd_by_id(id) })
}

/// Reads what a link is.
pub(crate) fn link_info(link: BorrowedFd<'_>) -> io::Result<LinkInfo> {
    let mut info = sys::bpf_link_info::default();
    let mut length = size_of::<sys::bpf_link_info>() as u32;
    // SAFETY: a live descriptor; the buffer has the length that is told.
    check(unsafe { sys::bpf_link_get_info_by_fd(link.as_raw_fd(), &mut info, &mut length) })?;
    // SAFETY: plain integers at the same place in both variants (ifindex is first in xdp and tcx).
    let ifindex = unsafe { info.__bindgen_anon_1.xdp.ifindex };
    Ok(LinkInfo { id: info.id, kind: info.type_, ifindex, program: info.prog_id })
}

/// The XDP program on an interface, if there is one.
pub(crate) fn xdp_program(ifindex: u32) -> io::Result<Option<u32>> {
    let mut options = sys::bpf_xdp_query_opts {
        sz: size_of::<sys::bpf_xdp_query_opts>() as sys::size_t,
        ..Default::default()
    };
    // SAFETY: options with their size, outliving the call.
    check(unsafe { sys::bpf_xdp_query(ifindex as i32, 0, &mut options) })?;
    let ids = [options.prog_id, options.drv_prog_id, options.skb_prog_id, options.hw_prog_id];
    Ok(ids.into_iter().find(|id| *id != 0))
}

/// Most programs of one side of tcx that are asked for.
const TCX_MAX: usize = 64;

/// The programs at tcx, in the order in which they run.
pub(crate) fn tcx_programs(ifindex: u32, side: Side) -> io::Result<Vec<u32>> {
    let kind = side.tcx();
    let mut ids = [0; TCX_MAX];
    let mut options = sys::bpf_prog_query_opts {
        sz: size_of::<sys::bpf_prog_query_opts>() as sys::size_t,
        prog_ids: ids.as_mut_ptr(),
        ..Default::default()
    };
    options.__bindgen_anon_1.count = TCX_MAX as u32;
    // SAFETY: options with their size and an array of the length that is told, outliving the call.
    check(unsafe { sys::bpf_prog_query_opts(ifindex as i32, kind, &mut options) })?;
    // SAFETY: both variants are the same integer.
    let count = unsafe { options.__bindgen_anon_1.count } as usize;
    Ok(ids.into_iter().take(count).collect())
}

/// Identity and cost of a program.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct ProgramInfo {
    /// Unique as long as it lives.
    pub(crate) id: u32,
    pub(crate) name: String,
    pub(crate) verified_insns: u32,
    /// Runs and nanoseconds, while `kernel.bpf_stats_enabled` was on.
    pub(crate) runs: (u64, u64),
}

/// Reads what a program is.
pub(crate) fn program_info(program: BorrowedFd<'_>) -> io::Result<ProgramInfo> {
    let mut info = sys::bpf_prog_info::default();
    let mut length = size_of::<sys::bpf_prog_info>() as u32;
    // SAFETY: a live descriptor; the buffer has the length that is told and asks for no arrays.
    check(unsafe { sys::bpf_prog_get_info_by_fd(program.as_raw_fd(), &mut info, &mut length) })?;
    let name = info.name.iter().map(|c| *c as u8).take_while(|c| *c != 0).collect();
    Ok(ProgramInfo {
        id: info.id,
        name: String::from_utf8(name).unwrap_or_default(),
        verified_insns: info.verified_insns,
        runs: (info.run_cnt, info.run_time_ns),
    })
}

/// Most maps of a program that are asked for; the hooks have about twenty.
const PROGRAM_MAPS_MAX: usize = 64;

/// The numbers of the maps that a program uses.
pub(crate) fn program_maps(program: BorrowedFd<'_>) -> io::Result<Vec<u32>> {
    let mut ids = [0_u32; PROGRAM_MAPS_MAX];
    let mut info = sys::bpf_prog_info {
        nr_map_ids: PROGRAM_MAPS_MAX as u32,
        map_ids: ids.as_mut_ptr() as u64,
        ..Default::default()
    };
    let mut length = size_of::<sys::bpf_prog_info>() as u32;
    // SAFETY: a live descriptor; the buffer has the length that is told, and asks for an array that
    // has the length that is told with it; both outlive the call.
    check(unsafe { sys::bpf_prog_get_info_by_fd(program.as_raw_fd(), &mut info, &mut length) })?;
    Ok(ids.into_iter().take(info.nr_map_ids as usize).collect())
}

/// Opens a program by its id.
pub(crate) fn program_by_id(id: u32) -> io::Result<OwnedFd> {
    // SAFETY: no pointers.
    owned(unsafe { sys::bpf_prog_get_fd_by_id(id) })
}

/// Which side of clsact.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Side {
    Ingress,
    Egress,
}

impl Side {
    /// Its attach type at tcx.
    pub(crate) const fn tcx(self) -> sys::bpf_attach_type {
        match self {
            Self::Ingress => sys::BPF_TCX_INGRESS,
            Self::Egress => sys::BPF_TCX_EGRESS,
        }
    }
}

/// Handle and first priority of our clsact filters: fixed places, so that we find and replace our
/// own.
pub(crate) const CLSACT_HANDLE: u32 = 0x7467;
pub(crate) const CLSACT_PRIORITY: u32 = 0x7467;

/// A place in clsact.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Filter {
    pub(crate) side: Side,
    pub(crate) priority: u32,
}

fn clsact_hook(ifindex: u32, side: Side) -> sys::bpf_tc_hook {
    sys::bpf_tc_hook {
        sz: size_of::<sys::bpf_tc_hook>() as sys::size_t,
        ifindex: ifindex as i32,
        attach_point: match side {
            Side::Ingress => sys::BPF_TC_INGRESS,
            Side::Egress => sys::BPF_TC_EGRESS,
        },
        ..Default::default()
    }
}

fn clsact_options(filter: Filter) -> sys::bpf_tc_opts {
    sys::bpf_tc_opts {
        sz: size_of::<sys::bpf_tc_opts>() as sys::size_t,
        handle: CLSACT_HANDLE,
        priority: filter.priority,
        ..Default::default()
    }
}

/// The program at our place of clsact, if any.
pub(crate) fn clsact_program(ifindex: u32, filter: Filter) -> io::Result<Option<u32>> {
    let mut options = clsact_options(filter);
    // SAFETY: both structures carry their sizes and outlive the call.
    match check(unsafe { sys::bpf_tc_query(&clsact_hook(ifindex, filter.side), &mut options) }) {
        Ok(_) => Ok(Some(options.prog_id)),
        Err(error) if matches!(error.raw_os_error(), Some(2 | 22)) => Ok(None),
        Err(error) => Err(error),
    }
}

/// Attaches to clsact, or replaces what is at our place.
pub(crate) fn clsact_attach(
    program: BorrowedFd<'_>,
    ifindex: u32,
    filter: Filter,
) -> io::Result<()> {
    let mut hook = clsact_hook(ifindex, filter.side);
    // SAFETY: the structure carries its size and outlives the call.
    let created = check(unsafe { sys::bpf_tc_hook_create(&mut hook) });
    if let Err(error) = created
        && error.kind() != io::ErrorKind::AlreadyExists
    {
        return Err(error);
    }
    let mut options = clsact_options(filter);
    options.prog_fd = program.as_raw_fd();
    if clsact_program(ifindex, filter)?.is_some() {
        options.flags = sys::BPF_TC_F_REPLACE;
    }
    // SAFETY: both structures carry their sizes and outlive the call.
    check(unsafe { sys::bpf_tc_attach(&hook, &mut options) }).map(drop)
}

/// Removes our filter from clsact; others stay.
pub(crate) fn clsact_detach(ifindex: u32, filter: Filter) -> io::Result<()> {
    let hook = clsact_hook(ifindex, filter.side);
    // SAFETY: both structures carry their sizes and outlive the call.
    check(unsafe { sys::bpf_tc_detach(&hook, &clsact_options(filter)) }).map(drop)
}

/// What a test run gives a program, and gets back.
pub(crate) struct TestRun<'a> {
    pub(crate) data: &'a [u8],
    pub(crate) context: &'a mut [u8],
    pub(crate) repeat: u32,
}

/// Result of a test run.
pub(crate) struct TestOutput {
    pub(crate) returned: u32,
    pub(crate) data: Vec<u8>,
    pub(crate) duration_ns: u32,
}

/// Room for a packet that a program made longer.
const TEST_HEADROOM: usize = 256;

/// Runs a program once or more on a packet and a context (`BPF_PROG_TEST_RUN`).
pub(crate) fn test_run(program: BorrowedFd<'_>, run: &mut TestRun<'_>) -> io::Result<TestOutput> {
    let mut out = vec![0_u8; if run.data.is_empty() { 0 } else { run.data.len() + TEST_HEADROOM }];
    let mut options = sys::bpf_test_run_opts {
        sz: size_of::<sys::bpf_test_run_opts>() as sys::size_t,
        repeat: run.repeat as i32,
        ..Default::default()
    };
    if !run.data.is_empty() {
        options.data_in = run.data.as_ptr().cast();
        options.data_size_in = run.data.len() as u32;
        options.data_out = out.as_mut_ptr().cast();
        options.data_size_out = out.len() as u32;
    }
    if !run.context.is_empty() {
        options.ctx_in = run.context.as_mut_ptr().cast_const().cast();
        options.ctx_size_in = run.context.len() as u32;
    }
    // SAFETY: a live descriptor; every buffer has the length that is told and outlives the call.
    // A program of type syscall writes to ctx_in: `context` is borrowed mutably.
    check(unsafe { sys::bpf_prog_test_run_opts(program.as_raw_fd(), &mut options) })?;
    out.truncate(options.data_size_out as usize);
    Ok(TestOutput { returned: options.retval, data: out, duration_ns: options.duration })
}

/// Runs a syscall program on one structure.
pub(crate) fn run_syscall<T: FromBytes + IntoBytes>(
    program: BorrowedFd<'_>,
    argument: &mut T,
) -> io::Result<u32> {
    let mut run = TestRun { data: &[], context: argument.as_mut_bytes(), repeat: 0 };
    test_run(program, &mut run).map(|output| output.returned)
}
