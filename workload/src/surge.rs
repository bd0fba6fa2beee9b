// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Requests for files as SURGE makes them (Barford and Crovella 1998), as the experiments of dual
//! admission control use them (Voigt and Gunningberg, section 3.1): file sizes with a heavy tail,
//! sizes of what is requested with a heavy tail, popularity by Zipf's law. Files above 50 KB lie in
//! a directory of their own, and a share of the requests for the others is dynamic: a program that
//! answers with as many random characters.
//!
//! The catalogue is the same on every machine and needs no seed: sizes are the quantiles of their
//! distribution, and popularity is matched to sizes so that what is requested comes near its own
//! distribution (SURGE calls it matching; ours gives the most popular places to the sizes that
//! shall carry the most requests). The lab makes these files, the simulator only their sizes.

use crate::rng::Rng;
use serde::{Deserialize, Serialize};
use tidegate_units::Random;

/// Most files of a catalogue.
const FILES_MAX: u32 = 1 << 16;
/// Where the small files lie.
pub const SMALL_PREFIX: &str = "/small/";
/// Where the large files lie.
pub const LARGE_PREFIX: &str = "/islarge/";
/// Where the program lies that answers dynamic requests.
pub const DYNAMIC_PREFIX: &str = "/cgi-bin/";
/// The program; its query is `bytes=N`.
pub const DYNAMIC_PROGRAM: &str = "random";
/// Halvings of the interval in which a quantile is searched: exact to a byte up to 2^40.
const HALVINGS: u32 = 64;

/// What the files and requests are. Sizes in bytes; defaults are SURGE's where it gives one.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct SurgeSpec {
    /// Number of files, 1 to 65,536.
    pub files: u32,
    /// Mean of the logarithm of the sizes in the body.
    pub body_mu: f64,
    /// Its standard deviation.
    pub body_sigma: f64,
    /// Share of the files in the body.
    pub body_share: f64,
    /// Where the body ends and the Pareto tail begins.
    pub tail_from: f64,
    /// Index of the tail.
    pub tail_alpha: f64,
    /// Largest file: where the tail is cut, so that a mean exists.
    pub size_max: f64,
    /// Smallest size of the distribution of what is requested.
    pub request_from: f64,
    /// Its index.
    pub request_alpha: f64,
    /// Exponent of Zipf's law.
    pub zipf: f64,
    /// Files above this are large.
    pub large_above: f64,
    /// Share of the requests for small files that are dynamic, 0 to 1.
    pub dynamic: f64,
}

impl Default for SurgeSpec {
    fn default() -> Self {
        Self {
            files: 1000,
            body_mu: 9.357,
            body_sigma: 1.318,
            body_share: 0.93,
            tail_from: 133_000.0,
            tail_alpha: 1.1,
            size_max: 2_000_000.0,
            request_from: 1000.0,
            request_alpha: 1.0,
            zipf: 1.0,
            large_above: 50_000.0,
            dynamic: 0.2,
        }
    }
}

/// What kind of request it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum RequestKind {
    /// A file of at most [`SurgeSpec::large_above`] bytes.
    Small,
    /// A larger file.
    Large,
    /// A program's answer of a small file's size.
    Dynamic,
}

/// One file of the catalogue.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct SurgeFile {
    /// Its number in the catalogue, by size, from 0.
    pub number: u32,
    /// Its size in bytes, at least 1.
    pub size: u64,
    /// Whether it lies among the large ones.
    pub large: bool,
    /// Its share of the requests (dynamic ones for its size included).
    pub share: f64,
}

impl SurgeFile {
    /// Its path on the server, beginning with `/`.
    #[must_use]
    pub fn path(&self) -> String {
        let prefix = if self.large { LARGE_PREFIX } else { SMALL_PREFIX };
        format!("{prefix}f{:05}.bin", self.number)
    }
}

/// One request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SurgeRequest {
    /// Which file, or the file whose size is asked of the program.
    pub file: u32,
    /// Size of the answer's body in bytes.
    pub size: u64,
    /// What it is.
    pub kind: RequestKind,
}

/// The files, and what is requested of them.
#[derive(Clone, Debug, PartialEq)]
pub struct Surge {
    files: Vec<SurgeFile>,
    /// Sums of the shares, for drawing.
    sums: Vec<f64>,
    dynamic: f64,
}

impl Surge {
    /// The catalogue of a spec. Numbers out of range are brought into it; a NaN counts as the
    /// default.
    #[must_use]
    pub fn new(spec: &SurgeSpec) -> Self {
        let spec = cleaned(spec);
        let sizes: Vec<u64> = (0..spec.files)
            .map(|i| spec.size_at((f64::from(i) + 0.5) / f64::from(spec.files)).max(1.0) as u64)
            .collect();
        let shares = matched(&spec, &sizes);
        let (mut files, mut sums, mut sum) = (Vec::new(), Vec::new(), 0.0);
        for (number, (size, share)) in (0_u32..).zip(sizes.into_iter().zip(shares)) {
            sum += share;
            sums.push(sum);
            files.push(SurgeFile { number, size, large: size as f64 > spec.large_above, share });
        }
        Self { files, sums, dynamic: spec.dynamic }
    }

    /// All files, by size.
    #[must_use]
    pub fn files(&self) -> &[SurgeFile] {
        &self.files
    }

    /// The next request. Two draws whatever it is, so that catalogues that differ in their dynamic
    /// share alone are asked for the same files.
    pub fn sample(&self, rng: &mut Rng) -> SurgeRequest {
        let (place, dynamic) = (rng.next_f64(), rng.next_f64() < self.dynamic);
        let sum = self.sums.last().copied().unwrap_or(1.0);
        let index = self.sums.partition_point(|s| *s <= place * sum).min(self.files.len() - 1);
        let file = &self.files[index];
        let kind = match (file.large, dynamic) {
            (true, _) => RequestKind::Large,
            (false, true) => RequestKind::Dynamic,
            (false, false) => RequestKind::Small,
        };
        SurgeRequest { file: file.number, size: file.size, kind }
    }

    /// The path (and query) of a request.
    #[must_use]
    pub fn path(&self, request: &SurgeRequest) -> String {
        match (request.kind, self.files.get(request.file as usize)) {
            (RequestKind::Dynamic, _) | (_, None) => {
                format!("{DYNAMIC_PREFIX}{DYNAMIC_PROGRAM}?bytes={}", request.size)
            }
            (_, Some(file)) => file.path(),
        }
    }

    /// Share of the requests that are of a kind, and their mean size in bytes (0 if there are
    /// none): exactly, not sampled.
    #[must_use]
    pub fn expected(&self, kind: RequestKind) -> (f64, f64) {
        let large = kind == RequestKind::Large;
        let of = self.files.iter().filter(|f| f.large == large);
        let (share, bytes) = of.fold((0.0, 0.0), |(share, bytes), file| {
            (share + file.share, bytes + file.share * file.size as f64)
        });
        let part = match kind {
            RequestKind::Large => 1.0,
            RequestKind::Dynamic => self.dynamic,
            RequestKind::Small => 1.0 - self.dynamic,
        };
        (share * part, if share > 0.0 { bytes / share } else { 0.0 })
    }

    /// Mean size of what is requested, in bytes.
    #[must_use]
    pub fn mean_size(&self) -> f64 {
        self.files.iter().map(|f| f.share * f.size as f64).sum()
    }
}

/// Every number finite and in its range.
fn cleaned(spec: &SurgeSpec) -> SurgeSpec {
    let default = SurgeSpec::default();
    let keep = |value: f64, instead: f64, (low, high): (f64, f64)| {
        if value.is_finite() { value.clamp(low, high) } else { instead }
    };
    let tail_from = keep(spec.tail_from, default.tail_from, (1.0, 1e12));
    SurgeSpec {
        files: spec.files.clamp(1, FILES_MAX),
        body_mu: keep(spec.body_mu, default.body_mu, (0.0, 30.0)),
        body_sigma: keep(spec.body_sigma, default.body_sigma, (1e-6, 10.0)),
        body_share: keep(spec.body_share, default.body_share, (0.0, 1.0)),
        tail_from,
        tail_alpha: keep(spec.tail_alpha, default.tail_alpha, (0.01, 100.0)),
        size_max: keep(spec.size_max, default.size_max, (tail_from, 1e13)),
        request_from: keep(spec.request_from, default.request_from, (1.0, 1e12)),
        request_alpha: keep(spec.request_alpha, default.request_alpha, (0.01, 100.0)),
        zipf: keep(spec.zipf, default.zipf, (0.0, 10.0)),
        large_above: keep(spec.large_above, default.large_above, (0.0, 1e13)),
        dynamic: keep(spec.dynamic, default.dynamic, (0.0, 1.0)),
    }
}

impl SurgeSpec {
    /// The size that a share `u` of the files does not exceed.
    fn size_at(&self, u: f64) -> f64 {
        if u < self.body_share {
            // The body is the log-normal below the place where the tail begins.
            let inside = self.body_below(self.tail_from);
            return self.body_quantile(u / self.body_share * inside);
        }
        let rest = ((u - self.body_share) / (1.0 - self.body_share).max(1e-12)).clamp(0.0, 1.0);
        let cut = 1.0 - libm::pow(self.tail_from / self.size_max, self.tail_alpha);
        self.tail_from * libm::pow(1.0 - rest * cut, -1.0 / self.tail_alpha)
    }

    fn body_below(&self, size: f64) -> f64 {
        let z = (libm::log(size) - self.body_mu) / self.body_sigma;
        0.5 * libm::erfc(-z / core::f64::consts::SQRT_2)
    }

    fn body_quantile(&self, u: f64) -> f64 {
        let (mut low, mut high) = (0.0, libm::log(self.tail_from));
        for _ in 0..HALVINGS {
            let middle = 0.5 * (low + high);
            if self.body_below(libm::exp(middle)) < u { low = middle } else { high = middle }
        }
        libm::exp(high)
    }

    /// Share of the requests that are for at most `size` bytes, as wanted.
    fn requested_below(&self, size: f64) -> f64 {
        if size <= self.request_from {
            return 0.0;
        }
        let above = |x: f64| libm::pow(self.request_from / x, self.request_alpha);
        let cut = 1.0 - above(self.size_max.max(self.request_from + 1.0));
        ((1.0 - above(size)) / cut).min(1.0)
    }
}

/// Shares of the requests by Zipf's law, in the order of the sizes: the sizes that shall carry the
/// most get the most popular places.
fn matched(spec: &SurgeSpec, sizes: &[u64]) -> Vec<f64> {
    let middle = |i: usize| 0.5 * (sizes[i] as f64 + sizes[i + 1] as f64);
    let mut before = 0.0;
    let wanted = (0..sizes.len()).map(|i| {
        let below = if i + 1 < sizes.len() { spec.requested_below(middle(i)) } else { 1.0 };
        let mass = below - before;
        before = below;
        (mass, i)
    });
    let mut places: Vec<(f64, usize)> = wanted.collect();
    places.sort_by(|a, b| b.0.total_cmp(&a.0).then(a.1.cmp(&b.1)));
    let zipf = |rank: usize| libm::pow(rank as f64, -spec.zipf);
    let sum: f64 = (1..=sizes.len()).map(zipf).sum();
    let mut shares = vec![0.0; sizes.len()];
    for (rank, (_, index)) in (1..).zip(places) {
        shares[index] = zipf(rank) / sum;
    }
    shares
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The catalogue's sizes have the quantiles of a log-normal body and a Pareto tail.
    #[test]
    fn sizes_have_a_body_and_a_heavy_tail() {
        let surge = Surge::new(&SurgeSpec::default());
        let size = |i: usize| surge.files()[i].size as f64;
        // Half of the body's mass below 133 kB: a little under its median, e^9.357.
        let median = size(465) / 11_580.0;
        assert!((0.9..1.0).contains(&median), "median of the body {median}");
        let tail = surge.files().iter().filter(|f| f.size > 133_000).count();
        assert_eq!(tail, 70);
        // P(X > 2·133 kB | tail) = (2^-1.1 − cut)/(1 − cut), cut = (133/2000)^1.1
        let beyond = surge.files().iter().filter(|f| f.size > 266_000).count() as f64 / 70.0;
        assert!((beyond - 0.438).abs() < 0.02, "{beyond}");
        assert!(surge.files().is_sorted_by_key(|f| f.size));
        assert!(surge.files().last().is_some_and(|f| f.size <= 2_000_000));
    }

    /// Popularity is Zipf's, and requests still are mostly for small files with a heavy tail.
    #[test]
    fn popularity_is_zipfs_and_requests_have_a_heavy_tail() {
        let surge = Surge::new(&SurgeSpec::default());
        let mut shares: Vec<f64> = surge.files().iter().map(|f| f.share).collect();
        shares.sort_unstable_by(|a, b| b.total_cmp(a));
        assert!((shares[0] / shares[9] - 10.0).abs() < 1e-9, "first over tenth");
        assert!((shares.iter().sum::<f64>() - 1.0).abs() < 1e-9);
        let above = |size: u64| -> f64 {
            surge.files().iter().filter(|f| f.size > size).map(|f| f.share).sum()
        };
        for (size, wanted) in [(2000, 0.5), (10_000, 0.1), (50_000, 0.02)] {
            let got = above(size);
            assert!((got / wanted - 1.0).abs() < 0.6, "above {size}: {got}, wanted {wanted}");
        }
    }

    /// What is drawn has the shares and the mean size that the catalogue tells.
    #[test]
    fn requests_come_in_the_expected_shares() {
        let surge = Surge::new(&SurgeSpec::default());
        let (mut rng, n) = (Rng::new(1, 0), 400_000);
        let mut counts = [0.0; 3];
        let mut bytes = 0.0;
        for _ in 0..n {
            let request = surge.sample(&mut rng);
            counts[request.kind as usize] += 1.0 / f64::from(n);
            bytes += request.size as f64 / f64::from(n);
        }
        for kind in [RequestKind::Small, RequestKind::Large, RequestKind::Dynamic] {
            let share = surge.expected(kind).0;
            assert!((counts[kind as usize] - share).abs() < 0.003, "{kind:?}: {share}");
        }
        assert!((bytes / surge.mean_size() - 1.0).abs() < 0.03, "{bytes}");
    }

    /// A catalogue with another dynamic share is asked for the same files.
    #[test]
    fn the_dynamic_share_changes_no_file() {
        let with = |dynamic| Surge::new(&SurgeSpec { dynamic, ..SurgeSpec::default() });
        let files = |surge: Surge| {
            let mut rng = Rng::new(3, 0);
            (0..1000).map(|_| surge.sample(&mut rng).file).collect::<Vec<_>>()
        };
        assert_eq!(files(with(0.0)), files(with(0.2)));
        let none = with(0.0);
        let mut rng = Rng::new(3, 0);
        assert!((0..1000).all(|_| none.sample(&mut rng).kind != RequestKind::Dynamic));
    }

    #[test]
    fn paths_say_the_kind() {
        let surge = Surge::new(&SurgeSpec::default());
        let path = |kind, file: u32| {
            let size = surge.files()[file as usize].size;
            surge.path(&SurgeRequest { file, size, kind })
        };
        assert_eq!(path(RequestKind::Small, 7), "/small/f00007.bin");
        assert_eq!(path(RequestKind::Large, 999), "/islarge/f00999.bin");
        assert!(path(RequestKind::Dynamic, 7).starts_with("/cgi-bin/random?bytes="));
    }

    /// Nonsense gives a catalogue all the same: no panic, finite shares.
    #[test]
    fn any_spec_gives_a_catalogue() {
        let nan = f64::NAN;
        let specs = [
            SurgeSpec { files: 0, body_share: 2.0, ..SurgeSpec::default() },
            SurgeSpec { size_max: nan, tail_alpha: -1.0, zipf: nan, ..SurgeSpec::default() },
            SurgeSpec { body_share: 0.0, tail_from: 0.0, size_max: 0.0, ..SurgeSpec::default() },
        ];
        for spec in specs {
            let surge = Surge::new(&spec);
            assert!(surge.files().iter().all(|f| f.size >= 1 && f.share.is_finite()));
            let request = surge.sample(&mut Rng::new(1, 0));
            assert!(request.size >= 1);
        }
    }
}
