// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What the measuring programs need of the kernel: objects of their own, one program called by
//! another, live frames.

use crate::abi::{Gauges, XdpMd};
use crate::syscall::{self, TestRun};
use crate::testing::{TestHook, TestPlane};
use crate::{Error, Interface, namespace};
use libbpf_rs::{MapCore, MapFlags, MapHandle, ObjectBuilder};
use libbpf_sys as sys;
use std::collections::BTreeMap;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::path::Path;
use std::time::Duration;
use zerocopy::IntoBytes;

/// Frames that the kernel makes before it lets the stack handle them; its own default.
const LIVE_BATCH: u32 = 64;

/// An object of a measuring program, loaded.
#[derive(Debug)]
pub struct Bench {
    maps: BTreeMap<String, MapHandle>,
    programs: BTreeMap<String, OwnedFd>,
}

/// Keeps a program on an interface until it is dropped.
#[derive(Debug)]
pub struct Attachment {
    _link: OwnedFd,
}

/// What many runs of a program came to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Timed {
    /// What the last run returned.
    pub returned: u32,
    /// Mean time of a run, as the kernel measured it: whole nanoseconds.
    pub mean: Duration,
}

impl Bench {
    /// Loads an object with all its programs.
    ///
    /// # Errors
    /// What the library or the verifier says.
    pub fn load(name: &str, bytes: &[u8]) -> Result<Self, Error> {
        let failed = |source| Error::Load { object: name.to_string(), source };
        let mut builder = ObjectBuilder::default();
        let object = builder.open_memory(bytes).and_then(|open| open.load()).map_err(failed)?;
        let mut bench = Self { maps: BTreeMap::new(), programs: BTreeMap::new() };
        for map in object.maps() {
            let name = map.name().to_string_lossy().into_owned();
            bench.maps.insert(name, MapHandle::try_from(&map).map_err(failed)?);
        }
        for program in object.progs() {
            let name = program.name().to_string_lossy().into_owned();
            let fd = program.as_fd().try_clone_to_owned().map_err(run_error)?;
            bench.programs.insert(name, fd);
        }
        Ok(bench)
    }

    fn map(&self, name: &str) -> Result<&MapHandle, Error> {
        self.maps.get(name).ok_or_else(|| Error::Layout { map: name.to_string() })
    }

    /// One of its programs.
    ///
    /// # Errors
    /// When it has none of that name.
    pub fn program(&self, name: &str) -> Result<BorrowedFd<'_>, Error> {
        let found = self.programs.get(name).map(AsFd::as_fd);
        found.ok_or_else(|| run_error(io::ErrorKind::NotFound.into()))
    }

    /// Writes an entry of an array.
    ///
    /// # Errors
    /// What the kernel says.
    pub fn write(&self, map: &str, index: u32, value: &[u8]) -> Result<(), Error> {
        let written = self.map(map)?.update(&index.to_ne_bytes(), value, MapFlags::ANY);
        written.map_err(Error::map(map))
    }

    /// Reads an entry of an array.
    ///
    /// # Errors
    /// What the kernel says.
    pub fn read(&self, map: &str, index: u32) -> Result<Vec<u8>, Error> {
        let value = self.map(map)?.lookup(&index.to_ne_bytes(), MapFlags::ANY);
        value.map_err(Error::map(map))?.ok_or_else(|| Error::Layout { map: map.to_string() })
    }

    /// Puts a program into an array of programs.
    ///
    /// # Errors
    /// When the kernel finds that the two do not fit.
    pub fn call(&self, map: &str, program: BorrowedFd<'_>) -> Result<(), Error> {
        self.write(map, 0, &program.as_raw_fd().to_ne_bytes())
    }

    /// Runs an XDP program on a packet, many times over, as if it came by the loopback device of
    /// the calling thread's namespace.
    ///
    /// # Errors
    /// What the kernel says to a test run.
    pub fn time(&self, program: &str, packet: &[u8], repeat: u32) -> Result<Timed, Error> {
        let md = XdpMd {
            data_end: packet.len() as u32,
            ingress_ifindex: super::LOOPBACK,
            ..XdpMd::default()
        };
        let mut context = md.as_bytes().to_vec();
        let mut run = TestRun { data: packet, context: &mut context, repeat };
        let output = syscall::test_run(self.program(program)?, &mut run).map_err(run_error)?;
        let mean = Duration::from_nanos(output.duration_ns.into());
        Ok(Timed { returned: output.returned, mean })
    }

    /// Lets an XDP program send so many frames for real (`BPF_F_TEST_XDP_LIVE_FRAMES`), in the
    /// namespace of the calling thread; softirqs run between batches, on this CPU. The mean time
    /// for one frame, them included.
    ///
    /// # Errors
    /// What the kernel says to a test run.
    pub fn flood(&self, program: &str, frame: &[u8], frames: u32) -> Result<Duration, Error> {
        let mut options = sys::bpf_test_run_opts {
            sz: size_of::<sys::bpf_test_run_opts>() as sys::size_t,
            repeat: frames as i32,
            flags: sys::BPF_F_TEST_XDP_LIVE_FRAMES,
            batch_size: LIVE_BATCH,
            data_in: frame.as_ptr().cast(),
            data_size_in: frame.len() as u32,
            ..Default::default()
        };
        let program = self.program(program)?.as_raw_fd();
        // SAFETY: a live descriptor; the frame has the length that is told, is only read, and
        // outlives the call; no other buffer is named.
        let result = unsafe { sys::bpf_prog_test_run_opts(program, &mut options) };
        if result < 0 {
            return Err(run_error(io::Error::from_raw_os_error(-result)));
        }
        Ok(Duration::from_nanos(options.duration.into()))
    }

    /// Attaches an XDP program to an interface, natively.
    ///
    /// # Errors
    /// When there is no such interface or the kernel refuses.
    pub fn attach(&self, program: &str, interface: &Interface) -> Result<Attachment, Error> {
        let program = self.program(program)?;
        namespace::within(interface.namespace.as_deref(), || {
            let device = namespace::device(interface)?;
            let place = syscall::Place {
                ifindex: device.ifindex,
                kind: sys::BPF_XDP,
                flags: syscall::XDP_NATIVE,
                order: syscall::Order::None,
            };
            let link = syscall::link_create(program, &place);
            link.map(|link| Attachment { _link: link }).map_err(|source| Error::Attach {
                interface: interface.shown(),
                hook: "xdp",
                source,
            })
        })
    }
}

impl TestPlane {
    /// The program of a hook, to be called by another.
    ///
    /// # Errors
    /// When the plan has no rules, and the hook is one of request rules.
    pub fn target(&self, hook: TestHook) -> Result<BorrowedFd<'_>, Error> {
        self.program(hook).map(AsFd::as_fd)
    }

    /// Connections of a service that the flow table holds.
    ///
    /// # Errors
    /// When the map cannot be read.
    pub fn open(&self, service: usize) -> Result<i64, Error> {
        let index = u32::from(self.core.gauge(service));
        Ok(self.core.maps.read::<Gauges>("tg_gauges", index)?.open)
    }
}

/// The number of an interface.
///
/// # Errors
/// When there is none of that name in that namespace.
pub fn ifindex(interface: &Interface) -> Result<u32, Error> {
    let found = namespace::within(interface.namespace.as_deref(), || namespace::device(interface));
    found.map(|device| device.ifindex)
}

/// Runs `work` in a thread inside the network namespace at `path`.
///
/// # Errors
/// When the namespace cannot be entered, and what `work` returns.
pub fn within<T: Send>(
    path: &Path,
    work: impl FnOnce() -> Result<T, Error> + Send,
) -> Result<T, Error> {
    namespace::within(Some(path), work)
}

fn run_error(source: io::Error) -> Error {
    Error::Run { program: "bench", source }
}
