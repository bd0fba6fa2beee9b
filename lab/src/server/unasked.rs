// SPDX-License-Identifier: Apache-2.0 OR MIT
//! How many requests a proxy passed because it had no answer of the gate, by what the proxy itself counts. The
//! gate cannot know: of an answer that came too late it believes that it was asked.

use super::count_lines;
use super::front::ask;
use crate::error::{LabError, Result};
use std::path::PathBuf;

/// HAProxy's rules that count them, behind the question; `failed` is set by the agent of the example.
pub(super) const HAPROXY_RULES: &str = "    http-request track-sc0 int(1) table unasked if { var(txn.tidegate.failed) -m found }\n    \
     http-request sc-inc-gpc0(0) if { var(txn.tidegate.failed) -m found }\n";
/// Where HAProxy counts them.
pub(super) const HAPROXY_TABLE: &str =
    "backend unasked\n    stick-table type integer size 1 expire 1h store gpc0\n";

/// Where a proxy counts them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Unasked {
    /// nginx writes a line for each into its log of errors.
    Nginx(PathBuf),
    /// HAProxy's administration socket shows the table of [`HAPROXY_RULES`].
    Haproxy(PathBuf),
    /// Envoy's administration socket shows the counters of its filter.
    Envoy(PathBuf),
}

impl Unasked {
    /// Requests since the proxy began.
    pub(crate) fn count(&self) -> Result<u64> {
        match self {
            Self::Nginx(log) => count_lines(log, is_of_the_question),
            Self::Haproxy(socket) => haproxy(&ask(socket, b"show table unasked\n")?),
            Self::Envoy(socket) => {
                let request =
                    b"GET /stats?usedonly&filter=failure_mode_allowed HTTP/1.1\r\nHost: admin\r\n\
                                Connection: close\r\n\r\n";
                envoy(&ask(socket, request)?)
            }
        }
    }
}

/// A line of nginx about a question that it could not ask, or whose answer did not come.
fn is_of_the_question(line: &str) -> bool {
    line.contains("[error]") && line.contains("subrequest: \"/tidegate\"")
}

fn haproxy(text: &str) -> Result<u64> {
    let missing =
        || LabError::Missing(format!("HAProxy's table of who passed unasked in {text:?}"));
    if !text.contains("# table: unasked") {
        return Err(missing());
    }
    // Without a row nobody has.
    let Some((_, count)) = text.split_once("gpc0=") else { return Ok(0) };
    count.split_whitespace().next().and_then(|count| count.parse().ok()).ok_or_else(missing)
}

/// The filter counts for its listener, and for each cluster that it led to; what was never used is not shown.
fn envoy(text: &str) -> Result<u64> {
    if !text.starts_with("HTTP/1.1 200") {
        return Err(LabError::Missing(format!("Envoy's counters in {text:?}")));
    }
    let of_listeners = text.lines().filter(|line| line.starts_with("http."));
    let counts =
        of_listeners.filter_map(|line| line.trim().split_once(": ")?.1.parse::<u64>().ok());
    Ok(counts.sum())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_proxy_says_it_its_own_way() {
        let late = "2026/11/27 10:00:00 [error] 7#7: *1 upstream timed out (110: Connection timed out) while reading \
                    response header from upstream, client: 10.81.0.2, server: , request: \"GET / HTTP/1.1\", \
                    subrequest: \"/tidegate\", upstream: \"http://unix:/run/tidegate/edge.sock:/tidegate\"";
        assert!(is_of_the_question(late));
        assert!(!is_of_the_question(&late.replace("/tidegate\", upstream", "/other\", upstream")));
        let table = "# table: unasked, type: integer, size:1, used:1\n\
                     0x55: key=1 use=0 exp=3599000 gpc0=17\n\n";
        assert_eq!(haproxy(table).unwrap(), 17);
        assert_eq!(haproxy("# table: unasked, type: integer, size:1, used:0\n\n").unwrap(), 0);
        assert!(haproxy("No such table\n").is_err());
        let stats = "HTTP/1.1 200 OK\r\ncontent-type: text/plain\r\n\r\n\
                     cluster.application.ext_authz.failure_mode_allowed: 5\n\
                     http.http.ext_authz.failure_mode_allowed: 5\n";
        assert_eq!(envoy(stats).unwrap(), 5);
        assert_eq!(envoy("HTTP/1.1 200 OK\r\n\r\n").unwrap(), 0);
        assert!(envoy("HTTP/1.1 404 Not Found\r\n\r\n").is_err());
    }
}
