// SPDX-License-Identifier: Apache-2.0 OR MIT
//! One setting. The defaults are the paper's where it prints a number, else ours with a reason.

use tidegate_control::crowd::PublishedSpec;
use tidegate_policy::CrowdAction;
use tidegate_units::Nanos;

/// What is in force at the router.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Control {
    /// Nothing.
    None,
    /// A limit set by hand.
    Static(Static),
    /// The published detector and control, one bucket for all destinations.
    Published(PublishedSpec),
    /// The same with hot spots: the published list, and its rule for bystanders.
    PublishedHot(PublishedSpec),
    /// Ours.
    Fast,
}

/// A limit set by hand, on new connections to the crowd's server only.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Static {
    /// Connections per second.
    pub rate: f64,
    /// Bucket.
    pub burst: u32,
}

/// A server.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct ServerSpec {
    /// Responses per second; infinite: at once.
    pub capacity: f64,
    /// Workers: connections that are accepted and not yet responded to.
    pub workers: usize,
    /// Requests in service from which on memory does not suffice; 0: it always does.
    pub knee: usize,
    /// How much slower it gets: at twice the knee the capacity is divided by 1 + this.
    pub thrash: f64,
    /// Seconds that a request takes at least, however few there are: it waits for something else.
    pub least_s: f64,
}

impl ServerSpec {
    /// S1: 2–3 % of its CPU are used.
    pub const FAST: Self =
        Self { capacity: f64::INFINITY, workers: usize::MAX, knee: 0, thrash: 0.0, least_s: 0.0 };

    /// S2: memory-limited. It swaps from some requests in service on, with a pool of workers as large as
    /// TUX would have. The paper prints no numbers: a knee of 24 is what 128 MB held beside the kernel
    /// at 4 MB a worker, and at 96 in service it is 2.5 times as slow.
    #[must_use]
    pub const fn memory(capacity: f64) -> Self {
        Self { capacity, workers: 96, knee: 24, thrash: 0.5, least_s: 0.0 }
    }

    /// S2 as it is in the lab: a request keeps its pages for a while, there is memory for those of twenty, and beyond
    /// that they come from a disk. There, with all 96 workers taken, it was seen to be 1.3 times as slow.
    #[must_use]
    pub const fn pages(capacity: f64) -> Self {
        Self { capacity, workers: 96, knee: 20, thrash: 0.08, least_s: 20.0 / capacity }
    }

    /// Limited by its CPU (the paper's future work), which requests share.
    #[must_use]
    pub const fn cpu(capacity: f64) -> Self {
        Self { capacity, workers: 256, knee: 0, thrash: 0.0, least_s: 0.0 }
    }
}

/// Which TCP and which clients.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Protocol {
    /// As around 2003: SYNs at 0, 3, 9 s, an initial window of 2.
    Classic,
    /// A mixture of today's, with an initial window of 10.
    Today,
}

/// Who else is there.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Bystander {
    /// Nobody.
    None,
    /// B1 asks S3 for pages, so many per second.
    Web(f64),
    /// S3 sends 8-KB chunks to B1, paced at so many bits per second.
    Bulk(f64),
}

/// One setting.
#[derive(Clone, Debug, PartialEq)]
pub struct NewsSpec {
    /// Seed: arrivals, sizes, places, losses.
    pub seed: u64,
    /// Clients of the crowd's server that come in each period.
    pub counts: Vec<u64>,
    /// Length of a period.
    pub period: Nanos,
    /// Bits per second of the bottleneck (2 Mbit/s).
    pub link: u64,
    /// Packets that wait in front of it. Not printed; 50 is the usual queue of that time.
    pub queue: u32,
    /// The crowd's server.
    pub server: ServerSpec,
    /// From then on its capacity is divided by this: a dependency slows.
    pub slows: Option<(Nanos, f64)>,
    /// TCP of all.
    pub protocol: Protocol,
    /// Mean size of a response in bytes: 2 Mbit/s over the 55.9 responses per second of section 5.2.
    pub size: f64,
    /// Its coefficient of variation. Not printed. With 2 the largest twentieth have some 16 KB, of
    /// which an ARR of 260 kbit/s can come.
    pub size_cv: f64,
    /// From then on sizes are multiplied by this: another mix.
    pub resized: Option<(Nanos, f64)>,
    /// Who else is there.
    pub bystander: Bystander,
    /// Clients without a response leave after this: the third SYN of the time comes after 9 s.
    pub patience: Nanos,
    /// A response within this time of the client's first SYN is good.
    pub objective: Nanos,
    /// What is in force.
    pub control: Control,
    /// How ours refuses.
    pub action: CrowdAction,
    /// Published detectors that only watch. Ours watches always.
    pub watched: Vec<PublishedSpec>,
    /// Share of the connections that are the fastest ones (5 % in the text, 10 % in the authors' code).
    pub fastest: f64,
    /// Connections that the router knows at once, at most.
    pub flows: usize,
    /// Spoofed SYNs per second to S3 (from its beginning to its end).
    pub spoofed: Option<(f64, Nanos, Nanos)>,
    /// What is counted: clients that come from the first to the last.
    pub window: (Nanos, Nanos),
}

impl NewsSpec {
    /// The paper's, with these arrivals.
    #[must_use]
    pub fn new(seed: u64, counts: Vec<u64>, period: Nanos) -> Self {
        let until = Nanos(period.0.saturating_mul(counts.len() as u64));
        Self {
            seed,
            counts,
            period,
            link: 2_000_000,
            queue: 50,
            server: ServerSpec::FAST,
            slows: None,
            protocol: Protocol::Classic,
            size: 4_472.0,
            size_cv: 2.0,
            resized: None,
            bystander: Bystander::None,
            patience: Nanos::from_secs(10),
            objective: Nanos::from_secs(2),
            control: Control::None,
            action: CrowdAction::Drop,
            watched: Vec::new(),
            fastest: 0.1,
            flows: 1 << 16,
            spoofed: None,
            window: (Nanos::ZERO, until),
        }
    }

    /// When the last client comes.
    #[must_use]
    pub fn lasts(&self) -> Nanos {
        Nanos(self.period.0.saturating_mul(self.counts.len() as u64))
    }
}
