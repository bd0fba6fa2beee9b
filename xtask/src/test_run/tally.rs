// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Counts what the runners say, and how long they took.
//!
//! A test program announces itself by a heading of cargo (`Running …`, `Doc-tests …`) and ends
//! with a closing line (`test result: …`). Programs without the standard runner must print such
//! a line, too: one that prints none counts as one failed test.

use std::time::Duration;

/// Something that took time, by its name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Took {
    pub(crate) what: String,
    pub(crate) time: Duration,
}

/// The sum of all closing lines so far. Times are those since the machine started.
#[derive(Debug, Default)]
pub(crate) struct Tally {
    passed: u64,
    failed: u64,
    closing: Vec<String>,
    /// The program whose closing line is awaited.
    awaited: Option<String>,
    /// The program that runs, and since when.
    running: Option<(String, Duration)>,
    programs: Vec<Took>,
    parts: Vec<Took>,
}

impl Tally {
    /// Takes one line of output, as it was printed at this time.
    pub(crate) fn line(&mut self, line: &str, now: Duration) {
        if let Some(program) = heading(line) {
            self.begins(program, now);
            return;
        }
        let Some((passed, failed)) = counts(line) else { return };
        self.passed += passed;
        self.failed += failed;
        match self.awaited.take() {
            Some(program) => self.closing.push(format!("{program}: {line}")),
            // A doc test run closes twice: merged tests, and those that stand alone.
            None => self.closing.push(line.to_owned()),
        }
    }

    /// What follows is of this program.
    pub(crate) fn begins(&mut self, program: String, now: Duration) {
        self.end_of_programs(now);
        self.running = Some((program.clone(), now));
        self.awaited = Some(program);
    }

    /// No further line belongs to what was announced.
    pub(crate) fn end_of_programs(&mut self, now: Duration) {
        if let Some((what, since)) = self.running.take() {
            self.programs.push(Took { what, time: now.saturating_sub(since) });
        }
        if let Some(program) = self.awaited.take() {
            self.broken(&format!("{program}: ended without a closing line: counted as 1 failed"));
        }
    }

    /// Something other than a test failed: counts as one.
    pub(crate) fn broken(&mut self, what: &str) {
        self.failed += 1;
        self.note(what);
    }

    /// Stands among the closing lines and counts nothing.
    pub(crate) fn note(&mut self, what: &str) {
        self.closing.push(what.to_owned());
    }

    /// What another one counted comes after what this one did. Both have seen the end of their programs.
    pub(crate) fn add(&mut self, mut other: Self) {
        self.passed += other.passed;
        self.failed += other.failed;
        self.closing.append(&mut other.closing);
        self.programs.append(&mut other.programs);
        self.parts.append(&mut other.parts);
    }

    pub(crate) fn passed(&self) -> u64 {
        self.passed
    }

    pub(crate) fn failed(&self) -> u64 {
        self.failed
    }

    /// A part of the whole run has ended.
    pub(crate) fn part(&mut self, what: &str, time: Duration) {
        self.parts.push(Took { what: what.to_owned(), time });
    }

    /// In the order in which they ended.
    pub(crate) fn parts(&self) -> &[Took] {
        &self.parts
    }

    /// The programs that took longest, longest first.
    pub(crate) fn slowest(&self, most: usize) -> Vec<&Took> {
        let mut slowest: Vec<&Took> = self.programs.iter().collect();
        slowest.sort_by_key(|took| std::cmp::Reverse(took.time));
        slowest.truncate(most);
        slowest
    }

    /// Each with the program it belongs to.
    pub(crate) fn closing_lines(&self) -> &[String] {
        &self.closing
    }
}

/// The program that cargo announces, without the folder of build results.
fn heading(line: &str) -> Option<String> {
    let line = line.trim_start();
    if let Some(rest) = line.strip_prefix("Running ") {
        let (source, program) = rest.split_once(" (")?;
        if !program.contains("/deps/") {
            return None; // a test said so, not cargo
        }
        let name = program.trim_end_matches(')').rsplit('/').next()?;
        let name = name.rsplit_once('-').map_or(name, |(name, _hash)| name);
        let source = source.trim_start_matches("unittests ");
        return Some(if source.starts_with("src/") {
            format!("{name} ({source})")
        } else {
            source.to_owned()
        });
    }
    line.strip_prefix("Doc-tests ").map(|name| format!("doc tests of {name}"))
}

/// Passed and failed of `test result: ok. 3 passed; 0 failed; …`.
fn counts(line: &str) -> Option<(u64, u64)> {
    let (_, rest) = line.strip_prefix("test result: ")?.split_once(". ")?;
    let mut passed = None;
    let mut failed = None;
    for part in rest.split("; ") {
        match part.split_once(' ') {
            Some((number, "passed")) => passed = number.parse().ok(),
            Some((number, "failed")) => failed = number.parse().ok(),
            _ => {}
        }
    }
    Some((passed?, failed?))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tally(lines: &[&str]) -> Tally {
        let mut tally = Tally::default();
        let seconds = (0..).map(Duration::from_secs);
        lines.iter().zip(seconds).for_each(|(line, now)| tally.line(line, now));
        tally.end_of_programs(Duration::from_secs(lines.len() as u64));
        tally
    }

    const OK: &str = "test result: ok. 3 passed; 0 failed; 1 ignored; 0 measured; 0 filtered out; finished in 0.00s";
    const BAD: &str =
        "test result: FAILED. 1 passed; 2 failed; 0 ignored; 0 measured; 0 filtered out";

    #[test]
    fn closing_lines_are_added_and_named() {
        let tally = tally(&[
            "     Running unittests src/lib.rs (target/debug/deps/tidegate_units-0123abcd)",
            "test time::tests::a ... ok",
            OK,
            "     Running tests/laws.rs (target/debug/deps/laws-0123abcd)",
            BAD,
            "   Doc-tests tidegate_units",
            OK,
        ]);
        assert_eq!((tally.passed(), tally.failed()), (7, 2));
        assert_eq!(tally.closing_lines()[0], format!("tidegate_units (src/lib.rs): {OK}"));
        assert_eq!(tally.closing_lines()[1], format!("tests/laws.rs: {BAD}"));
        assert_eq!(tally.closing_lines()[2], format!("doc tests of tidegate_units: {OK}"));
    }

    #[test]
    fn a_program_takes_the_time_from_its_heading_to_the_next_one() {
        let heading =
            |name: &str| format!("     Running tests/{name}.rs (target/debug/deps/{name}-0123)");
        let tally = tally(&[
            &heading("short"),
            OK,
            &heading("long"),
            "test a ... ok",
            OK,
            "   Doc-tests tidegate_units",
            OK,
        ]);
        let took =
            |what: &str, seconds| Took { what: what.into(), time: Duration::from_secs(seconds) };
        let (long, short) = (took("tests/long.rs", 3), took("tests/short.rs", 2));
        assert_eq!(tally.slowest(2), [&long, &short]);
        assert_eq!(tally.slowest(9).last(), Some(&&took("doc tests of tidegate_units", 2)));
    }

    #[test]
    fn a_program_that_dies_counts_as_failed_in_the_middle_and_at_the_end() {
        let heading = "     Running tests/laws.rs (target/debug/deps/laws-0123abcd)";
        let tally = tally(&[heading, "test a ... ok", heading, OK, heading]);
        assert_eq!((tally.passed(), tally.failed()), (3, 2));
        assert!(tally.closing_lines()[0].contains("without a closing line"));
    }

    #[test]
    fn other_lines_count_nothing() {
        for line in
            ["", "test result", "test result: ok.", "5 passed; 0 failed", "Running late (again)"]
        {
            let tally = tally(&[line]);
            assert_eq!((tally.passed(), tally.failed()), (0, 0), "{line}");
        }
    }
}
