// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Laws: what is known of a service becomes its limits.
//!
//! | file | limits of | by |
//! | --- | --- | --- |
//! | `default.rs` | a service: rate, jobs in flight | the detector (../detect) |
//! | `syn.rs` | a service: rate | its accept queue (Voigt and Gunningberg, section 2.3) |
//! | `syn_by_length.rs` | the same | the same, in connections |
//! | `fixed.rs` | a service: rate | an operator's hand |
//! | `between.rs` | a service: rate | an operator's minimum rate and ceiling around another law |
//! | `bucket/` | the requests of a bucket: rate | its resource, and the service's overload |
//! | `holders.rs` | a source: silent and slow connections | who holds the server's workers |
//! | `measured.rs` | what a policy needs beside a rate: a share, the time of a request | what arrives, what completes |
//! | `dual.rs`, `dual/` | all of them together | the rest that request rules leave |

mod between;
mod bucket;
mod default;
mod dual;
mod fixed;
mod holders;
mod measured;
mod syn;
mod syn_by_length;

pub use self::between::Between;
pub use self::bucket::{
    BucketController, BucketSpec, CappedBucket, Context, DefaultBucket, Demand, Equation,
    FixedBucket, Gauge, Headroom, PaperBucket, PaperBucketSpec, Variant,
};
pub use self::default::{DefaultController, DefaultSpec};
pub use self::dual::{Cap, Dual, Interaction};
pub use self::fixed::Fixed;
pub use self::holders::Holders;
pub use self::measured::{Measured, Wants};
pub use self::syn::{Syn, SynSpec, SynVariant};
pub use self::syn_by_length::SynByLength;
