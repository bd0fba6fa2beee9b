// SPDX-License-Identifier: Apache-2.0 OR MIT
//! How a worker talks: one JSON value a line. It offers its subjects, then measures whichever it
//! is asked for until its input ends.

use anyhow::{Context, Result};
use serde_json::{Value, json};
use std::io::{BufRead, Write};

/// One thing that is measured again and again.
pub trait Subject {
    /// Unique in its bench: lower case, words joined by `-`.
    fn name(&self) -> &str;

    /// What the number says, for people.
    fn about(&self) -> &str;

    /// One measurement: nanoseconds per packet or refusal, in around a second at most. An error
    /// where what was measured was not what is said.
    fn measure(&mut self) -> Result<f64>;
}

/// Subjects of any kind.
pub type Subjects = Vec<Box<dyn Subject>>;

/// Offers and measures until the input ends.
pub fn serve(subjects: &mut Subjects, input: impl BufRead, mut output: impl Write) -> Result<()> {
    let offer: Vec<Value> = subjects
        .iter()
        .map(|subject| json!({"name": subject.name(), "about": subject.about()}))
        .collect();
    say(&mut output, &json!({"subjects": offer}))?;
    for line in input.lines() {
        let name: String = serde_json::from_str(&line?).context("a name in quotes is expected")?;
        let found = subjects.iter_mut().find(|subject| subject.name() == name);
        let measured = found.context("no such subject").and_then(|subject| subject.measure());
        let answer = match measured {
            Ok(ns) => json!({"ns": ns}),
            Err(error) => json!({"error": format!("{error:#}")}),
        };
        say(&mut output, &answer)?;
    }
    Ok(())
}

fn say(output: &mut impl Write, value: &Value) -> Result<()> {
    writeln!(output, "{value}")?;
    Ok(output.flush()?)
}

/// The middle one; of an even number, the upper of the two. None of nothing.
pub fn median(mut values: Vec<f64>) -> Option<f64> {
    values.sort_by(f64::total_cmp);
    values.get(values.len() / 2).copied()
}
