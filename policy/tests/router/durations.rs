// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Histograms of durations by size class: every bound on both sides, and a reference by division.

use proptest::prelude::*;
use tidegate_policy::Durations;
use tidegate_units::Nanos;

#[test]
fn classes_are_powers_of_two() {
    let rows = [
        (0, 0),
        (511, 0),
        (512, 1),
        (1023, 1),
        (1024, 2),
        (4095, 3),
        (4096, 4),
        (8 << 20, 15),
        ((8 << 20) - 1, 14),
        (u64::MAX, 15),
    ];
    for (bytes, class) in rows {
        assert_eq!(Durations::class_of(bytes), class, "{bytes} bytes");
    }
}

#[test]
fn buckets_are_quarters_of_powers_of_two() {
    let us = Nanos::from_micros;
    let rows =
        [(0, 0), (255, 0), (256, 0), (319, 0), (320, 1), (383, 1), (384, 2), (448, 3), (512, 4)];
    for (took, bucket) in rows {
        assert_eq!(Durations::bucket_of(us(took)), bucket, "{took} us");
    }
    assert_eq!(Durations::bucket_of(Nanos(u64::MAX)), Durations::BUCKETS - 1);
    for bucket in 1..Durations::BUCKETS {
        let from = Durations::from(bucket);
        assert_eq!(Durations::bucket_of(from), bucket);
        assert_eq!(Durations::bucket_of(Nanos(from.0 - 1)), bucket - 1);
        let ratio = from.as_secs_f64() / Durations::from(bucket - 1).as_secs_f64();
        assert!(bucket == 1 || (1.14..=1.26).contains(&ratio), "{bucket}: {ratio}");
    }
    assert_eq!(Durations::from(0), Nanos::ZERO);
    assert_eq!(Durations::from(usize::MAX), Durations::from(Durations::BUCKETS - 1));
    assert!(Durations::from(Durations::BUCKETS - 1) > Nanos::from_secs(14));
}

proptest! {
    /// An exchange is counted once, in the class and the bucket that a comparison of bounds gives.
    #[test]
    fn each_exchange_is_counted_where_it_belongs(
        exchanges in prop::collection::vec((0_u64..20_000_000, 0_u64..30_000_000), 0..200),
    ) {
        let mut durations = Durations::default();
        let mut expected = vec![[0_u32; Durations::BUCKETS]; Durations::CLASSES];
        for (bytes, us) in exchanges {
            durations.add(bytes, Nanos::from_micros(us));
            let class = (1..16).filter(|class| bytes >= 256 << class).count();
            let bucket = (1..64).filter(|b| us >= Durations::from(*b).0 / 1000).count();
            expected[class][bucket] += 1;
        }
        for (class, counts) in expected.iter().enumerate() {
            prop_assert_eq!(durations.class(class), counts);
        }
    }
}
