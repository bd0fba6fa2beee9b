// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What was judged, in words, numbers and a table.

use super::{Line, Outcome};
use crate::results::trimmed;

/// A number with at most four significant digits, for tables.
#[must_use]
pub fn short(value: f64) -> String {
    if value == 0.0 {
        return "0".into();
    }
    let magnitude = value.abs().log10().floor() as i32;
    trimmed(value, (3 - magnitude).clamp(0, 9) as usize)
}

/// The table that `tidegate-lab experiment judge` prints.
#[must_use]
pub fn table(lines: &[Line]) -> String {
    let cells: Vec<[String; 6]> = lines.iter().map(cells).collect();
    let head = ["claim", "source", "measured", "band", "aim", "holds"].map(str::to_string);
    let mut width = head.clone().map(|cell| cell.len());
    for row in &cells {
        for (width, cell) in width.iter_mut().zip(row) {
            *width = (*width).max(cell.chars().count());
        }
    }
    let mut text = String::new();
    for row in std::iter::once(&head).chain(&cells) {
        for (cell, width) in row.iter().zip(width) {
            let pad = width.saturating_sub(cell.chars().count());
            text.push_str(cell);
            text.push_str(&" ".repeat(pad + 2));
        }
        text.truncate(text.trim_end().len());
        text.push('\n');
    }
    text
}

/// What was measured, and whether that holds, in words.
#[must_use]
pub fn words(outcome: &Outcome) -> (String, String) {
    match outcome {
        Outcome::Holds(value) => (short(*value), "yes".to_string()),
        Outcome::Narrowly(value, half) => {
            let (value, half) = (short(*value), short(*half));
            (value, format!("yes, but the interval (± {half}) reaches beyond the band"))
        }
        Outcome::TooWide(value, half) => (
            short(*value),
            format!("NO: the interval (± {}) reaches beyond the band", short(*half)),
        ),
        Outcome::Reported(least, most, place) => {
            let (least, most) = (short(*least), short(*most));
            let text = if least == most { most } else { format!("{least} to {most} ({place})") };
            (text, "–".to_string())
        }
        Outcome::Despite(value, place, drift) => {
            let drift = 100.0 * drift;
            (short(*value), format!("yes, also with C's drift of {drift:.0} % ({place}) on it"))
        }
        Outcome::Repeated(value, half, place, drift) => {
            let (half, drift) = (short(*half), 100.0 * drift);
            let text = format!(
                "yes, with the interval (± {half}) over rounds in which C drifted by {drift:.0} % ({place})"
            );
            (short(*value), text)
        }
        Outcome::Unsteady(value, place, drift) => {
            let drift = 100.0 * drift;
            (short(*value), format!("not steady (C drifted by {drift:.0} %: {place})"))
        }
        Outcome::Fails(value, place) => (short(*value), format!("NO ({place})")),
        Outcome::Missing(what) => ("-".into(), format!("NOT MEASURED: {what}")),
        Outcome::Synthetic(place) => {
            ("-".into(), format!("NO: synthetic arrivals in place of real traces ({place})"))
        }
        Outcome::NotJudged => ("-".into(), "not judged in a quick run".into()),
        Outcome::OtherWorld => ("-".into(), "judged in the other world".into()),
    }
}

fn cells(line: &Line) -> [String; 6] {
    let (measured, holds) = words(&line.outcome);
    [line.says.clone(), line.source.clone(), measured, line.band.clone(), line.aim.clone(), holds]
}
