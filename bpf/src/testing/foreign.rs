// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Programs at tcx that are not ours.

use crate::syscall::{self, Order, Pass, Side};
use crate::{Error, Interface, namespace};
use std::ffi::CStr;
use std::os::fd::{AsFd, OwnedFd};

/// What the names of these programs are.
const NAME: &CStr = c"stranger";

/// What a program says of every packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// `TCX_PASS`: it goes on, and no later program sees it.
    Pass,
    /// `TCX_DROP`.
    Drop,
    /// `TCX_NEXT`: later programs see it.
    Next,
    /// `bpf_redirect` to the same side of the interface with this number.
    Redirect(u32),
}

/// A program that is not ours.
#[derive(Clone, Copy, Debug)]
pub struct Foreign {
    /// What it says.
    pub verdict: Verdict,
    /// At egress, not at ingress.
    pub egress: bool,
    /// Before all that are there, not behind them.
    pub first: bool,
}

/// It is detached when this is dropped.
#[derive(Debug)]
pub struct Neighbour {
    _link: OwnedFd,
}

impl Foreign {
    /// Attaches it to an interface.
    ///
    /// # Errors
    /// When there is no such interface or the kernel refuses.
    pub fn attach(self, interface: &Interface) -> Result<Neighbour, Error> {
        let side = if self.egress { Side::Egress } else { Side::Ingress };
        namespace::of(interface, || {
            let ifindex = namespace::device(interface)?.ifindex;
            let order = if self.first { Order::First } else { Order::None };
            let place = syscall::Place { ifindex, kind: side.tcx(), flags: 0, order };
            let failed = |source| {
                let interface = interface.shown();
                Error::Attach { interface, hook: "tcx", source }
            };
            let program = match self.verdict {
                Verdict::Pass => syscall::load_verdict(Pass::Tcx(side), NAME, 0),
                Verdict::Drop => syscall::load_verdict(Pass::Tcx(side), NAME, 2),
                Verdict::Next => syscall::load_verdict(Pass::Tcx(side), NAME, -1),
                Verdict::Redirect(to) => syscall::load_redirect(side, NAME, to),
            };
            let program = program.map_err(failed)?;
            let link = syscall::link_create(program.as_fd(), &place).map_err(failed)?;
            Ok(Neighbour { _link: link })
        })
    }
}
