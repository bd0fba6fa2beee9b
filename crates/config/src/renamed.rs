// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Names of the configuration that were others once. An old name is an error that says the new one: there
//! is one way to say a thing.

/// The old name and how it is written now. A row counts only where the new name is allowed: other keys may
/// have the old one.
const RENAMED: &[(&str, &str)] = &[
    ("never_shed", "exempt"),
    ("authority", "ca_file"),
    ("tls", "server_name"),
    ("from", "min"),
    ("to", "max"),
    ("body", "response_body"),
    ("floor", "min_rate"),
    ("minimum", "min_rate"),
    ("admit", "action: allow"),
    ("answer", "action"),
    ("answers", "replies"),
];

/// How this word is written now, where one of the allowed ones has taken its place.
pub(super) fn now(word: &str, allowed: &[impl AsRef<str>]) -> Option<&'static str> {
    let allows =
        |new: &str| allowed.iter().any(|name| new.split(':').next() == Some(name.as_ref()));
    RENAMED.iter().find(|(old, new)| *old == word && allows(new)).map(|(_, new)| *new)
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
        for (old, new) in RENAMED {
            let mut places = OLD.iter().filter(|(name, ..)| name == old).peekable();
            assert!(places.peek().is_some(), "where stood {old}?");
            for (_, path, line) in places {
                let found = parse(&format!("# old\n{line}\n"), &registry).unwrap_err();
                let column = line.find(&format!("{old}: ")).unwrap() + 1;
                let above = if path.is_empty() { String::new() } else { format!("{path}: ") };
                let said = format!("2:{column}: {above}found {old}: it is called {new} now");
                assert_eq!(found.to_string(), said, "{line}");
            }
        }
    }

    #[test]
    fn an_old_name_that_is_another_key_elsewhere_is_no_old_name_there() {
        assert_eq!(now("never_shed", &["services"]), None);
    }
}
