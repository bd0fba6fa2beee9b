// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Which route a request meets: by the matcher of request rules, and by a header beside it.

use super::{HeaderMatch, RouteConfig};
use crate::requests::{RequestHead, RuleConfig, Unevaluated};

/// What came out for a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Routed {
    /// The route with this place in `routes`.
    Route(usize),
    /// No route matches.
    None,
    /// A route asks for what is not looked at.
    Unevaluable(Unevaluated),
}

/// The routes of one gateway, in the order in which they are compared.
#[derive(Clone, Debug, Default)]
pub struct Router {
    routes: Vec<(usize, RuleConfig, Option<HeaderMatch>)>,
}

impl Router {
    /// The routes of a gateway: the longest path first, then the order of the file.
    #[must_use]
    pub fn new(routes: &[RouteConfig]) -> Self {
        let of =
            |(index, route): (usize, &RouteConfig)| (index, route.as_rule(), route.header.clone());
        let mut routes: Vec<_> = routes.iter().enumerate().map(of).collect();
        let length = |rule: &RuleConfig| rule.path.as_ref().map_or(0, |path| path.as_str().len());
        routes.sort_by_key(|(_, rule, _)| std::cmp::Reverse(length(rule)));
        Self { routes }
    }

    /// The route that a request meets; `header` gives the value of a header, if it has one.
    pub fn select<'a>(
        &self,
        head: &RequestHead,
        header: impl Fn(&str) -> Option<&'a str>,
    ) -> Routed {
        for (index, rule, wanted) in &self.routes {
            if !rule.path.as_ref().is_some_and(|path| path.begins(&head.path)) {
                continue;
            }
            if rule.depends(head).is_some() {
                return Routed::Unevaluable(Unevaluated::Split);
            }
            let has = |wanted: &HeaderMatch| wanted.matches(header(&wanted.name));
            if rule.meets(head) && wanted.as_ref().is_none_or(has) {
                return Routed::Route(*index);
            }
        }
        Routed::None
    }

    /// The route of a request whose path cannot be told: of those whose other conditions it meets, the
    /// one with the shortest path. Without a readable host (`nameless`) the last route of all, if it meets
    /// none. Who writes a request so chooses that, and shall not choose to go past all limits.
    pub fn nearest<'a>(
        &self,
        head: &RequestHead,
        nameless: bool,
        header: impl Fn(&str) -> Option<&'a str>,
    ) -> Routed {
        let has = |wanted: &HeaderMatch| wanted.matches(header(&wanted.name));
        let met = self
            .routes
            .iter()
            .rev()
            .find(|(_, rule, wanted)| rule.meets(head) && wanted.as_ref().is_none_or(has));
        let last = if nameless { self.routes.last() } else { None };
        met.or(last).map_or(Routed::None, |(index, ..)| Routed::Route(*index))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::requests::{Cookie, RequestsConfig};

    fn route(path: &str, more: impl FnOnce(&mut RouteConfig)) -> RouteConfig {
        let mut route = RouteConfig {
            path: Some(path.parse().unwrap()),
            service: "shop".into(),
            ..RouteConfig::default()
        };
        more(&mut route);
        route
    }

    fn routes() -> Vec<RouteConfig> {
        vec![
            route("/", |_| {}),
            route("/cart/", |r| r.methods = vec![crate::Method::Post]),
            route("/cart/", |r| {
                r.header = Some(HeaderMatch { name: "X-Tier".into(), value: Some("gold".into()) });
            }),
            route("/api/", |r| r.host = Some("*.shop.example".parse().unwrap())),
        ]
    }

    #[test]
    fn the_longest_path_wins_and_a_header_is_one_more_condition() {
        let router = Router::new(&routes());
        let select = |method: &str, host: &str, target: &str, tier: Option<&'static str>| {
            let head = RequestHead::of(method, Some(host), target, &[]).unwrap();
            router.select(&head, |name| tier.filter(|_| name == "X-Tier"))
        };
        for (method, host, target, tier, route) in [
            ("GET", "a", "/", None, 0),
            ("POST", "a", "/cart/1", None, 1),
            ("POST", "a", "/cart/1", Some("gold"), 1),
            ("GET", "a", "/cart/1", Some("gold"), 2),
            ("GET", "a", "/cart/1", Some("silver"), 0),
            ("GET", "a.shop.example:443", "/api/x?y", None, 3),
            ("GET", "a", "/%61pi/x", None, 0),
        ] {
            let found = select(method, host, target, tier);
            assert_eq!(found, Routed::Route(route), "{method} {host} {target} {tier:?}");
        }
        let some = Router::new(&routes()[1..2]);
        let head = RequestHead::of("GET", None, "/", &[]).unwrap();
        assert_eq!(some.select(&head, |_| None), Routed::None);
    }

    /// Of `/api/` and `/cart/` nobody knows which is meant, so it is neither.
    #[test]
    fn without_a_path_the_shortest_that_fits_is_taken() {
        let router = Router::new(&routes());
        let head = |host| RequestHead::of("GET", host, "/", &[]).unwrap();
        assert_eq!(router.nearest(&head(Some("a")), false, |_| None), Routed::Route(0));
        let some = Router::new(&routes()[3..]);
        assert_eq!(some.nearest(&head(Some("x.shop.example")), false, |_| None), Routed::Route(0));
        assert_eq!(some.nearest(&head(Some("a")), false, |_| None), Routed::None, "another's");
        assert_eq!(some.nearest(&head(None), true, |_| None), Routed::Route(0));
        assert_eq!(Router::new(&[]).nearest(&head(None), true, |_| None), Routed::None);
    }

    /// The same rules, as the dataplane's choice is shown: no other rule comes out.
    #[test]
    fn it_is_the_choice_of_request_rules() {
        let routes: Vec<RouteConfig> =
            routes().into_iter().filter(|route| route.header.is_none()).collect();
        let rules = RequestsConfig {
            rules: routes.iter().map(RouteConfig::as_rule).collect(),
            ..RequestsConfig::default()
        };
        let router = Router::new(&routes);
        for method in ["GET", "POST", "BREW"] {
            for host in [None, Some("x.shop.example"), Some("shop.example")] {
                for target in ["/", "/cart/", "/cart/a/../b", "/api/../cart/x", "/api/a"] {
                    let head = RequestHead::of(method, host, target, &["s=1"]).unwrap();
                    let shown = rules.select(&head).rule.map_or(Routed::None, Routed::Route);
                    assert_eq!(router.select(&head, |_| None), shown, "{method} {host:?} {target}");
                }
            }
        }
        assert!(rules.rules.iter().all(|rule| rule.protect == Vec::<Cookie>::new()));
        // Without a path there is no choice: the nearest route is taken.
        for target in ["*", "", "shop.example:443", "x"] {
            assert!(RequestHead::of("GET", None, target, &[]).is_err(), "{target:?}");
        }
    }
}
