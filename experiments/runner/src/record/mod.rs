// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What the metrics of an overload tell, scraped now and then, beside what its clients saw.

mod run;

pub use run::{Extent, Scenario, run};
