// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Filters of clsact that an earlier process left on interfaces that are not planned any more.
//!
//! A link is pinned, and found by its pin; a filter is found only by looking at every interface.
//! It would go on evaluating: its tables are ours, and the lease in them is renewed.

use super::{Bound, Role, removal};
use crate::namespace;
use crate::syscall::{self, Filter};
use crate::{Error, Interface, maps, programs};
use std::collections::BTreeSet;
use std::io;
use std::path::Path;

/// Most interfaces of a namespace that are looked at: it takes some ten microseconds each, and the
/// caller has the lease to renew.
const INTERFACES_MAX: usize = 4096;

/// Takes our filters off interfaces that are not among `bound`: in the namespaces of those, and in
/// our own. Returns what stays, one sentence each, already logged.
pub(crate) fn remove_filters(pins: &Path, bound: &[Bound]) -> Vec<String> {
    let planned =
        bound.iter().map(|bound| (bound.device.namespace, bound.device.ifindex)).collect();
    let search = Search { maps: maps::pinned_ids(pins), planned };
    let mut namespaces = BTreeSet::from([None]);
    // One that has gone has taken its filters with it.
    namespaces.extend(bound.iter().filter_map(|bound| bound.interface.path().ok()));
    let mut left = Vec::new();
    for namespace in namespaces {
        let namespace = namespace.as_deref();
        match namespace::within(namespace, || Ok(search.remove_from(namespace))) {
            Ok(Ok(stay)) => left.extend(stay),
            Ok(Err(error)) => left.push(format!("cannot look for filters of before: {error}")),
            Err(error @ Error::Namespace { .. }) => {
                tracing::debug!(%error, "cannot look for filters of before");
            }
            Err(error) => left.push(error.to_string()),
        }
    }
    left.iter().for_each(|text| tracing::warn!("{text}"));
    left
}

/// What is looked for.
struct Search {
    /// The maps that make a program ours, and not that of another dataplane.
    maps: Vec<u32>,
    /// Where filters may be: namespace and number of the interface.
    planned: BTreeSet<(u64, u32)>,
}

impl Search {
    /// To be called within the namespace.
    fn remove_from(&self, namespace: Option<&Path>) -> io::Result<Vec<String>> {
        let (inode, names) = (namespace::inode()?, namespace::names()?);
        if names.len() > INTERFACES_MAX {
            let (all, most) = (names.len(), INTERFACES_MAX);
            tracing::warn!(all, most, "not every interface is looked at for filters of before");
        }
        let mut left = Vec::new();
        for name in names.into_iter().take(INTERFACES_MAX) {
            // One that has gone meanwhile has taken its filters with it.
            let Some(index) = namespace::index(&name)? else { continue };
            if self.planned.contains(&(inode, index)) {
                continue;
            }
            let namespace = namespace.map(Path::to_path_buf);
            let interface = Interface::named(name, namespace);
            let filters = Role::ALL.map(Role::filter);
            left.extend(filters.into_iter().filter_map(|f| self.remove(&interface, index, f)));
        }
        Ok(left)
    }

    /// What stays, in a sentence with the command that removes it.
    fn remove(&self, interface: &Interface, index: u32, filter: Filter) -> Option<String> {
        let id = syscall::clsact_program(index, filter).ok().flatten()?;
        let (shown, priority) = (interface.shown(), filter.priority);
        match self.is_ours(id) {
            Ok(true) => {}
            Ok(false) => return None,
            Err(source) => {
                tracing::warn!("{}", Error::Whose { interface: shown, priority, id, source });
                return None;
            }
        }
        let Err(error) = syscall::clsact_detach(index, filter) else {
            tracing::info!(interface = shown, "removed a filter that is not planned any more");
            return None;
        };
        let how = removal(interface, filter);
        Some(format!(
            "interface {shown} is not planned, and a clsact filter of before stays attached \
             ({error}); remove it with `{how}`"
        ))
    }

    fn is_ours(&self, id: u32) -> io::Result<bool> {
        let Some(used) = programs::maps_of_ours(id)? else { return Ok(false) };
        Ok(used.iter().any(|map| self.maps.contains(map)))
    }
}
