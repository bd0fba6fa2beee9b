// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Who comes when: the paper's crowd, windows and days of real traces, and stand-ins with the same
//! published rates where the real ones are not there.

use crate::folder;
use anyhow::{Context, Result, bail, ensure};
use std::f64::consts::TAU;
use std::fs::File;
use std::io::BufReader;
use std::path::{Path, PathBuf};
use tidegate_units::Nanos;
use tidegate_workload::readers::{self, Format, OnBad};
use tidegate_workload::{Refine, Rng, exponential};

/// The semi-final of the World Cup of 1998, requests per minute from 15:00 UTC on.
const SEMIFINAL: &str = "wc98_semifinal_19980707_1500-2359utc.csv";
/// The whole tournament, requests per minute.
const TOURNAMENT: &str = "wc98_per_minute_utc.csv.gz";
/// The HTTP log of NASA, July and August 1995, requests per second.
const NASA: &str = "nasa1995_per_second.txt.xz";

/// Ten days of the World Cup, named before the first run: without and with matches, the day of the
/// semi-final's neighbour and the final among them.
pub const DAYS: [&str; 10] = [
    "1998-05-12",
    "1998-05-25",
    "1998-06-02",
    "1998-06-09",
    "1998-06-13",
    "1998-06-18",
    "1998-06-26",
    "1998-07-01",
    "1998-07-09",
    "1998-07-12",
];
/// Days of the NASA trace.
pub const NASA_DAYS: u32 = 58;
/// Responses per second that fill the paper's link: 55.9 (section 5.2).
pub const LINK: f64 = 55.9;
/// Minutes before a window.
const LEAD: usize = 10;
/// Minutes of a window.
const WINDOW: usize = 34;
/// The busiest minute of a quiet day, in shares of the link: what it carries.
const CARRIED: f64 = 0.8;
/// What is added inside a minute: a CV of 0.069 of minutes is 0.16 of seconds (spec of the data).
const REFINE: Refine = Refine { slots: 60, hurst: 0.8, cv: 0.16 };

/// Which trace, by the number that a scenario has as x.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Trace {
    /// 0: the paper's crowd, five-fold within minutes.
    Crowd,
    /// 1: 18:50 to 19:24 of the semi-final, 451 to 1,586/s; its first minute is 0.6 of the link.
    WindowA,
    /// 2: 21:10 to 21:44, 2,716 to 3,824/s; its busiest minute is 1.2 of the link.
    WindowB,
    /// 101 to 110: a day of [`DAYS`].
    Day(usize),
    /// 201 to 258: a day of the NASA trace, as it is.
    Nasa(usize),
}

impl Trace {
    /// The trace with this number.
    ///
    /// # Errors
    /// When there is none.
    pub fn numbered(number: f64) -> Result<Self> {
        Ok(match number as u32 {
            0 => Self::Crowd,
            1 => Self::WindowA,
            2 => Self::WindowB,
            n if (101..=110).contains(&n) => Self::Day(n as usize - 101),
            n if (201..=200 + NASA_DAYS).contains(&n) => Self::Nasa(n as usize - 201),
            _ => bail!("there is no trace {number}: 0 to 2, 101 to 110, 201 to 258"),
        })
    }
}

/// The paper's crowd.
#[derive(Clone, Copy, Debug)]
pub struct CrowdSpec {
    /// Clients per second before it.
    pub calm: f64,
    /// How many times that during it.
    pub times: f64,
    /// When it begins, how long it takes to come, and when it ends, seconds.
    pub at_s: f64,
    /// See above.
    pub ramp_s: f64,
    /// See above.
    pub until_s: f64,
    /// When all ends.
    pub lasts_s: f64,
}

impl CrowdSpec {
    fn rate(&self, s: f64) -> f64 {
        let up = ((s - self.at_s) / self.ramp_s.max(1e-9)).clamp(0.0, 1.0);
        let times = if s < self.until_s { 1.0 + (self.times - 1.0) * up } else { 1.0 };
        self.calm * times
    }
}

/// Clients per second, and whether that is of a real trace.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Rates {
    /// One rate a second.
    pub per_second: Vec<f64>,
    /// Whether these are counts as they were, and no rates.
    pub exact: bool,
    /// Whether it is a real trace.
    pub real: bool,
}

/// Where real traces are looked for unless another folder is named: beside the working directory.
pub const FOLDER: &str = "../shared/data";

/// The folder of real traces.
#[derive(Clone, Debug)]
pub struct Source {
    folder: PathBuf,
    /// Whoever named it wants no stand-in.
    named: bool,
}

impl Source {
    /// A folder that was named: what is taken and not in it is an error.
    #[must_use]
    pub const fn named(folder: PathBuf) -> Self {
        Self { folder, named: true }
    }

    /// One that may be there: for what is not in it stand-ins run.
    #[must_use]
    pub fn beside(folder: &Path) -> Self {
        Self { folder: folder.into(), named: false }
    }

    fn file(&self, name: &str) -> Option<PathBuf> {
        let path = self.folder.join(name);
        (self.named || path.exists()).then_some(path)
    }
}

/// Rates per minute of real traces, or nothing where they are not there.
#[derive(Clone, Debug, Default)]
pub struct Data {
    /// What was read.
    files: Vec<String>,
    semifinal: Option<Vec<f64>>,
    /// Minutes since 1970 of the first, and counts.
    tournament: Option<(i64, Vec<f64>)>,
    nasa: Option<Vec<u64>>,
}

fn entries(path: &Path, format: Format) -> Result<(i64, Vec<(Nanos, u64)>)> {
    let place = || format!("read {}", path.display());
    let file = File::open(path).with_context(place)?;
    let (text, _) = readers::unpacked(BufReader::new(file)).with_context(place)?;
    let mut reader = readers::open(format, text, OnBad::Fail);
    let mut all = Vec::new();
    for entry in reader.by_ref() {
        let entry = entry.with_context(place)?;
        all.push((entry.at, entry.count));
    }
    ensure!(!all.is_empty(), "{}: it is empty", path.display());
    Ok((reader.begins().unwrap_or(0), all))
}

/// Requests per second of each minute, from the first one on.
fn minutes(path: &Path) -> Result<(i64, Vec<f64>)> {
    let minute = Nanos::from_secs(60);
    let (begins, entries) = entries(path, Format::Csv { period: minute })?;
    let last = entries.last().map_or(0, |(at, _)| at.0 / minute.0) as usize;
    let mut rates = vec![0.0; last + 1];
    for (at, count) in entries {
        rates[(at.0 / minute.0) as usize] += count as f64 / 60.0;
    }
    Ok((begins / minute.0 as i64, rates))
}

impl Data {
    /// Reads what these traces need from a folder.
    ///
    /// # Errors
    /// When a file is broken, or missing in a folder that was named.
    pub fn read(source: Option<&Source>, traces: &[Trace]) -> Result<Self> {
        let mut data = Self::default();
        let mut files = Vec::new();
        let mut file = |takes: &dyn Fn(&Trace) -> bool, name: &str| {
            let wanted = source.filter(|_| traces.iter().any(takes));
            let found = wanted.and_then(|source| source.file(name));
            files.extend(found.iter().map(|_| name.to_owned()));
            found
        };
        if let Some(path) = file(&|t| matches!(t, Trace::WindowA | Trace::WindowB), SEMIFINAL) {
            data.semifinal = Some(minutes(&path)?.1);
        }
        if let Some(path) = file(&|t| matches!(t, Trace::Day(_)), TOURNAMENT) {
            data.tournament = Some(minutes(&path)?);
        }
        if let Some(path) = file(&|t| matches!(t, Trace::Nasa(_)), NASA) {
            let format = Format::Counts { period: Nanos::SECOND };
            let counts = entries(&path, format)?.1;
            data.nasa = Some(counts.into_iter().map(|(_, count)| count).collect());
        }
        data.files = files;
        Ok(data)
    }

    /// Whether these traces are real ones, but for the paper's crowd, which is none.
    #[must_use]
    pub fn used(&self, traces: &[Trace]) -> folder::Data {
        let real = |trace: &Trace| match trace {
            Trace::Crowd => true,
            Trace::WindowA | Trace::WindowB => self.semifinal.is_some(),
            Trace::Day(_) => self.tournament.is_some(),
            Trace::Nasa(_) => self.nasa.is_some(),
        };
        if self.files.is_empty() || !traces.iter().all(real) {
            return folder::Data::Synthetic;
        }
        folder::Data::Real(self.files.clone())
    }

    /// The rates of a trace.
    ///
    /// # Errors
    /// When the file does not reach that far.
    pub fn rates(&self, trace: Trace, crowd: &CrowdSpec, seed: u64) -> Result<Rates> {
        let mut rng = Rng::new(seed, 0x5452_4143);
        match trace {
            Trace::Crowd => {
                let minutes: Vec<f64> = (0..(crowd.lasts_s / 20.0).ceil() as usize)
                    .map(|n| crowd.rate(20.0 * n as f64 + 10.0) * 20.0)
                    .collect();
                let refine = Refine { slots: 20, ..REFINE };
                Ok(Rates { per_second: refined(&refine, &minutes, &mut rng)?, ..Rates::default() })
            }
            Trace::WindowA => self.window(18 * 60 + 50, (451.0, 1586.0), &mut rng),
            Trace::WindowB => self.window(21 * 60 + 10, (2716.0, 3824.0), &mut rng),
            Trace::Day(day) => self.day(day, &mut rng),
            Trace::Nasa(day) => self.nasa(day, &mut rng),
        }
    }

    /// A window of the semi-final with the minutes before it; `published`: its first and its largest rate.
    fn window(&self, at: usize, published: (f64, f64), rng: &mut Rng) -> Result<Rates> {
        let begins = 15 * 60;
        let (minutes, real) = match &self.semifinal {
            Some(all) => {
                let from = at - begins - LEAD;
                let part = all.get(from..from + LEAD + WINDOW);
                (part.context("the window is not in the file")?.to_vec(), true)
            }
            None => {
                let ramp = (0..WINDOW).map(|n| {
                    published.0 + (published.1 - published.0) * n as f64 / (WINDOW - 1) as f64
                });
                let lead = std::iter::repeat_n(0.95 * published.0, LEAD);
                (lead.chain(ramp).collect(), false)
            }
        };
        let largest = minutes.iter().copied().fold(0.0, f64::max);
        let factor =
            if published.0 < 1000.0 { 0.6 * LINK / minutes[LEAD] } else { 1.2 * LINK / largest };
        let scaled: Vec<f64> = minutes.iter().map(|rate| rate * factor * 60.0).collect();
        Ok(Rates { per_second: refined(&REFINE, &scaled, rng)?, exact: false, real })
    }

    fn day(&self, day: usize, rng: &mut Rng) -> Result<Rates> {
        let (minutes, real) = match &self.tournament {
            Some((first, all)) => {
                let from = (midnight(DAYS[day])? - first).max(0) as usize;
                let part = all.get(from..from + 1440);
                (part.context("the day is not in the file")?.to_vec(), true)
            }
            None => {
                let wave = |n: usize| 1.0 - 0.6 * libm::cos(n as f64 / 1440.0 * TAU);
                ((0..1440).map(wave).collect(), false)
            }
        };
        let largest = minutes.iter().copied().fold(f64::MIN_POSITIVE, f64::max);
        let factor = CARRIED * LINK / largest * 60.0;
        let scaled: Vec<f64> = minutes.iter().map(|rate| rate * factor).collect();
        Ok(Rates { per_second: refined(&REFINE, &scaled, rng)?, exact: false, real })
    }

    fn nasa(&self, day: usize, rng: &mut Rng) -> Result<Rates> {
        if let Some(all) = &self.nasa {
            let part = all.get(day * 86_400..(day + 1) * 86_400);
            let part = part.context("the day is not in the file")?;
            let per_second = part.iter().map(|count| *count as f64).collect();
            return Ok(Rates { per_second, exact: true, real: true });
        }
        let wave = |n: usize| 41.0 * (1.0 - 0.5 * libm::cos(n as f64 / 1440.0 * TAU));
        let minutes: Vec<f64> = (0..1440).map(wave).collect();
        Ok(Rates { per_second: refined(&REFINE, &minutes, rng)?, exact: false, real: false })
    }
}

/// Minutes from 1970 to a day of 1998.
fn midnight(day: &str) -> Result<i64> {
    let mut parts = day.split('-').map(str::parse::<i64>);
    let (Some(Ok(1998)), Some(Ok(month)), Some(Ok(day))) =
        (parts.next(), parts.next(), parts.next())
    else {
        bail!("{day:?} is no day of 1998");
    };
    let before: [i64; 12] = [0, 31, 59, 90, 120, 151, 181, 212, 243, 273, 304, 334];
    let days_to_1998 = 28 * 365 + 7; // leap years 1972 to 1996
    let index = usize::try_from(month - 1).ok().filter(|m| *m < 12).context("a month")?;
    Ok((days_to_1998 + before[index] + day - 1) * 1440)
}

/// Rates per second of periods of so many clients.
fn refined(refine: &Refine, periods: &[f64], rng: &mut Rng) -> Result<Vec<f64>> {
    // Counts are whole: a thousandth of a client is the unit.
    let counts: Vec<u64> = periods.iter().map(|count| (count * 1000.0).round() as u64).collect();
    let rates = refine.rates(&counts, rng)?;
    Ok(rates.into_iter().map(|rate| rate / 1000.0).collect())
}

impl Rates {
    /// The same rates in so many times less time.
    #[must_use]
    pub fn compressed(self, times: f64) -> Self {
        let step = (times.round() as usize).max(1);
        let mean = |part: &[f64]| part.iter().sum::<f64>() / part.len() as f64;
        Self { per_second: self.per_second.chunks(step).map(mean).collect(), ..self }
    }

    /// Clients in each second: Poisson around the rate, or as they were counted.
    #[must_use]
    pub fn counts(&self, rng: &mut Rng) -> Vec<u64> {
        let draw = |rate: &f64| {
            if self.exact {
                return *rate as u64;
            }
            let (mut count, mut sum) = (0, exponential(rng));
            while sum < *rate {
                count += 1;
                sum += exponential(rng);
            }
            count
        };
        self.per_second.iter().map(draw).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const CROWD: CrowdSpec = CrowdSpec {
        calm: 22.0,
        times: 5.0,
        at_s: 1000.0,
        ramp_s: 120.0,
        until_s: 2000.0,
        lasts_s: 2400.0,
    };

    fn mean(rates: &[f64]) -> f64 {
        rates.iter().sum::<f64>() / rates.len() as f64
    }

    #[test]
    fn the_crowd_is_five_times_the_calm() {
        let rates = Data::default().rates(Trace::Crowd, &CROWD, 1).expect("it is made");
        assert_eq!((rates.per_second.len(), rates.real), (2400, false));
        let part = |from, until| mean(&rates.per_second[from..until]);
        assert!((part(0, 1000) - 22.0).abs() < 0.5 && (part(2100, 2400) - 22.0).abs() < 0.5);
        assert!((part(1120, 2000) - 110.0).abs() < 2.0);
        let counts = rates.counts(&mut Rng::new(1, 1));
        let sum: u64 = counts[1120..2000].iter().sum();
        assert!((sum as f64 / 880.0 - 110.0).abs() < 3.0, "{sum}");
        let compressed = rates.compressed(4.0).per_second;
        assert_eq!(compressed.len(), 600);
        assert!((mean(&compressed[280..500]) - 110.0).abs() < 2.0);
    }

    #[test]
    fn stand_ins_have_the_published_rates() {
        let data = Data::default();
        let a = data.rates(Trace::WindowA, &CROWD, 1).expect("made").per_second;
        let ratio = mean(&a[43 * 60..]) / mean(&a[600..660]);
        assert!((ratio - 1586.0 / 451.0).abs() < 0.2, "{ratio}");
        assert!((mean(&a[600..660]) - 0.6 * LINK).abs() < 0.5);
        let b = data.rates(Trace::WindowB, &CROWD, 1).expect("made").per_second;
        assert!((mean(&b[43 * 60..]) - 1.2 * LINK).abs() < 0.5);
        let day = data.rates(Trace::Day(0), &CROWD, 1).expect("made").per_second;
        let busiest = day.chunks(60).map(mean).fold(0.0, f64::max);
        assert!((busiest - CARRIED * LINK).abs() < 0.5, "{busiest}");
    }

    /// Where the folder is not named, stand-ins run for what is not in it; all that is taken must be real.
    #[test]
    fn what_was_read_is_told_and_a_stand_in_is_none() {
        let folder = std::env::temp_dir().join(format!("tidegate-traces-{}", std::process::id()));
        std::fs::create_dir_all(&folder).expect("it is writable");
        std::fs::write(
            folder.join(SEMIFINAL),
            "period_utc,count\n1998-07-07 15:00:00,600\n1998-07-07 15:01:00,1200\n",
        )
        .expect("it is writable");
        let read = |source: Option<Source>, traces: &[Trace]| Data::read(source.as_ref(), traces);
        let beside = || Some(Source::beside(&folder));
        let real = folder::Data::Real(vec![SEMIFINAL.into()]);
        let (window, day) = ([Trace::Crowd, Trace::WindowA], [Trace::WindowA, Trace::Day(0)]);
        for (source, traces, used) in [
            (beside(), &window[..], real.clone()),
            (beside(), &window[..1], folder::Data::Synthetic),
            (beside(), &day, folder::Data::Synthetic),
            (Some(Source::named(folder.clone())), &window, real),
            (Some(Source::beside(Path::new("/nonexistent"))), &window, folder::Data::Synthetic),
            (None, &window, folder::Data::Synthetic),
        ] {
            let data = read(source.clone(), traces).expect("what is there is right");
            assert_eq!(data.used(traces), used, "{source:?} {traces:?}");
        }
        assert!(read(Some(Source::named(folder.clone())), &day).is_err(), "the day is missing");
        std::fs::write(folder.join(SEMIFINAL), "no counts\n").expect("it is writable");
        assert!(read(beside(), &window).is_err(), "a broken file is no missing one");
        std::fs::remove_dir_all(&folder).expect("it was made here");
    }

    #[test]
    fn days_are_where_the_calendar_has_them() {
        // 893,980,800 s: 1998-05-01 00:00 UTC.
        assert_eq!(midnight("1998-05-01").expect("a day"), 893_980_800 / 60);
        assert!(midnight("1997-05-01").is_err() && midnight("1998-13-01").is_err());
        assert!(Trace::numbered(3.0).is_err() && Trace::numbered(111.0).is_err());
        assert_eq!(Trace::numbered(258.0).expect("there is one"), Trace::Nasa(57));
    }
}
