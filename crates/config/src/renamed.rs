// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Names of the configuration that were others once. An old name is an error that says the new one: there
//! is one way to say a thing.

/// The old name, how it is written now, and keys that are allowed where it stood. A row counts only there: other
/// keys may have the old name.
const RENAMED: &[(&str, &str, &[&str])] = &[
    ("never_shed", "exempt", &["exempt"]),
    ("authority", "ca_file", &["ca_file"]),
    ("tls", "server_name", &["server_name"]),
    ("from", "min", &["min"]),
    ("to", "max", &["max"]),
    ("body", "response_body", &["response_body"]),
    ("floor", "min_rate", &["min_rate"]),
    ("minimum", "min_rate", &["min_rate"]),
    // Of a rule: a policy has an action, too, and never had these.
    ("admit", "action: allow", &["action", "server_name"]),
    ("answer", "action", &["action", "server_name"]),
    ("answers", "replies", &["replies"]),
];

/// What to write in place of this word, where another one has taken its place.
pub(super) fn now(word: &str, allowed: &[impl AsRef<str>]) -> Option<String> {
    let allows = |name: &&str| allowed.iter().any(|one| one.as_ref() == *name);
    let row = RENAMED.iter().find(|(old, _, beside)| *old == word && beside.iter().all(allows));
    row.map(|(old, new, _)| match *old {
        "admit" => format!("admit: true is called {new} now; leave out admit: false"),
        _ => format!("it is called {new} now"),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Registry, parse};

    /// Each old name where it stood, in the second line of a file, and the path above it.
    const OLD: &[(&str, &str, &str)] = &[
        (
            "never_shed",
            "",
            "{services: {shop: {mode: shadow, listen: ['*:80']}}, never_shed: {ports: [22]}}",
        ),
        (
            "authority",
            "cluster",
            "{services: {shop: {mode: shadow, listen: ['*:80']}}, cluster: {certificate: /c, key: /k, authority: /a}}",
        ),
        (
            "authority",
            "gateways.edge.tls",
            "{services: {shop: {mode: shadow, listen: ['*:80']}}, gateways: {edge: {adapter: nginx, listen: '192.0.2.1:9470', tls: {certificate: /c, key: /k, authority: /a}, routes: [{service: shop}]}}}",
        ),
        (
            "tls",
            "services.shop.requests.rules[0]",
            "{services: {shop: {mode: shadow, listen: ['*:80'], requests: {buckets: {a: {resource: cpu}}, rules: [{tls: a.example, bucket: a}]}}}}",
        ),
        (
            "from",
            "services.shop.requests.retry_after",
            "{services: {shop: {mode: shadow, listen: ['*:80'], requests: {buckets: {a: {resource: cpu}}, retry_after: {from: 2s}}}}}",
        ),
        (
            "from",
            "gateways.edge.retry_after",
            "{services: {shop: {mode: shadow, listen: ['*:80']}}, gateways: {edge: {adapter: nginx, listen: '192.0.2.1:9470', retry_after: {from: 2s}, routes: [{service: shop}]}}}",
        ),
        (
            "to",
            "services.shop.requests.retry_after",
            "{services: {shop: {mode: shadow, listen: ['*:80'], requests: {buckets: {a: {resource: cpu}}, retry_after: {to: 2s}}}}}",
        ),
        (
            "to",
            "gateways.edge.retry_after",
            "{services: {shop: {mode: shadow, listen: ['*:80']}}, gateways: {edge: {adapter: nginx, listen: '192.0.2.1:9470', retry_after: {to: 2s}, routes: [{service: shop}]}}}",
        ),
        (
            "body",
            "services.shop.requests",
            "{services: {shop: {mode: shadow, listen: ['*:80'], requests: {buckets: {a: {resource: cpu}}, body: busy}}}}",
        ),
        (
            "floor",
            "services.shop.control",
            "{services: {shop: {mode: shadow, listen: ['*:80'], control: {floor: 5}}}}",
        ),
        (
            "minimum",
            "services.shop.requests.buckets.a",
            "{services: {shop: {mode: shadow, listen: ['*:80'], requests: {buckets: {a: {resource: cpu, minimum: 5}}}}}}",
        ),
        (
            "admit",
            "services.shop.requests.rules[0]",
            "{services: {shop: {mode: shadow, listen: ['*:80'], requests: {buckets: {a: {resource: cpu}}, rules: [{path: /a, admit: true}]}}}}",
        ),
        (
            "answer",
            "services.shop.requests.rules[0]",
            "{services: {shop: {mode: shadow, listen: ['*:80'], requests: {buckets: {a: {resource: cpu}}, rules: [{path: /a, bucket: a, answer: 503}]}}}}",
        ),
        (
            "answers",
            "",
            "{services: {shop: {mode: shadow, listen: ['*:80']}}, answers: {rst_per_second: 0}}",
        ),
    ];

    #[test]
    fn each_old_name_is_an_error_that_says_the_new_one_and_where() {
        let registry = Registry::new(["fresh_first"], ["default"]);
        for (old, _, beside) in RENAMED {
            let mut places = OLD.iter().filter(|(name, ..)| name == old).peekable();
            assert!(places.peek().is_some(), "where stood {old}?");
            for (_, path, line) in places {
                let found = parse(&format!("# old\n{line}\n"), &registry).unwrap_err();
                let column = line.find(&format!("{old}: ")).unwrap() + 1;
                let above = if path.is_empty() { String::new() } else { format!("{path}: ") };
                let hint = now(old, beside).unwrap();
                let said = format!("2:{column}: {above}found {old}: {hint}");
                assert_eq!(found.to_string(), said, "{line}");
            }
        }
    }

    #[test]
    fn an_old_name_that_is_another_key_elsewhere_is_no_old_name_there() {
        assert_eq!(now("never_shed", &["services"]), None);
        assert_eq!(now("authority", &["ca_file"]).as_deref(), Some("it is called ca_file now"));
        let registry = Registry::new(["fresh_first"], ["default"]);
        for policy in ["admit: true", "answer: drop"] {
            let line = format!(
                "services: {{shop: {{mode: shadow, listen: ['*:80'], policy: {{name: fresh_first, {policy}}}}}}}"
            );
            let said = parse(&line, &registry).unwrap_err().to_string();
            assert!(said.contains("is unknown") && !said.contains("called"), "{said}");
        }
    }
}
