// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The registers `policies.def` and `reasons.def` as data, and the documents that are made from them.

use std::fmt::Write as _;

use anyhow::{Context, Result, bail};

/// The register of policies.
pub(crate) const POLICIES: &str = "policy/policies.def";
/// The register of reasons.
pub(crate) const REASONS: &str = "policy/reasons.def";
/// Made from [`POLICIES`].
pub(crate) const POLICIES_PAGE: &str = "docs/policies.md";
/// Made from [`REASONS`].
pub(crate) const REASONS_PAGE: &str = "docs/reasons.md";

/// One line of policies.def.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Policy {
    /// Part of the ABI.
    pub(crate) number: u32,
    /// As in configuration, CLI and API.
    pub(crate) name: String,
    /// The events that it may be asked about: `SYN` or `ANY`.
    pub(crate) serves: String,
    /// What the event's key has to be: `NONE` or `ATTEMPT`.
    pub(crate) key: String,
    /// What it does, in a sentence.
    pub(crate) text: String,
    /// Its line in the register, from 1.
    pub(crate) line: usize,
}

/// One line of reasons.def.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Reason {
    /// Part of the ABI.
    pub(crate) number: u32,
    /// The C name behind `TG_REASON_`.
    pub(crate) constant: String,
    /// As in metrics, CLI and API.
    pub(crate) name: String,
    /// What an operator reads.
    pub(crate) text: String,
    /// The comment above the group that it belongs to.
    pub(crate) group: String,
    /// Its line in the register, from 1.
    pub(crate) line: usize,
}

/// The policies in the order of the register. Errors name the line.
pub(crate) fn policies(def: &str) -> Result<Vec<Policy>> {
    entries(def, "TG_POLICY")?
        .into_iter()
        .map(|entry| {
            let [number, name, serves, key, _, text] = entry.fields.as_slice() else {
                bail!(
                    "line {}: expected TG_POLICY(number, name, SERVES, KEY, STATE, \"text\")",
                    entry.line
                );
            };
            Ok(Policy {
                number: number.parse().with_context(|| format!("line {}", entry.line))?,
                name: name.clone(),
                serves: serves.clone(),
                key: key.clone(),
                text: text.clone(),
                line: entry.line,
            })
        })
        .collect()
}

/// The reasons in the order of the register. Errors name the line.
pub(crate) fn reasons(def: &str) -> Result<Vec<Reason>> {
    entries(def, "TG_REASON")?
        .into_iter()
        .map(|entry| {
            let [number, constant, name, text] = entry.fields.as_slice() else {
                bail!("line {}: expected TG_REASON(number, NAME, \"name\", \"text\")", entry.line);
            };
            Ok(Reason {
                number: number.parse().with_context(|| format!("line {}", entry.line))?,
                constant: constant.clone(),
                name: name.clone(),
                text: text.clone(),
                group: entry.group,
                line: entry.line,
            })
        })
        .collect()
}

/// The page about all policies.
#[must_use]
pub(crate) fn policies_page(policies: &[Policy]) -> String {
    let mut page = head("Policies", POLICIES);
    page.push_str(
        "What decides about new work, chosen per service by `policy: {name: …}` in the \
         configuration.\nA policy is one C header; the same file runs in the kernel, in user space \
         and in the simulator.\nWhat serves requests may also be the policy of a request bucket. Which policy for what is \
         told in [throttling.md](throttling.md).\n\n\
         | number | name | what it does | serves | recognises copies of a SYN | source | test |\n\
         | ---: | --- | --- | --- | --- | --- | --- |\n",
    );
    for Policy { number, name, serves, key, text, .. } in policies {
        let serves = if serves == "ANY" { "connections, requests" } else { "connections" };
        let copies = if key == "ATTEMPT" { "yes" } else { "no" };
        let _ = writeln!(
            page,
            "| {number} | `{name}` | {text} | {serves} | {copies} | [{name}.h](../policy/algo/{name}.h) | \
             [{name}.rs](../policy/tests/{name}.rs) |"
        );
    }
    page
}

/// The page about all reasons.
#[must_use]
pub(crate) fn reasons_page(reasons: &[Reason]) -> String {
    let mut page = head("Reasons", REASONS);
    page.push_str(
        "Every verdict on a SYN, and on a request at a gateway, has exactly one of these reasons: in metrics \
         (label `reason`),\nin `tidegate explain`, in samples. Numbers and names never change their \
         meaning.\n\nWhat request rules refuse at the hooks is counted by rule, bucket and rank, and not by \
         reason\n([limits](limits.md#refusals)).\n\nOf services with \
         [request rules](requests.md), a segment with data that no rule of its own could evaluate\ncounts \
         once (`tidegate_requests_unevaluated_segments_total`). Its reason is one of the last table, or one \
         of\nthe first that says the same.\n",
    );
    let mut group = "";
    for reason in reasons {
        if reason.group != group {
            group = &reason.group;
            let _ = writeln!(page, "\n## {}\n", capitalised(group));
            page.push_str("| number | reason | meaning |\n| ---: | --- | --- |\n");
        }
        let Reason { number, name, text, .. } = reason;
        let _ = writeln!(page, "| {number} | `{name}` | {text} |");
    }
    page
}

fn head(title: &str, source: &str) -> String {
    format!(
        "# {title}\n\n<!-- Made from {source} by `cargo xtask golden --bless`: edit that. -->\n\n"
    )
}

fn capitalised(text: &str) -> String {
    let mut letters = text.chars();
    letters.next().map_or(String::new(), |first| first.to_uppercase().chain(letters).collect())
}

/// One macro call of a register.
struct Entry {
    line: usize,
    group: String,
    fields: Vec<String>,
}

/// All calls of `call` that start a line. A one-line comment names the group below it.
fn entries(def: &str, call: &str) -> Result<Vec<Entry>> {
    let mut entries = Vec::new();
    let mut group = String::new();
    for (index, text) in def.lines().enumerate() {
        let line = index + 1;
        if let Some(comment) = text.strip_prefix("/* ").and_then(|text| text.strip_suffix(" */")) {
            group = comment.to_owned();
        } else if let Some(arguments) = text.strip_prefix(call) {
            let arguments = arguments
                .strip_prefix('(')
                .and_then(|text| text.trim_end().strip_suffix(')'))
                .with_context(|| format!("line {line}: expected {call}(…) on one line"))?;
            let fields = fields(arguments).with_context(|| format!("line {line}"))?;
            entries.push(Entry { line, group: group.clone(), fields });
        }
    }
    Ok(entries)
}

/// Splits at commas outside quotes; quotes are removed.
fn fields(arguments: &str) -> Result<Vec<String>> {
    let mut fields = vec![String::new()];
    let mut quoted = false;
    for letter in arguments.chars() {
        match letter {
            '"' => quoted = !quoted,
            ',' if !quoted => fields.push(String::new()),
            _ => {
                if let Some(field) = fields.last_mut() {
                    field.push(letter);
                }
            }
        }
    }
    if quoted {
        bail!("a quote is not closed");
    }
    Ok(fields.iter().map(|field| field.trim().to_owned()).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    const DEF: &str = "/* licence */\n/*\n * TG_REASON(number, ...) explained\n */\n\
        /* passed */\nTG_REASON(0, NONE, \"none\", \"not evaluated, yet\")\n\
        /* refused */\nTG_REASON(30, RATE, \"rate\", \"the bucket was empty\")\n";

    #[test]
    fn a_register_becomes_data_with_groups_and_lines() {
        let reasons = reasons(DEF).expect("well-formed");
        assert_eq!(reasons.len(), 2);
        assert_eq!(reasons[0].text, "not evaluated, yet");
        assert_eq!((reasons[0].group.as_str(), reasons[0].line), ("passed", 6));
        assert_eq!((reasons[1].number, reasons[1].constant.as_str()), (30, "RATE"));
    }

    #[test]
    fn a_bad_line_is_named() {
        for (def, what) in [
            ("\nTG_REASON(1, A)\n", "line 2"),
            ("TG_REASON(1, A, \"a\", \"b)\n", "line 1"),
            ("TG_REASON(x, A, \"a\", \"b\")\n", "line 1"),
            ("TG_REASON(1,\n", "line 1"),
        ] {
            let error = format!("{:#}", reasons(def).expect_err(def));
            assert!(error.contains(what), "{def}: {error}");
        }
    }

    #[test]
    fn the_pages_hold_every_entry() {
        let page = reasons_page(&reasons(DEF).expect("well-formed"));
        assert!(page.contains("## Passed\n") && page.contains("| 30 | `rate` |"), "{page}");
        assert!(page.contains("## Refused\n\n| number |"), "{page}");
        let list = policies("TG_POLICY(0, token_bucket, ANY, NONE, COPIED, \"a rate, a burst\")\n")
            .expect("same");
        let page = policies_page(&list);
        assert!(page.contains("| 0 | `token_bucket` | a rate, a burst |"), "{page}");
    }
}
