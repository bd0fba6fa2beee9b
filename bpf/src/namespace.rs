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

/// Runs `work` in the namespace of an interface.
pub(crate) fn of<T: Send>(
    interface: &Interface,
    work: impl FnOnce() -> Result<T, Error> + Send,
) -> Result<T, Error> {
    within(interface.path()?.as_deref(), work)
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
    /// Whether its packets begin with IP, without an Ethernet header.
    pub(crate) plain: bool,
    /// What XDP in its driver costs, where tcx costs nothing of the kind.
    pub(crate) costs: Option<&'static str>,
}

/// What XDP in a driver costs all traffic of the interface, by the driver's name (docs/places.md).
const COSTS: [(&str, &str); 10] = [
    ("virtio_net", "received packets are not merged by the host any more"),
    (
        "ena",
        "the interface is restarted, half of its queues are reserved, and its MTU stays below 3498",
    ),
    ("gve", "its queues are made anew, and half of them are reserved"),
    (
        "hv_netvsc",
        "received packets must not be merged any more, and the queues of the card behind it may be made anew",
    ),
    ("mlx5_core", "its queues are made anew, and each received packet takes a page of its own"),
    ("ice", "its queues are stopped and made anew"),
    ("i40e", "the card is reset"),
    ("ixgbe", "the interface is restarted"),
    ("bnxt_en", "the interface is restarted, and the card merges received packets no more"),
    ("bonding", "it costs what the drivers of its ports cost"),
];
/// Nearly all drivers that were looked at stop their queues.
const UNKNOWN: &str = "nobody looked what its driver does; most stop their queues for a moment";

/// What native XDP costs all traffic of an interface with this driver; `auto` does not take it there.
/// `device`: it is a device, not a program's end of a virtual link.
#[must_use]
pub fn xdp_costs(driver: &str, device: bool) -> Option<&'static str> {
    let known = COSTS.iter().find(|(name, _)| *name == driver).map(|(_, costs)| *costs);
    known.or_else(|| device.then_some(UNKNOWN))
}

/// Finds an interface; to be called within its namespace.
pub(crate) fn device(interface: &Interface) -> Result<Device, Error> {
    let failed = |source: io::Error| Error::Interface { interface: interface.shown(), source };
    let socket = rustix::net::socket(AddressFamily::INET, SocketType::DGRAM, None)
        .map_err(|error| failed(error.into()))?;
    let ifindex = rustix::net::netdevice::name_to_index(&socket, &interface.config.name)
        .map_err(|error| failed(error.into()))?;
    let namespace = inode().map_err(failed)?;
    let (driver, device) = driver(&socket, &interface.config.name).unwrap_or_default();
    let costs = xdp_costs(&driver, device);
    let plain = !has_ethernet(&socket, &interface.config.name).map_err(failed)?;
    Ok(Device { ifindex, namespace, veth: driver == "veth", plain, costs })
}

/// The namespace of the calling thread.
pub(crate) fn inode() -> io::Result<u64> {
    Ok(rustix::fs::stat("/proc/thread-self/ns/net")?.st_ino)
}

/// The names of all interfaces; to be called within their namespace.
pub(crate) fn names() -> io::Result<Vec<String>> {
    let text = std::fs::read_to_string("/proc/thread-self/net/dev")?;
    let names = text.lines().filter_map(|line| Some(line.split_once(':')?.0.trim().to_owned()));
    Ok(names.collect())
}

/// The number of an interface; `None`: there is none of that name. To be called within its
/// namespace.
pub(crate) fn index(name: &str) -> io::Result<Option<u32>> {
    let socket = rustix::net::socket(AddressFamily::INET, SocketType::DGRAM, None)?;
    match rustix::net::netdevice::name_to_index(&socket, name) {
        Ok(index) => Ok(Some(index)),
        Err(rustix::io::Errno::NODEV) => Ok(None),
        Err(error) => Err(error.into()),
    }
}

/// `struct ifreq` with a pointer.
#[repr(C)]
struct IfReq {
    name: [u8; 16],
    data: *mut std::ffi::c_void,
    pad: [u8; 16],
}

/// `struct ethtool_drvinfo`.
#[repr(C)]
struct DriverInfo {
    command: u32,
    driver: [u8; 32],
    /// Its version, and its firmware's.
    versions: [u8; 64],
    bus: [u8; 32],
    rest: [u8; 64],
}

/// `struct ethtool_value`.
#[repr(C)]
struct Flags {
    command: u32,
    flags: u32,
}

/// What the ethtool call takes.
///
/// # Safety
/// Only for the struct that the kernel expects for the command that its first field names.
unsafe trait Ethtool {}
// SAFETY: made below with ETHTOOL_GDRVINFO only.
unsafe impl Ethtool for DriverInfo {}
// SAFETY: made below with ETHTOOL_GFLAGS only.
unsafe impl Ethtool for Flags {}

const SIOCETHTOOL: u32 = 0x8946;
const ETHTOOL_GDRVINFO: u32 = 3;
const ETHTOOL_GFLAGS: u32 = 0x25;
/// `ETH_FLAG_RXVLAN`: tags of received frames are removed by the device.
const RX_VLAN: u32 = 1 << 8;
/// `ETH_FLAG_LRO`: received frames are merged by the device.
const LRO: u32 = 1 << 15;

fn ethtool<T: Ethtool>(
    socket: impl std::os::fd::AsFd,
    name: &str,
    value: &mut T,
) -> io::Result<()> {
    let data = std::ptr::from_mut(value).cast();
    let mut request = IfReq { name: [0; 16], data, pad: [0; 16] };
    let bytes = name.as_bytes();
    if bytes.len() >= request.name.len() {
        return Err(io::ErrorKind::InvalidInput.into());
    }
    request.name[..bytes.len()].copy_from_slice(bytes);
    // SAFETY: the opcode takes a struct ifreq whose pointer leads to the struct of the command (by
    // the contract of the trait); both live until the call returns.
    unsafe {
        let call = Updater::<{ SIOCETHTOOL as rustix::ioctl::Opcode }, IfReq>::new(&mut request);
        rustix::ioctl::ioctl(socket, call)?;
    }
    Ok(())
}

/// `struct ifreq` with a hardware address.
#[repr(C)]
struct IfHardware {
    name: [u8; 16],
    family: u16,
    rest: [u8; 22],
}

const SIOCGIFHWADDR: u32 = 0x8927;
/// linux/if_arp.h
const ARPHRD_ETHER: u16 = 1;
const ARPHRD_LOOPBACK: u16 = 772;

/// Whether packets of an interface begin with an Ethernet header.
fn has_ethernet(socket: impl std::os::fd::AsFd, name: &str) -> io::Result<bool> {
    let mut request = IfHardware { name: [0; 16], family: 0, rest: [0; 22] };
    let bytes = name.as_bytes();
    if bytes.len() >= request.name.len() {
        return Err(io::ErrorKind::InvalidInput.into());
    }
    request.name[..bytes.len()].copy_from_slice(bytes);
    // SAFETY: the opcode takes a struct ifreq, and writes an address of 16 bytes behind its name.
    unsafe {
        let call =
            Updater::<{ SIOCGIFHWADDR as rustix::ioctl::Opcode }, IfHardware>::new(&mut request);
        rustix::ioctl::ioctl(socket, call)?;
    }
    Ok(matches!(request.family, ARPHRD_ETHER | ARPHRD_LOOPBACK))
}

/// What virtual links say of a bus that they are not on (`bridge`).
const NO_BUS: &[u8] = b"N/A\0";

/// Name of the driver of an interface, and whether there is a device on a bus behind it; tun and tap only
/// look so.
fn driver(socket: impl std::os::fd::AsFd, name: &str) -> io::Result<(String, bool)> {
    let mut info = DriverInfo {
        command: ETHTOOL_GDRVINFO,
        driver: [0; 32],
        versions: [0; 64],
        bus: [0; 32],
        rest: [0; 64],
    };
    ethtool(socket, name, &mut info)?;
    let driver = info.driver.iter().copied().take_while(|c| *c != 0).collect();
    let driver = String::from_utf8(driver).unwrap_or_default();
    let on_bus = info.bus[0] != 0 && !info.bus.starts_with(NO_BUS);
    let device = on_bus && driver != "tun";
    Ok((driver, device))
}

/// What the device does to frames before XDP sees them, for people: nothing, mostly. `answers`:
/// whether SYNs may be answered from there. To be called within the interface's namespace.
#[must_use]
pub fn offload_notes(interface: &str, answers: bool) -> Vec<String> {
    let mut flags = Flags { command: ETHTOOL_GFLAGS, flags: 0 };
    let Ok(socket) = rustix::net::socket(AddressFamily::INET, SocketType::DGRAM, None) else {
        return Vec::new();
    };
    // A device that does not tell does nothing of the kind.
    if ethtool(&socket, interface, &mut flags).is_err() {
        return Vec::new();
    }
    notes_of(interface, flags.flags, answers)
}

fn notes_of(name: &str, flags: u32, answers: bool) -> Vec<String> {
    let mut notes = Vec::new();
    if answers && flags & RX_VLAN != 0 {
        notes.push(format!(
            "{name}: the device takes VLAN tags off before XDP sees the frame, so answers (RST) to \
             a tagged SYN would leave untagged; where VLANs are used: `ethtool -K {name} rxvlan \
             off`, or attach: tcx"
        ));
    }
    if flags & LRO != 0 {
        notes.push(format!(
            "{name}: the device merges received frames (LRO), which XDP cannot take apart: \
             `ethtool -K {name} lro off`"
        ));
    }
    notes
}

impl Interface {
    /// For messages: the name, with its namespace.
    pub(crate) fn shown(&self) -> String {
        match self.planned() {
            Some(path) => format!("{} in {}", self.config.name, path.display()),
            None => self.config.name.clone(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::process::Command;

    /// Needs root.
    #[test]
    fn a_bridge_has_no_device_behind_it() {
        let name = format!("tgb{}", std::process::id() % 1_000_000);
        let ip = |arguments: &str| {
            Command::new("ip").args(arguments.split(' ')).status().unwrap().success()
        };
        assert!(ip(&format!("netns add {name}")));
        let made = ip(&format!("-n {name} link add b0 type bridge"));
        let path = Path::new("/run/netns").join(&name);
        let found = within(Some(&path), || {
            let socket = rustix::net::socket(AddressFamily::INET, SocketType::DGRAM, None).unwrap();
            Ok(driver(&socket, "b0").unwrap())
        });
        assert!(ip(&format!("netns del {name}")) && made);
        assert_eq!(found.unwrap(), ("bridge".to_owned(), false));
    }

    /// The table for people, and what the log and `check` say.
    #[test]
    fn each_driver_whose_costs_are_known_has_a_row_in_the_table_and_the_other_way_round() {
        let text = include_str!(concat!(env!("CARGO_MANIFEST_DIR"), "/../docs/places.md"));
        let table = text.split("\n| driver |").nth(1).unwrap().split("\n\n").next().unwrap();
        let names = table.lines().filter_map(|row| row.strip_prefix("| `")?.split('`').next());
        // Those of links without a card, where it costs nothing.
        let told = names.filter(|name| !["veth", "tun"].contains(name));
        let told: Vec<_> = told.map(|name| if name == "bond" { "bonding" } else { name }).collect();
        assert_eq!(told, COSTS.map(|(name, _)| name));
    }

    #[test]
    fn offloads_that_xdp_cannot_live_with_are_named() {
        let says = |flags, answers| notes_of("eth7", flags, answers).join("\n");
        assert_eq!(says(0, true), "");
        assert!(says(RX_VLAN, true).contains("ethtool -K eth7 rxvlan off"));
        assert_eq!(says(RX_VLAN, false), "", "what is not answered needs no tag");
        assert!(says(LRO, false).contains("ethtool -K eth7 lro off"));
        assert_eq!(notes_of("eth7", RX_VLAN | LRO, true).len(), 2);
    }
}
