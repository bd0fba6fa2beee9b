// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The maps that all hooks share: created by the first object that names them, pinned, adopted.

use crate::abi::{self, ABI_VERSION};
use crate::objects::Sized;
use crate::{Error, datagrams, imported, lately, pins, syscall};
use libbpf_rs::{ErrorKind, MapCore, MapFlags, MapHandle};
use std::collections::BTreeMap;
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};
use std::{fs, io};
use tidegate_policy::{LatelyLine, LatelyTurn};
use zerocopy::FromBytes;

/// Maps by name.
#[derive(Debug, Default)]
pub(crate) struct Maps {
    by_name: BTreeMap<String, MapHandle>,
}

/// What the value of each map measures; a map of another size is not ours.
const VALUE_SIZES: [(&str, usize); 24] = [
    ("tg_control", size_of::<abi::Control>()),
    ("tg_tables", size_of::<abi::Table>()),
    ("tg_listens", size_of::<abi::Listen>()),
    ("tg_listeners", size_of::<abi::Listeners>()),
    ("tg_prefixes", 4),
    ("tg_src_prefixes", size_of::<abi::SrcPrefixes>()),
    ("tg_copies", size_of::<abi::BucketCopy>()),
    ("tg_counts", size_of::<abi::Counts>()),
    ("tg_passed", size_of::<abi::ReasonCounts>()),
    ("tg_totals", size_of::<abi::Totals>()),
    ("tg_gauges", size_of::<abi::Gauges>()),
    ("tg_pending", size_of::<abi::Pending>()),
    ("tg_senders", size_of::<abi::Senders>()),
    ("tg_notes", size_of::<abi::Notes>()),
    ("tg_flows", size_of::<abi::FlowSet>()),
    ("tg_times", size_of::<abi::FlowTimes>()),
    ("tg_flow_sources", size_of::<abi::FlowSources>()),
    ("tg_source_sets", size_of::<abi::SourceSet>()),
    ("tg_sources", size_of::<abi::Source>()),
    ("tg_flights", size_of::<abi::Flights>()),
    (lately::LINES, size_of::<LatelyLine>()),
    (lately::TURN, size_of::<LatelyTurn>()),
    (imported::COUNTS, size_of::<abi::ImportCounts>()),
    (datagrams::COUNTS, size_of::<abi::Datagrams>()),
];

/// The same of the maps of request rules.
pub(crate) const REQUEST_SIZES: [(&str, usize); 12] = [
    ("tg_request_control", size_of::<abi::RequestControl>()),
    ("tg_paths", 4),
    ("tg_rules", size_of::<abi::Rule>()),
    ("tg_hosts", 4),
    ("tg_cookie_tests", size_of::<abi::CookieTest>()),
    ("tg_answer_texts", size_of::<abi::AnswerText>()),
    ("tg_buckets", size_of::<abi::RequestChain>()),
    ("tg_unevaluable", 4),
    ("tg_bucket_totals", size_of::<abi::BucketTotals>()),
    ("tg_rule_counts", size_of::<abi::RuleCounts>()),
    ("tg_request_reasons", size_of::<abi::ReasonCounts>()),
    ("tg_conns", size_of::<abi::Conn>()),
];

impl Maps {
    /// The maps that are pinned at `pins` by this version of the ABI; none if any is missing,
    /// unreadable or of another layout: state is adopted whole or not at all.
    pub(crate) fn adopt(pins: &Path, names: &[&str]) -> Self {
        let directory = directory(pins);
        let mut by_name = BTreeMap::new();
        for name in names {
            match MapHandle::from_pinned_path(directory.join(name)) {
                Ok(map) => by_name.insert((*name).to_string(), map),
                Err(_) => return Self::default(),
            };
        }
        let maps = Self { by_name };
        if maps.check().is_ok() { maps } else { Self::default() }
    }

    /// Takes over more maps that are pinned beside those that were adopted: all of them, or none if
    /// one is missing or of another size.
    pub(crate) fn adopt_more(&mut self, pins: &Path, names: &[&str], sizes: &[(&str, usize)]) {
        let directory = directory(pins);
        let mut more = BTreeMap::new();
        for name in names {
            match MapHandle::from_pinned_path(directory.join(name)) {
                Ok(map) => more.insert((*name).to_string(), map),
                Err(_) => return,
            };
        }
        let more = Self { by_name: more };
        if more.check_sizes(sizes).is_ok() {
            self.by_name.extend(more.by_name);
        }
    }

    /// A table that has another size than this, in words.
    pub(crate) fn resized(&self, sizes: &[Sized]) -> Option<String> {
        sizes.iter().find_map(|Sized { map, table, entries, room }| {
            let now = self.find(map)?.max_entries();
            (now != *entries).then(|| {
                let now = u64::from(now) * u64::from(*room) / u64::from(*entries);
                format!("the table of {table} has room for {now}, not for {room}")
            })
        })
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.by_name.is_empty()
    }

    pub(crate) fn insert(&mut self, name: &str, map: MapHandle) {
        self.by_name.insert(name.to_string(), map);
    }

    pub(crate) fn find(&self, name: &str) -> Option<&MapHandle> {
        self.by_name.get(name)
    }

    pub(crate) fn get(&self, name: &str) -> Result<&MapHandle, Error> {
        self.find(name).ok_or_else(|| Error::Layout { map: name.to_string() })
    }

    /// Compares the layouts with those of this crate.
    pub(crate) fn check(&self) -> Result<(), Error> {
        self.check_sizes(&VALUE_SIZES)
    }

    /// The same for these maps.
    pub(crate) fn check_sizes(&self, sizes: &[(&str, usize)]) -> Result<(), Error> {
        for (name, size) in sizes {
            if self.get(name)?.value_size() as usize != *size {
                return Err(Error::Layout { map: (*name).to_string() });
            }
        }
        Ok(())
    }

    /// Pins every map that is not pinned yet; what else is pinned there belongs to nobody any more.
    pub(crate) fn pin(&self, pins: &Path) -> Result<(), Error> {
        let directory = directory(pins);
        let failed = |path: &Path| {
            let path = path.to_path_buf();
            move |source: io::Error| Error::Pins { path, source }
        };
        fs::create_dir_all(&directory).map_err(failed(&directory))?;
        for (name, map) in &self.by_name {
            let path = directory.join(name);
            if pinned_is(&path, map) {
                continue;
            }
            match fs::remove_file(&path) {
                Err(error) if error.kind() != io::ErrorKind::NotFound => {
                    return Err(failed(&path)(error));
                }
                _ => syscall::pin(map.as_fd(), &path).map_err(failed(&path))?,
            }
        }
        for entry in fs::read_dir(&directory).map_err(failed(&directory))?.flatten() {
            if entry.file_name().to_str().is_none_or(|name| !self.by_name.contains_key(name)) {
                fs::remove_file(entry.path()).map_err(failed(&entry.path()))?;
            }
        }
        Ok(())
    }

    /// Whether there is a pin for each.
    pub(crate) fn are_pinned(&self, pins: &Path) -> bool {
        let directory = directory(pins);
        self.by_name.keys().all(|name| directory.join(name).exists())
    }

    /// The kernel's numbers of all maps, by name.
    pub(crate) fn ids(&self) -> Result<Vec<u32>, Error> {
        let id =
            |(name, map): (&String, &MapHandle)| Ok(map.info().map_err(Error::map(name))?.info.id);
        self.by_name.iter().map(id).collect()
    }

    /// Reads one value.
    pub(crate) fn read<T: FromBytes>(&self, name: &str, index: u32) -> Result<T, Error> {
        let bytes = self
            .get(name)?
            .lookup(&index.to_ne_bytes(), MapFlags::ANY)
            .map_err(Error::map(name))?;
        bytes.and_then(|bytes| abi::read(&bytes)).ok_or_else(|| Error::Layout { map: name.into() })
    }

    /// Writes one value.
    pub(crate) fn write(&self, name: &str, key: &[u8], value: &[u8]) -> Result<(), Error> {
        self.get(name)?.update(key, value, MapFlags::ANY).map_err(Error::map(name))
    }

    /// Takes the only inner map out of its outer map, if there is one.
    pub(crate) fn clear(&self, name: &str) -> Result<(), Error> {
        match self.get(name)?.delete(&0_u32.to_ne_bytes()) {
            Err(error) if error.kind() != ErrorKind::NotFound => Err(Error::map(name)(error)),
            _ => Ok(()),
        }
    }

    /// One value of every CPU.
    pub(crate) fn read_percpu(&self, name: &str, index: u32) -> Result<Vec<Vec<u8>>, Error> {
        let values = self
            .get(name)?
            .lookup_percpu(&index.to_ne_bytes(), MapFlags::ANY)
            .map_err(Error::map(name))?;
        values.ok_or_else(|| Error::Layout { map: name.into() })
    }

    /// Sets one value to zero.
    pub(crate) fn clear_value(&self, name: &str, index: u32) -> Result<(), Error> {
        let zero = vec![0; self.get(name)?.value_size() as usize];
        self.write(name, &index.to_ne_bytes(), &zero)
    }

    /// Sets one value to zero on every CPU.
    pub(crate) fn clear_percpu(&self, name: &str, index: u32) -> Result<(), Error> {
        let zero: Vec<Vec<u8>> =
            self.read_percpu(name, index)?.iter().map(|value| vec![0; value.len()]).collect();
        self.get(name)?
            .update_percpu(&index.to_ne_bytes(), &zero, MapFlags::ANY)
            .map_err(Error::map(name))
    }
}

/// Where the maps of this ABI version are pinned.
pub(crate) fn directory(pins: &Path) -> PathBuf {
    pins.join(format!("v{ABI_VERSION}"))
}

fn pinned_is(path: &Path, map: &MapHandle) -> bool {
    let Ok(pinned) = MapHandle::from_pinned_path(path) else {
        return false;
    };
    let ids = (pinned.info().map(|info| info.info.id), map.info().map(|info| info.info.id));
    matches!(ids, (Ok(a), Ok(b)) if a == b)
}

/// Where maps are pinned, by version of the ABI, the newest last.
pub(crate) fn versions(pins: &Path) -> Vec<PathBuf> {
    let entries = fs::read_dir(pins).into_iter().flatten().flatten().map(|entry| entry.path());
    let version = |path: &Path| path.file_name()?.to_str()?.strip_prefix('v')?.parse::<u32>().ok();
    let mut versions: Vec<(u32, PathBuf)> =
        entries.filter_map(|path| Some((version(&path)?, path))).collect();
    versions.sort();
    versions.into_iter().map(|(_, path)| path).collect()
}

/// The numbers of the maps that are pinned at `pins`, of every version.
pub(crate) fn pinned_ids(pins: &Path) -> Vec<u32> {
    let directories = versions(pins).into_iter().filter_map(|path| fs::read_dir(path).ok());
    let pinned = directories.flatten().flatten().map(|entry| entry.path());
    let maps = pinned.filter_map(|path| MapHandle::from_pinned_path(path).ok());
    maps.filter_map(|map| Some(map.info().ok()?.info.id)).collect()
}

/// Removes the maps of other ABI versions, once nothing uses them any more.
pub(crate) fn remove_other_versions(pins: &Path) {
    let ours = directory(pins);
    for path in versions(pins).into_iter().filter(|path| *path != ours) {
        remove_directory(&path);
    }
}

/// Removes a directory of pins and what is in it; what cannot be removed is reported.
pub(crate) fn remove_directory(path: &Path) {
    if let Err(error) = fs::remove_dir_all(path)
        && error.kind() != io::ErrorKind::NotFound
    {
        tracing::warn!(path = %pins::shown(path).display(), %error, "pins stay behind");
    }
}
