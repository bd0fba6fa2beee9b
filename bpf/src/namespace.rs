// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Work inside a network namespace, in a thread that ends with it; and what can be asked there.

use crate::{Error, Interface};
use rustix::fs::{Mode, OFlags};
use rustix::ioctl::Updater;
use rustix::net::{AddressFamily, SocketType};
use rustix::thread::LinkNameSpaceType;
use std::io;
use std::path::Path;

/// Runs `work` in the namespace at `path`, or here where there is none.
pub(crate) fn within<T: Send>(
    path: Option<&Path>,
    work: impl FnOnce() -> Result<T, Error> + Send,
) -> Result<T, Error> {
    let Some(path) = path else {
        return work();
    };
    let failed = |source: io::Error| Error::Namespace { path: path.to_path_buf(), source };
    let fd = rustix::fs::open(path, OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty())
        .map_err(|error| failed(error.into()))?;
    std::thread::scope(|scope| {
        let thread = std::thread::Builder::new().spawn_scoped(scope, || {
            use std::os::fd::AsFd;
            rustix::thread::move_into_link_name_space(fd.as_fd(), Some(LinkNameSpaceType::Network))
                .map_err(|error| failed(error.into()))?;
            work()
        });
        match thread.map_err(failed)?.join() {
            Ok(result) => result,
            Err(panic) => std::panic::resume_unwind(panic),
        }
    })
}

/// An interface as the kernel knows it at the moment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Device {
    /// Its number in its namespace.
    pub(crate) ifindex: u32,
    /// Its namespace: the inode.
    pub(crate) namespace: u64,
    /// Whether it is one end of a veth pair.
    pub(crate) veth: bool,
}

/// Finds an interface; to be called within its namespace.
pub(crate) fn device(interface: &Interface) -> Result<Device, Error> {
    let failed = |source: io::Error| Error::Interface { interface: interface.shown(), source };
    let socket = rustix::net::socket(AddressFamily::INET, SocketType::DGRAM, None)
        .map_err(|error| failed(error.into()))?;
    let ifindex = rustix::net::netdevice::name_to_index(&socket, &interface.name)
        .map_err(|error| failed(error.into()))?;
    let namespace = rustix::fs::stat("/proc/thread-self/ns/net").map_err(|e| failed(e.into()))?;
    let veth = driver(&socket, &interface.name).is_ok_and(|name| name == "veth");
    Ok(Device { ifindex, namespace: namespace.st_ino, veth })
}

/// `struct ifreq` with a pointer.
#[repr(C)]
struct IfReq {
    name: [u8; 16],
    data: *mut DriverInfo,
    pad: [u8; 16],
}

/// `struct ethtool_drvinfo`.
#[repr(C)]
struct DriverInfo {
    command: u32,
    driver: [u8; 32],
    rest: [u8; 160],
}

const SIOCETHTOOL: u32 = 0x8946;
const ETHTOOL_GDRVINFO: u32 = 3;

/// Name of the driver of an interface.
fn driver(socket: impl std::os::fd::AsFd, name: &str) -> io::Result<String> {
    let mut info = DriverInfo { command: ETHTOOL_GDRVINFO, driver: [0; 32], rest: [0; 160] };
    let mut request = IfReq { name: [0; 16], data: &raw mut info, pad: [0; 16] };
    let bytes = name.as_bytes();
    if bytes.len() >= request.name.len() {
        return Err(io::ErrorKind::InvalidInput.into());
    }
    request.name[..bytes.len()].copy_from_slice(bytes);
    // SAFETY: the opcode takes a struct ifreq whose pointer leads to a struct ethtool_drvinfo;
    // both live until the call returns.
    unsafe {
        let call = Updater::<{ SIOCETHTOOL as rustix::ioctl::Opcode }, IfReq>::new(&mut request);
        rustix::ioctl::ioctl(socket, call)?;
    }
    let driver = info.driver.iter().copied().take_while(|c| *c != 0).collect();
    Ok(String::from_utf8(driver).unwrap_or_default())
}

impl Interface {
    /// For messages: the name, with its namespace.
    pub(crate) fn shown(&self) -> String {
        match &self.namespace {
            Some(path) => format!("{} in {}", self.name, path.display()),
            None => self.name.clone(),
        }
    }
}
