// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Overlapping routes: both match some request, and neither contains the other. The file does not show at a
//! glance which one wins.

use super::{RouteConfig, covers_header};
use crate::error::step;
use crate::requests::{CookieMatch, Method, covers_cookie};
use crate::shape::Places;
use crate::system::Finding;
use crate::types::Config;
use std::cmp::Reverse;

/// What is right but perhaps not meant, as far as the file alone tells: warnings of `check`.
#[must_use]
pub fn doubts(config: &Config, places: &Places) -> Vec<Finding> {
    let mut found = Vec::new();
    for gateway in &config.gateways {
        let path = format!("gateways.{}.routes", step(&gateway.name));
        for (loses, wins) in overlaps(&gateway.routes) {
            let longer = length(&gateway.routes[wins]) > length(&gateway.routes[loses]);
            let why = if longer { "its path is longer" } else { "it comes first" };
            let line = places.of(&format!("{path}[{wins}]")).line;
            let message = format!(
                "it overlaps with routes[{wins}] (line {line}): requests that match both go there, because \
                 {why}; to change that, put a route for these requests before it"
            );
            let error = places.error(&format!("{path}[{loses}]"), message);
            found.push(Finding { error, fatal: false });
        }
    }
    found
}

/// Of each route that overlaps with one before it that leads elsewhere: its place, and that of the first
/// such.
fn overlaps(routes: &[RouteConfig]) -> Vec<(usize, usize)> {
    let mut order: Vec<usize> = (0..routes.len()).collect();
    // As the router compares them.
    order.sort_by_key(|at| Reverse(length(&routes[*at])));
    let loses_to = |(place, loses): (usize, &usize)| {
        let other = &routes[*loses];
        let wins = order[..place].iter().enumerate().find(|(before, wins)| {
            let one = &routes[**wins];
            // One of what meets both may stand before them.
            let settled = |first: &usize| contains(&routes[*first], (one, other));
            goes_to(one) != goes_to(other)
                && meet(one, other)
                && !contains(one, (other, other))
                && !contains(other, (one, one))
                && !order[..*before].iter().any(settled)
        });
        wins.map(|(_, wins)| (*loses, *wins))
    };
    let mut found: Vec<_> = order.iter().enumerate().filter_map(loses_to).collect();
    found.sort_unstable();
    found
}

fn path(route: &RouteConfig) -> &str {
    route.path.as_ref().map_or("/", |path| path.as_str())
}

fn length(route: &RouteConfig) -> usize {
    path(route).len()
}

/// Where it leads, and by what it is limited there.
fn goes_to(route: &RouteConfig) -> (&str, Option<&str>, Option<&str>, Option<u8>) {
    (&route.service, route.class.as_deref(), route.bucket.as_deref(), route.priority)
}

/// Whether some request meets both.
fn meet(one: &RouteConfig, other: &RouteConfig) -> bool {
    let hosts = match (&one.host, &other.host) {
        (Some(mine), Some(theirs)) => mine.covers(theirs) || theirs.covers(mine),
        _ => true,
    };
    let cookies = match (&one.cookie, &other.cookie) {
        (Some(mine), Some(theirs)) => cookies_meet(mine, theirs),
        _ => true,
    };
    let headers = match (&one.header, &other.header) {
        (Some(mine), Some(theirs)) => {
            !mine.name.eq_ignore_ascii_case(&theirs.name)
                || mine.value == theirs.value
                || mine.value.is_none()
                || theirs.value.is_none()
        }
        _ => true,
    };
    let paths = path(one).starts_with(path(other)) || path(other).starts_with(path(one));
    paths && methods(one, other).next().is_some() && hosts && cookies && headers
}

/// Nobody sends two values of one cookie.
fn cookies_meet(one: &CookieMatch, other: &CookieMatch) -> bool {
    let same = one.value == other.value;
    let (there, away) = if one.absent { (other, one) } else { (one, other) };
    match (there.absent, away.absent) {
        _ if one.name != other.name => true,
        (true, true) => true,
        (false, false) => same || one.value.is_none() || other.value.is_none(),
        (false, true) | (true, false) => !same && away.value.is_some(),
    }
}

/// The methods of both.
fn methods(one: &RouteConfig, other: &RouteConfig) -> impl Iterator<Item = Method> {
    Method::ALL.into_iter().filter(move |method| takes(one, *method) && takes(other, *method))
}

fn takes(route: &RouteConfig, method: Method) -> bool {
    route.methods.is_empty() || route.methods.contains(&method)
}

/// Whether whatever meets both of the others meets this one.
fn contains(route: &RouteConfig, (one, other): (&RouteConfig, &RouteConfig)) -> bool {
    let longer = if length(one) > length(other) { path(one) } else { path(other) };
    let host = |of: &RouteConfig| match (&route.host, &of.host) {
        (None, _) => true,
        (Some(mine), Some(theirs)) => mine.covers(theirs),
        (Some(_), None) => false,
    };
    let cookie = |of: &RouteConfig| covers_cookie(route.cookie.as_ref(), of.cookie.as_ref());
    let header = |of: &RouteConfig| covers_header(route.header.as_ref(), of.header.as_ref());
    longer.starts_with(path(route))
        && methods(one, other).all(|method| takes(route, method))
        && (host(one) || host(other))
        && (cookie(one) || cookie(other))
        && (header(one) || header(other))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::requests::RequestHead;
    use crate::{Registry, Routed, Router, parse_located};

    fn located(routes: &[&str]) -> (Config, Places) {
        let mut text = "services:
  shop: {mode: shadow, classes: [{name: gold, sources: [192.0.2.0/24], priority: 0}]}
  mail: {mode: shadow}
gateways:
  edge: {adapter: envoy, listen: 'unix:/run/a', routes: [{host: a.example, service: mail}, {service: shop}]}
  door:
    adapter: envoy
    listen: unix:/run/b
    routes:
"
        .to_owned();
        routes.iter().for_each(|route| text += &format!("      - {{{route}}}\n"));
        parse_located(&text, &Registry::new(["fresh_first"], ["default"])).unwrap()
    }

    fn found(routes: &[&str]) -> Vec<(usize, usize)> {
        overlaps(&located(routes).0.gateways[1].routes)
    }

    const HOST: &str = "host: '*.shop.example', service: shop";

    /// Each pair overlaps, in either order; the request goes where the warning says.
    #[test]
    fn overlapping_routes_are_found_and_the_winner_is_the_routers() {
        for (one, other) in [
            ("path: /cart/, service: mail", HOST),
            ("path: /c, host: a.shop.example, service: mail", "path: /cart/, service: shop"),
            (
                "path: /cart/, methods: [POST], service: mail",
                "path: /cart/, host: a.shop.example, service: shop",
            ),
            ("methods: [GET, POST], service: mail", "methods: [POST, PUT], service: shop"),
            ("header: {name: X-A}, service: mail", HOST),
            (
                "header: {name: X-A}, service: mail",
                "header: {name: X-B, value: b}, service: mail, priority: 0",
            ),
            (
                "cookie: {name: s, value: '1'}, service: shop",
                "host: a.shop.example, service: shop, class: gold",
            ),
            ("cookie: {name: s}, service: shop", "cookie: {name: t, absent: true}, service: mail"),
            (
                "cookie: {name: s}, service: shop",
                "cookie: {name: s, value: '2', absent: true}, service: mail",
            ),
        ] {
            for routes in [[one, other], [other, one]] {
                let all = found(&routes);
                let [(loses, wins)] = all[..] else { panic!("{routes:?}: {all:?}") };
                assert_eq!(loses + wins, 1, "{routes:?}");
                let (config, _) = located(&routes);
                let router = Router::new(&config.gateways[1].routes);
                let header = |name: &str| Some(if name == "X-A" { "a" } else { "b" });
                let head =
                    RequestHead::of("POST", Some("a.shop.example"), "/cart/1", &["s=1"]).unwrap();
                assert_eq!(router.select(&head, header), Routed::Route(wins), "{routes:?}");
                let mut one = config.gateways[1].routes.clone();
                one.remove(wins);
                let met = Router::new(&one).select(&head, header);
                assert_eq!(met, Routed::Route(0), "it meets the other as well: {routes:?}");
            }
        }
    }

    #[test]
    fn what_is_narrower_apart_or_leads_to_the_same_is_no_doubt() {
        for routes in [
            &["path: /cart/, service: mail", "service: shop"][..],
            &["service: shop", "path: /cart/, host: a.example, service: mail"],
            &["path: /cart/, service: mail", "path: /item/, host: a.example, service: shop"],
            &["path: /cart/, service: shop", HOST],
            &["host: shop.example, service: mail", HOST],
            &["host: a.shop.example, service: mail", HOST],
            &["methods: [GET], service: mail", "methods: [POST], host: a.example, service: shop"],
            &[
                "header: {name: x-a, value: a}, service: mail",
                "header: {name: X-A, value: b}, service: shop",
            ],
            &[
                "cookie: {name: s, value: '1'}, service: mail",
                "cookie: {name: s, value: '2'}, service: shop",
            ],
            &["cookie: {name: s}, service: mail", "cookie: {name: s, absent: true}, service: shop"],
            &[
                "cookie: {name: s, value: '1'}, service: mail",
                "cookie: {name: s, value: '1', absent: true}, host: a.example, service: shop",
            ],
        ] {
            assert!(found(routes).is_empty(), "{routes:?}");
        }
    }

    /// A route for the requests that match both settles where they go.
    #[test]
    fn a_route_for_both_before_them_settles_it() {
        let (cart, both) =
            ("path: /cart/, service: mail", "path: /cart/, host: '*.shop.example', service: shop");
        assert_eq!(found(&[cart, HOST]), [(1, 0)]);
        assert!(found(&[both, cart, HOST]).is_empty());
        let some = "path: /cart/, host: '*.shop.example', methods: [GET], service: shop";
        assert_eq!(found(&[some, cart, HOST]), [(2, 1)], "others than GET are left");
    }

    #[test]
    fn the_warning_names_both_lines_and_who_wins() {
        let (config, places) =
            located(&[HOST, "path: /cart/, service: mail", "methods: [GET], service: mail"]);
        let told: Vec<String> = doubts(&config, &places)
            .iter()
            .inspect(|doubt| assert!(!doubt.fatal))
            .map(|doubt| doubt.error.to_string())
            .collect();
        assert_eq!(
            told,
            [
                "10:9: gateways.door.routes[0]: it overlaps with routes[1] (line 11): requests that match both go \
                 there, because its path is longer; to change that, put a route for these requests before it",
                "12:9: gateways.door.routes[2]: it overlaps with routes[0] (line 10): requests that match both go \
                 there, because it comes first; to change that, put a route for these requests before it",
            ]
        );
    }
}
