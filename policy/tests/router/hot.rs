// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Hot spots: the guarantees of Space-Saving against exact counts, whatever arrives; the published list;
//! and that a crowd of rare destinations hides nobody.

use proptest::prelude::*;
use std::collections::BTreeMap;
use tidegate_policy::{AgedHotSpots, HotSpots};
use tidegate_units::{Nanos, Share};

fn exact(keys: &[u64]) -> BTreeMap<u64, u32> {
    let mut counts = BTreeMap::new();
    keys.iter().for_each(|key| *counts.entry(*key).or_insert(0) += 1);
    counts
}

/// Keys of a crowd: some few often, many rarely.
fn keys() -> impl Strategy<Value = Vec<u64>> {
    let few = 1_u64..6;
    let many = 6_u64..2_000;
    prop::collection::vec(prop_oneof![few, many], 1..2_000)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    /// count − over ≤ hits ≤ count, over ≤ n/m, and whoever has more than n/m is in the list.
    #[test]
    fn the_guarantees_hold(keys in keys()) {
        let mut hot = HotSpots::default();
        keys.iter().for_each(|key| hot.hit(*key));
        let (n, m) = (keys.len() as u32, HotSpots::ENTRIES as u32);
        prop_assert_eq!(hot.all(), n);
        for (key, hits) in exact(&keys) {
            let (certain, most) = (hot.certain(key), hot.at_most(key));
            prop_assert!(certain <= hits, "{}: {} of {}", key, certain, hits);
            if most > 0 {
                prop_assert!(hits <= most && most - certain <= n / m, "{}: {} {}", key, hits, most);
            } else {
                prop_assert!(hits <= n / m, "{} with {} of {} is missing", key, hits, n);
            }
        }
    }

    /// After any number of halvings they hold for halved hits, but for a rounding each time.
    #[test]
    fn they_hold_for_what_fades(parts in prop::collection::vec(keys(), 1..6)) {
        let mut hot = HotSpots::default();
        let mut exact_hits: BTreeMap<u64, f64> = BTreeMap::new();
        for keys in &parts {
            for key in keys {
                hot.hit(*key);
                *exact_hits.entry(*key).or_insert(0.0) += 1.0;
            }
            hot.fade();
            exact_hits.values_mut().for_each(|hits| *hits /= 2.0);
        }
        for (key, hits) in exact_hits {
            prop_assert!(f64::from(hot.certain(key)) <= hits);
            let most = hot.at_most(key);
            prop_assert!(most == 0 || f64::from(most) >= hits - 1e-9, "{}: {} {}", key, most, hits);
        }
    }

    /// A share is hot for certain, or not; the same hits, the same list.
    #[test]
    fn who_is_called_hot_has_the_share(keys in keys(), share in 0.01_f64..0.9) {
        let (mut hot, mut again) = (HotSpots::default(), HotSpots::default());
        keys.iter().for_each(|key| hot.hit(*key));
        keys.iter().for_each(|key| again.hit(*key));
        prop_assert_eq!(&hot, &again);
        let counts = exact(&keys);
        for key in hot.hot(Share::new(share)) {
            let of_all = f64::from(counts[&key]) / keys.len() as f64;
            prop_assert!(of_all > share - 2e-5, "{} has {} of {}", key, of_all, share);
        }
    }
}

#[test]
fn a_flood_over_many_destinations_hides_no_hot_one() {
    let mut hot = HotSpots::default();
    for n in 0..100_000_u64 {
        hot.hit(1_000 + n); // each a destination of its own
        if n % 4 == 0 {
            hot.hit(7);
        }
        if n % 5 == 0 {
            hot.hit(8);
        }
    }
    assert_eq!(hot.hot(Share::new(0.1)), [7, 8], "several at once");
    assert!(!hot.is_hot(7, Share::new(0.2)) && !hot.is_hot(1_000, Share::new(0.0001)));
    assert_eq!((hot.certain(0), hot.at_most(0)), (0, 0), "nobody");
}

#[test]
fn the_key_of_nobody_is_not_counted() {
    let mut hot = HotSpots::default();
    (0..100).for_each(|_| hot.hit(0));
    assert_eq!(hot, HotSpots::default());
}

#[test]
fn admissions_are_shared_out_among_all_and_fade() {
    let mut hot = HotSpots::default();
    [1, 2, 3].iter().for_each(|key| hot.hit(*key));
    assert!(hot.admitted_share(1).get() <= 0.0, "of nothing");
    for (key, times) in [(1, 30), (2, 10), (99, 60)] {
        (0..times).for_each(|_| hot.admitted(key)); // 99 is not in the list
    }
    let share = |hot: &HotSpots, key| hot.admitted_share(key).get();
    assert!((share(&hot, 1) - 0.3).abs() < 1e-4 && (share(&hot, 2) - 0.1).abs() < 1e-4);
    assert!(share(&hot, 99) <= 0.0);
    hot.fade();
    assert!((share(&hot, 1) - 0.3).abs() < 1e-4, "shares stay");
}

/// The published list: the address with most hits, entries that age, and what collides is not seen.
#[test]
fn the_published_list_names_the_address_with_most_hits() {
    let all = Share::new(1.0);
    let at = Nanos::from_secs;
    let mut aged = AgedHotSpots::new(all, 60);
    assert_eq!(aged.top(at(0)), None);
    for n in 0..90 {
        aged.hit(1, n, at(10));
        if n % 3 == 0 {
            aged.hit(2, n, at(10));
        }
    }
    assert_eq!(aged.top(at(69)), Some(1));
    aged.hit(2, 0, at(69));
    assert_eq!(aged.top(at(70)), Some(2), "1 was not hit for a minute");
    assert_eq!(aged.top(at(129)), None);
    // 33 has the place of 1: it is seen only once that is free.
    let mut aged = AgedHotSpots::new(all, 60);
    aged.hit(1, 0, at(0));
    (0..100).for_each(|n| aged.hit(33, n, at(30)));
    assert_eq!(aged.top(at(30)), Some(1));
    aged.hit(33, 0, at(60));
    assert_eq!(aged.top(at(60)), Some(33));
}

#[test]
fn the_published_list_samples() {
    let mut aged = AgedHotSpots::new(Share::new(0.25), 60);
    (0..65_536_u32).for_each(|random| aged.hit(5, random, Nanos::ZERO));
    let mut whole = AgedHotSpots::new(Share::new(1.0), 60);
    (0..16_384_u32).for_each(|random| whole.hit(5, random, Nanos::ZERO));
    let text = |list: &AgedHotSpots| format!("{list:?}").replace("sample: 16384", "sample: 65536");
    assert_eq!(text(&aged), text(&whole), "a quarter of the hits");
    aged.fade();
    assert_eq!(aged.top(Nanos::ZERO), Some(5));
}
