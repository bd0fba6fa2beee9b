// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What the entries of all services together fill in the dataplane's tables.

use super::Check;
use super::step;
use tidegate_model::{LISTENS_MAX, PREFIXES_MAX};

impl Check<'_> {
    /// The dataplane finds a place by the bits of a hash.
    pub(super) fn table_sizes(&mut self) {
        for (key, size) in self.config.tables.sizes() {
            if !size.is_power_of_two() {
                let near = (size.next_power_of_two() / 2, size.next_power_of_two());
                self.fault(
                    &format!("tables.{key}"),
                    format!(
                        "found {size}; allowed: a power of two, such as {} or {}",
                        near.0, near.1
                    ),
                );
            }
        }
    }

    /// `*` is two listen addresses, one of each family.
    pub(super) fn listen_table(&mut self) {
        let lists = self.config.services.iter().map(|service| {
            let entries = service.listen.iter().flat_map(|listen| listen.entries()).count();
            (format!("services.{}.listen", step(&service.name)), entries)
        });
        self.table(lists, LISTENS_MAX, "listen addresses in all services together (* is two)");
    }

    pub(super) fn prefix_table(&mut self) {
        let config = self.config;
        let of_classes = config.services.iter().flat_map(|service| {
            let path = move |i| format!("services.{}.classes[{i}].sources", step(&service.name));
            let classes = service.classes.iter().enumerate();
            classes.map(move |(i, class)| (path(i), class.sources.len()))
        });
        let never_shed = ("never_shed.sources".to_owned(), config.never_shed.sources.len());
        let lists = of_classes.chain([never_shed]);
        self.table(lists, PREFIXES_MAX, "source prefixes in all classes and never_shed together");
    }

    /// The fault stands at the first list that does not fit any more; how many there are in all tells
    /// how many are too many.
    fn table(&mut self, lists: impl Iterator<Item = (String, usize)>, max: usize, what: &str) {
        let mut all = 0;
        let mut first = None;
        for (path, entries) in lists {
            all += entries;
            if all > max {
                first.get_or_insert(path);
            }
        }
        if let Some(path) = first {
            self.fault(&path, format!("found {all} {what}; allowed: at most {max}"));
        }
    }
}
