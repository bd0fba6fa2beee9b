// SPDX-License-Identifier: Apache-2.0 OR MIT
//! In each place that docs/places.md calls protected an overload is shed, and clients are served: on
//! the host, in containers (bridge with DNAT, routed, macvlan; hooks outside and inside), behind a tun
//! device, behind a foreign program that lets others see, after the link was down and after another MTU.
//!
//! The wiring is drawn in lab/src/site.rs. How much is served is judged by `product/places`, not here: a
//! busy machine must not fail a test. All places run at once, on servers that only wait.

mod common;

use std::collections::BTreeSet;

#[test]
fn in_each_place_an_overload_is_shed_and_clients_are_served() {
    let values = common::experiment("product/places", &["--demo"]).at_load();
    let places: BTreeSet<&String> = values.keys().map(|[place, _]| place).collect();
    assert_eq!(places.len(), 10, "{places:?}");
    for place in places {
        let value = |metric: &str| values[&[place.clone(), metric.to_owned()]];
        assert!(value("refusals") > 0.0, "{place}: nothing is shed");
        assert!(value("goodput") > 0.0, "{place}: nobody is served");
        assert!(value("queue") < 0.5, "{place}: the accept queue is full");
    }
}
