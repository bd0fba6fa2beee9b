// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What can go wrong, with what was wrong and where.

use std::io;
use std::path::PathBuf;

/// Why the dataplane could not do what it was asked.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The plan breaks a bound.
    #[error("{0}")]
    Plan(String),
    /// A BPF object was refused by libbpf or the kernel.
    #[error("BPF object {object}: {source}")]
    Load {
        /// Which object.
        object: String,
        /// What libbpf said.
        source: libbpf_rs::Error,
    },
    /// A map could not be read or written.
    #[error("BPF map {map}: {source}")]
    Map {
        /// Which map.
        map: String,
        /// What libbpf said.
        source: libbpf_rs::Error,
    },
    /// A map has not the layout that this version expects.
    #[error("BPF map {map} has another layout than this version of tidegate expects")]
    Layout {
        /// Which map.
        map: String,
    },
    /// A program could not be run.
    #[error("BPF program {program}: {source}")]
    Run {
        /// Which program.
        program: &'static str,
        /// What the kernel said.
        source: io::Error,
    },
    /// There is no such interface.
    #[error("interface {interface}: {source}")]
    Interface {
        /// Its name, with the namespace.
        interface: String,
        /// What the kernel said.
        source: io::Error,
    },
    /// A network namespace cannot be entered.
    #[error("network namespace {path}: {source}")]
    Namespace {
        /// Its path.
        path: PathBuf,
        /// What the kernel said.
        source: io::Error,
    },
    /// Somebody else's XDP program is on the interface; it is never replaced.
    #[error(
        "interface {interface}: an XDP program that is not ours is attached (id {id}, name {name:?}); \
         it is left alone: use `attach: tcx` (or auto) to run beside it"
    )]
    Foreign {
        /// Which interface.
        interface: String,
        /// Id of the foreign program.
        id: u32,
        /// Its name.
        name: String,
    },
    /// Somebody else's filter is at our place of clsact; it is never replaced.
    #[error(
        "interface {interface}: a clsact filter that is not ours is at the priority and handle that \
         tidegate uses, {priority} and 0x7467 (id {id}, name {name:?}); it is left alone: give it \
         another priority"
    )]
    ForeignFilter {
        /// Which interface.
        interface: String,
        /// The priority.
        priority: u32,
        /// Id of the foreign program.
        id: u32,
        /// Its name.
        name: String,
    },
    /// Whose the filter at our place of clsact is cannot be found out; it is left alone.
    #[error(
        "interface {interface}: whose the clsact filter at priority {priority} and handle 0x7467 is \
         cannot be found out (id {id}: {source}), which needs CAP_SYS_ADMIN; it is left alone"
    )]
    Whose {
        /// Which interface.
        interface: String,
        /// The priority.
        priority: u32,
        /// Id of its program.
        id: u32,
        /// What the kernel said.
        source: io::Error,
    },
    /// A hook could not be attached.
    #[error("interface {interface}: cannot attach {hook}: {source}")]
    Attach {
        /// Which interface.
        interface: String,
        /// Which hook.
        hook: &'static str,
        /// What the kernel said.
        source: io::Error,
    },
    /// The directory of the pins cannot be used.
    #[error("pins at {}: {source}", crate::pins::shown(path).display())]
    Pins {
        /// Which path.
        path: PathBuf,
        /// What went wrong.
        source: io::Error,
    },
}

impl Error {
    pub(crate) fn map(map: &str) -> impl FnOnce(libbpf_rs::Error) -> Self + use<> {
        let map = map.to_string();
        move |source| Self::Map { map, source }
    }
}
