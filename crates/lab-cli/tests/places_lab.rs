// SPDX-License-Identifier: Apache-2.0 OR MIT
//! In each place that docs/places.md calls protected an overload is shed, and clients are served: on
//! the host, in containers (bridge with DNAT, routed, macvlan; hooks outside and inside), behind a tun
//! device, behind a foreign program that lets others see, after the link was down and after another MTU.
//!
//! The wiring is drawn in lab/src/site.rs. All places run at once, on servers that only wait, so that their
//! capacity is known and a busy machine changes little. `product/places` measures a real server.

mod common;

use std::collections::BTreeSet;

/// Responses per second of the demo, as its scenario says.
const CAPACITY: f64 = 48.0;
const GOODPUT_MIN: f64 = 0.9;

#[test]
fn in_each_place_an_overload_is_shed_and_clients_are_served() {
    let values = common::experiment("product/places", &["--demo"]).at_load();
    let places: BTreeSet<&String> = values.keys().map(|[place, _]| place).collect();
    assert_eq!(places.len(), 10, "{places:?}");
    for place in places {
        let value = |metric: &str| values[&[place.clone(), metric.to_owned()]];
        assert!(value("refusals") > 0.0, "{place}: nothing is shed");
        let goodput = value("goodput");
        assert!(goodput >= GOODPUT_MIN * CAPACITY, "{place}: {goodput}/s of {CAPACITY}");
        assert!(value("queue") < 0.5, "{place}: the accept queue is full");
    }
}
