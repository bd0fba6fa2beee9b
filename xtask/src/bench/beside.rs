// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The same subjects of two builds, each pair one after the other: what a change costs.
//!
//! The other build is a worker that was made from another commit (`cargo build --release --package
//! tidegate-bpf --example bench_turns`, in a work tree of its own).

use anyhow::Result;

use super::Subject;
use super::worker::Remote;

/// What stands before the name of the other build's subject.
pub(super) const BESIDE: &str = "beside-";

/// A subject of the other build.
struct Other {
    name: String,
    subject: Remote,
}

impl Subject for Other {
    fn name(&self) -> &str {
        &self.name
    }

    fn about(&self) -> &str {
        self.subject.about()
    }

    fn measure(&mut self) -> Result<f64> {
        self.subject.measure()
    }
}

/// Ours, each with that of the other build beside it, where there is one.
pub(super) fn pairs(ours: Vec<Remote>, others: Vec<Remote>) -> Vec<Box<dyn Subject>> {
    let mut others: Vec<Option<Remote>> = others.into_iter().map(Some).collect();
    let mut all: Vec<Box<dyn Subject>> = Vec::new();
    for subject in ours {
        let same = |other: &&mut Option<Remote>| {
            other.as_ref().is_some_and(|other| other.name() == subject.name())
        };
        let other = others.iter_mut().find(same).and_then(Option::take);
        let name = format!("{BESIDE}{}", subject.name());
        all.push(Box::new(subject));
        if let Some(subject) = other {
            all.push(Box::new(Other { name, subject }));
        }
    }
    all
}

#[cfg(test)]
mod tests {
    use super::super::worker::connect;
    use super::*;
    use crate::process;

    fn worker(names: &[&str], ns: f64) -> Vec<Remote> {
        let offered: Vec<String> =
            names.iter().map(|name| format!(r#"{{"name":"{name}","about":"x"}}"#)).collect();
        let offer = format!(r#"{{"subjects":[{}]}}"#, offered.join(","));
        let script = format!(r#"echo '{offer}'; while read name; do echo '{{"ns": {ns}}}'; done"#);
        connect(process::command("sh").args(["-c", &script])).expect("a worker")
    }

    #[test]
    fn each_subject_stands_before_its_other() {
        let mut pairs = pairs(worker(&["a", "b", "c"], 1.0), worker(&["c", "a", "gone"], 2.0));
        let names: Vec<&str> = pairs.iter().map(|subject| subject.name()).collect();
        assert_eq!(names, ["a", "beside-a", "b", "c", "beside-c"]);
        let values: Vec<f64> =
            pairs.iter_mut().map(|subject| subject.measure().expect("ns")).collect();
        assert_eq!(values, [1.0, 2.0, 1.0, 1.0, 2.0]);
    }
}
