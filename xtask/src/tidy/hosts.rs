// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Every address on the Web that is named here is one that a stranger can reach: a mirror or a
//! registry of somebody's own network is not.

use super::tree::File;
use super::{Problem, Repository};

/// Hosts that may be named. Add one here if it is public and will last.
const PUBLIC: [&str; 23] = [
    "github.com",
    "crates.io",
    "docs.rs",
    "rustup.rs",
    "doc.rust-lang.org",
    "kernel.org",
    "debian.org",
    "spdx.org",
    "apache.org",
    "gnu.org",
    "w3.org",
    "json-schema.org",
    "rfc-editor.org",
    "ietf.org",
    "iana.org",
    "keepachangelog.com",
    "semver.org",
    "doi.org",
    "envoyproxy.io",
    "nginx.org",
    "haproxy.org",
    "cloud.google.com",
    "learn.microsoft.com",
];
/// Names that are kept for examples, and the machine itself.
const EXAMPLES: [&str; 7] =
    ["example", "example.com", "example.org", "example.net", "test", "invalid", "localhost"];
/// Upstreams of packaging/nginx.conf, nginx's word before the path of a socket, and a Service of packaging/kubernetes,
/// which are no hosts.
const UPSTREAMS: [&str; 4] =
    ["application", "tidegate", "unix", "tidegate.tidegate.svc.cluster.local"];
/// Texts of others, unchanged.
const FOREIGN: [&str; 4] = ["LICENSE-APACHE", "LICENSE-MIT", "LICENSES/", "bpf/vmlinux/"];

pub(super) fn check(repository: &Repository) -> Vec<Problem> {
    let files = repository
        .tree
        .files()
        .iter()
        .filter(|file| !FOREIGN.iter().any(|path| file.path.starts_with(path)));
    files.flat_map(check_file).collect()
}

fn check_file(file: &File) -> Vec<Problem> {
    let hosts = file.lines().flat_map(|(line, text)| hosts(text).map(move |host| (line, host)));
    hosts
        .filter(|(_, host)| !is_fine(host))
        .map(|(line, host)| Problem {
            path: file.path.clone(),
            line,
            what: format!("host `{host}` is not on the list of public ones"),
            why: "a stranger cannot reach somebody's own network",
            fix: "take it out; or, if it is public, add it in xtask/src/tidy/hosts.rs".to_owned(),
        })
        .collect()
}

/// What stands behind `http://` or `https://`, up to the end of the host.
fn hosts(text: &str) -> impl Iterator<Item = &str> {
    ["http://", "https://"].into_iter().flat_map(move |scheme| {
        text.split(scheme).skip(1).map(|rest| {
            let is_host = |letter: char| letter.is_alphanumeric() || ".-_".contains(letter);
            let end = rest.find(|letter| !is_host(letter)).unwrap_or(rest.len());
            rest[..end].trim_end_matches('.')
        })
    })
}

fn is_fine(host: &str) -> bool {
    let is_below = |name: &&str| {
        host == *name || host.strip_suffix(*name).is_some_and(|rest| rest.ends_with('.'))
    };
    // Nothing: a placeholder or an IPv6 address in brackets. Digits: an IPv4 address.
    host.is_empty()
        || host.chars().all(|letter| letter.is_ascii_digit() || letter == '.')
        || PUBLIC.iter().any(is_below)
        || EXAMPLES.iter().any(is_below)
        || UPSTREAMS.contains(&host)
}

#[cfg(test)]
mod tests {
    use super::super::tree::Tree;
    use super::*;

    #[test]
    fn only_public_hosts_and_examples_are_named() {
        for (url, found) in [
            ("https://github.com/a/b", 0),
            ("<https://www.rfc-editor.org/rfc/rfc9293>.", 0),
            ("http://127.0.0.1:7118/metrics", 0),
            ("http://[::1]:80/", 0),
            ("http://{address}/", 0),
            ("http://shop.example/", 0),
            (concat!("https", "://mirror.corp/crates"), 1),
            (concat!("http", "://notgithub.com and ", "https", "://a.b/"), 2),
        ] {
            let tree = Tree::of(&[("docs/a.md", url)]);
            let repository = Repository { tree, packages: Vec::new() };
            assert_eq!(check(&repository).len(), found, "{url}");
        }
    }
}
