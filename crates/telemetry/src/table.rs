// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Tables for people.

use crate::schema::FAMILIES;
use crate::service::figures;
use comfy_table::{CellAlignment, Table, presets};
use tidegate_model::snapshot::{ServiceState, Snapshot};

/// One column of the table of services.
pub struct Column {
    /// Its title.
    pub title: &'static str,
    /// Whether it is a number, and so stands at the right.
    pub number: bool,
    /// Where there is no room for all, the highest go first; 0 always stays.
    pub rank: u8,
    /// The cell of a service; `-` where nothing is known.
    pub cell: fn(&ServiceState) -> String,
}

/// The columns of the table of services, in their order.
pub const COLUMNS: &[Column] = &[
    Column { title: "service", number: false, rank: 0, cell: |s| plain(&s.name) },
    Column { title: "mode", number: false, rank: 6, cell: |s| plain(&s.mode) },
    Column { title: "offered/s", number: true, rank: 1, cell: |s| rate(figures(s).offered) },
    Column { title: "admitted/s", number: true, rank: 7, cell: |s| rate(figures(s).admitted) },
    Column {
        title: "refused/s",
        number: true,
        rank: 1,
        cell: |s| {
            // Nothing was refused in shadow mode: the sign says that it is a bound.
            let bound =
                if s.mode == "shadow" && figures(s).refused > Some(0.0) { "<=" } else { "" };
            format!("{bound}{}", rate(figures(s).refused))
        },
    },
    Column {
        title: "limit/s",
        number: true,
        rank: 2,
        cell: |s| match s.limits.rate {
            Some(limit) => rate(Some(limit.get())),
            None => "none".into(),
        },
    },
    Column {
        title: "waiting",
        number: true,
        rank: 4,
        cell: |s| count(s.signals.time.waiting.map(|r| r.value)),
    },
    Column {
        title: "p99",
        number: true,
        rank: 3,
        cell: |s| match s.signals.time.first_byte {
            Some(times) if times.value.count > 0 => times.value.p99.to_string(),
            _ => "-".into(),
        },
    },
    Column {
        title: "accept queue",
        number: true,
        rank: 9,
        cell: |s| match s.signals.queue.accept {
            Some(queue) => format!("{}/{}", queue.value.length, queue.value.limit),
            None => "-".into(),
        },
    },
    Column {
        title: "CPU",
        number: true,
        rank: 5,
        cell: |s| match s.signals.resource.cpu {
            Some(cpu) => format!("{:.0} %", cpu.value.get() * 100.0),
            None => "-".into(),
        },
    },
    Column { title: "alarmed", number: false, rank: 8, cell: alarmed },
];

fn alarmed(service: &ServiceState) -> String {
    let names = FAMILIES.iter().filter(|(f, _)| service.limits.why.alarmed.contains(f));
    let list: Vec<&str> = names.map(|(_, name)| *name).collect();
    if list.is_empty() { "-".into() } else { list.join(",") }
}

pub(crate) fn count(value: Option<u64>) -> String {
    value.map_or_else(|| "-".into(), |n| n.to_string())
}

pub(crate) fn rate(value: Option<f64>) -> String {
    match value {
        None => "-".into(),
        Some(v) if v < 10.0 => format!("{v:.1}"),
        Some(v) => format!("{v:.0}"),
    }
}

/// Text that cannot steer a terminal: control characters are shown, not sent.
pub(crate) fn plain(text: &str) -> String {
    text.chars()
        .flat_map(|c| if c.is_control() { c.escape_default().collect() } else { vec![c] })
        .collect()
}

/// The columns that fit into a width, two spaces between them, given how wide each would be.
#[must_use]
pub fn fitting(widths: &[usize], width: usize) -> Vec<usize> {
    let mut kept: Vec<usize> = (0..COLUMNS.len().min(widths.len())).collect();
    let needed = |kept: &[usize]| kept.iter().map(|i| widths[*i] + 2).sum::<usize>();
    while needed(&kept) > width + 2 {
        let last = kept.iter().copied().max_by_key(|i| COLUMNS[*i].rank);
        match last.filter(|i| COLUMNS[*i].rank > 0) {
            Some(least) => kept.retain(|i| *i != least),
            None => break,
        }
    }
    kept
}

/// The table of all services.
#[must_use]
pub fn services_table(snapshot: &Snapshot) -> String {
    let titles: Vec<String> = COLUMNS.iter().map(|c| c.title.to_owned()).collect();
    let cells = snapshot.services.iter().map(|s| COLUMNS.iter().map(|c| (c.cell)(s)).collect());
    let rows: Vec<Vec<String>> = std::iter::once(titles).chain(cells).collect();
    let right: Vec<bool> = COLUMNS.iter().map(|c| c.number).collect();
    render_rows(&rows, &right)
}

/// Rows as aligned columns, two spaces between them; `right` names the columns of numbers.
#[must_use]
pub fn render_rows(rows: &[Vec<String>], right: &[bool]) -> String {
    let mut table = Table::new();
    table.load_style(presets::NOTHING).add_rows(rows);
    for (i, column) in table.column_iter_mut().enumerate() {
        column.set_padding((if i == 0 { 0 } else { 1 }, 1));
        if right.get(i).copied().unwrap_or_default() {
            column.set_cell_alignment(CellAlignment::Right);
        }
    }
    table.trim_fmt() + "\n"
}

#[cfg(test)]
mod tests {
    use super::*;

    /// By columns of the terminal: a letter may take two, or none of its own.
    #[test]
    fn columns_stand_below_each_other() {
        let row = |cells: [&str; 3]| cells.map(str::to_owned).to_vec();
        let rows = [row(["name", "n", "last"]), row(["店", "10", ""]), row(["e\u{301}", "9", "x"])];
        let wanted = "name   n  last\n店    10\ne\u{301}      9  x\n";
        assert_eq!(render_rows(&rows, &[false, true]), wanted);
    }
}
